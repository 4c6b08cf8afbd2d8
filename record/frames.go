package record

import "iter"

// NextFrame splits the first batch off b, which holds concatenated batches. It checks framing only
// (ParseHeader, and that all bytes are there). b must not be empty.
func NextFrame(b []byte) (batch, rest []byte, err error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, b, err
	}
	size := h.Size()
	if len(b) < size {
		return nil, b, fault(ReasonTruncated, int64(len(b)), int64(size), "%d bytes of a batch of %d", len(b), size)
	}
	return b[:size:size], b[size:], nil
}

// Frames yields each of the concatenated batches in b, borrowed. An error ends the iteration and is yielded
// with the bytes that could not be split.
func Frames(b []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(b) > 0 {
			batch, rest, err := NextFrame(b)
			if err != nil {
				yield(rest, err)
				return
			}
			if !yield(batch, nil) {
				return
			}
			b = rest
		}
	}
}
