package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const (
	// firstBuffer is what a decompression starts with when there is no buffer yet.
	firstBuffer = 64 << 10
	// keepBuffer is the largest decompression buffer that is kept from one batch to the next.
	keepBuffer = 4 << 20
)

var (
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	lz4Readers  = sync.Pool{New: func() any { return lz4.NewReader(nil) }}
	zstdReaders = sync.Pool{New: newZstdDecoder}
)

func newZstdDecoder() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(fmt.Sprintf("record: constant zstd options refused: %v", err))
	}
	return d
}

// decompressor expands the records of a batch into a buffer of its own, which never exceeds the limit.
// Declared sizes are not trusted: gzip and lz4 let the buffer double as output really appears, snappy blocks
// are measured first, and zstd's declared size is held against what the compressed bytes could hold.
type decompressor struct {
	buf []byte
	src bytes.Reader
}

// release gives a large buffer back, so that one bomb does not pin its size for ever.
func (d *decompressor) release() {
	if cap(d.buf) > keepBuffer {
		d.buf = nil
	}
}

// decode returns at most limit bytes, valid until the next call.
func (d *decompressor) decode(codec Codec, src []byte, limit int) ([]byte, error) {
	var err error
	switch codec {
	case CodecNone:
		return src, nil
	case CodecGzip:
		err = d.gzip(src, limit)
	case CodecSnappy:
		err = d.snappy(src, limit)
	case CodecLZ4:
		err = d.lz4(src, limit)
	case CodecZstd:
		err = d.zstd(src, limit)
	default:
		err = fmt.Errorf("unknown %s", codec)
	}
	if err != nil {
		return nil, asDecompressionFault(codec, src, err)
	}
	return d.buf, nil
}

func asDecompressionFault(codec Codec, src []byte, err error) error {
	var be *BatchError
	if errors.As(err, &be) {
		return be
	}
	be = fault(ReasonDecompression, int64(len(src)), 0, "%s: %v", codec, err)
	be.Err = err
	return be
}

func limitFault(codec Codec, atLeast, limit int) error {
	return fault(ReasonDecompressionLimit, int64(atLeast), int64(limit),
		"%s records expand to %d bytes or more, the limit is %d", codec, atLeast, limit)
}

// start empties the buffer and gives it room for hint bytes, within bounds.
func (d *decompressor) start(hint, limit int) {
	hint = min(max(hint, firstBuffer), limit)
	if cap(d.buf) < hint {
		d.buf = make([]byte, 0, hint)
	}
	d.buf = d.buf[:0]
}

// grow doubles the buffer, up to limit, and keeps its content.
func (d *decompressor) grow(limit int) {
	grown := make([]byte, len(d.buf), min(2*cap(d.buf), limit))
	copy(grown, d.buf)
	d.buf = grown
}

// readAll reads r to its end.
func (d *decompressor) readAll(codec Codec, r io.Reader, limit int) error {
	room := limit + 1 // one more byte tells "full" from "too much"
	for idle := 0; ; {
		if len(d.buf) == cap(d.buf) {
			d.grow(room)
		}
		n, err := r.Read(d.buf[len(d.buf):min(cap(d.buf), room)])
		d.buf = d.buf[:len(d.buf)+n]
		if len(d.buf) > limit {
			return limitFault(codec, len(d.buf), limit)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n > 0 {
			idle = 0
		} else if idle++; idle > 100 {
			return io.ErrNoProgress
		}
	}
}

func (d *decompressor) gzip(src []byte, limit int) error {
	d.start(4*len(src), limit)
	d.src.Reset(src)
	r := gzipReaders.Get().(*gzip.Reader)
	defer gzipReaders.Put(r)
	if err := r.Reset(&d.src); err != nil {
		return err
	}
	return d.readAll(CodecGzip, r, limit)
}

// The first bytes of an lz4 frame: the magic, then flags of which Kafka's clients support one version and
// independent blocks only.
const (
	lz4Magic            = "\x04\x22\x4d\x18"
	lz4FlagVersion      = 0xc0
	lz4Version1         = 0x40
	lz4FlagIndependence = 0x20
)

func (d *decompressor) lz4(src []byte, limit int) error {
	if !bytes.HasPrefix(src, []byte(lz4Magic)) || len(src) <= len(lz4Magic) {
		return errors.New("not an lz4 frame")
	}
	if f := src[len(lz4Magic)]; f&lz4FlagVersion != lz4Version1 || f&lz4FlagIndependence == 0 {
		return fmt.Errorf("frame flags %#02x: only version 1 with independent blocks is supported", f)
	}
	d.start(4*len(src), limit)
	d.src.Reset(src)
	r := lz4Readers.Get().(*lz4.Reader)
	defer lz4Readers.Put(r)
	r.Reset(&d.src)
	if err := d.readAll(CodecLZ4, r, limit); err != nil {
		return err
	}
	if d.src.Len() > 0 {
		return fmt.Errorf("%d bytes behind the frame", d.src.Len())
	}
	return nil
}

const (
	// A zstd block yields at most 128 KiB and takes at least 4 bytes, its header included.
	zstdMinBlock = 4
	zstdMaxBlock = 128 << 10
	// zstdSlack is room behind the output that lets the decoder copy in larger steps.
	zstdSlack = 64
)

func (d *decompressor) zstd(src []byte, limit int) error {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return err
	}
	hint := 8 * len(src)
	if h.HasFCS {
		if possible := uint64(len(src)/zstdMinBlock+1) * zstdMaxBlock; h.FrameContentSize > possible {
			return fmt.Errorf("frame declares %d bytes, %d compressed bytes hold %d at most", h.FrameContentSize, len(src), possible)
		}
		if h.FrameContentSize > uint64(limit) { // #nosec G115 -- positive
			return limitFault(CodecZstd, int(h.FrameContentSize), limit) // #nosec G115 -- checked above
		}
		hint = int(h.FrameContentSize) + zstdSlack // #nosec G115 -- at most limit
	}
	return d.zstdAll(src, hint, limit)
}

// zstdAll decodes with growing room. The decoder stops at the end of its room with one of several errors,
// which a broken block gives as well. What tells them apart is how far it came: only when there was no
// room for another block can the room have been the reason. The last attempt has room for the limit and
// one block more.
func (d *decompressor) zstdAll(src []byte, hint, limit int) error {
	most := limit + zstdMaxBlock + zstdSlack
	d.start(hint, most)
	r := zstdReaders.Get().(*zstd.Decoder)
	defer zstdReaders.Put(r)
	for {
		room := min(cap(d.buf), most)
		out, err := r.DecodeAll(src, d.buf[:0:room])
		full := errors.Is(err, zstd.ErrDecoderSizeExceeded) || len(out)+zstdMaxBlock+zstdSlack > room
		switch {
		case len(out) > limit, err != nil && full && room == most:
			return limitFault(CodecZstd, max(len(out), limit+1), limit)
		case err == nil:
			d.buf = out
			return nil
		case !full:
			return err
		}
		d.buf = d.buf[:0]
		d.grow(most)
	}
}

// snappy reads xerial's framing, and the bare block that some clients send, as Kafka's own reader does.
func (d *decompressor) snappy(src []byte, limit int) error {
	d.buf = d.buf[:0]
	if !bytes.HasPrefix(src, []byte(xerialMagic)) {
		return d.snappyBlock(src, limit)
	}
	if len(src) < xerialHeaderLen {
		return io.ErrUnexpectedEOF
	}
	if compatible := binary.BigEndian.Uint32(src[12:]); compatible > 1 {
		return fmt.Errorf("framing needs a reader of version %d, this one has version 1", compatible)
	}
	src = src[xerialHeaderLen:]
	for len(src) > 0 {
		if len(src) < 4 {
			return io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		if src = src[4:]; n > int64(len(src)) {
			return fmt.Errorf("block of %d bytes, %d are there: %w", n, len(src), io.ErrUnexpectedEOF)
		}
		if err := d.snappyBlock(src[:n], limit); err != nil {
			return err
		}
		src = src[n:]
	}
	return nil
}

// snappyBlock appends one decoded block to the buffer. The block is walked first, so that memory follows
// what it really expands to.
func (d *decompressor) snappyBlock(block []byte, limit int) error {
	size, err := snappySize(block, limit-len(d.buf))
	if err != nil {
		return err
	}
	if size > limit-len(d.buf) {
		return limitFault(CodecSnappy, len(d.buf)+size, limit)
	}
	at := len(d.buf)
	for cap(d.buf)-at < size {
		if cap(d.buf) == 0 {
			d.buf = make([]byte, 0, min(max(size, firstBuffer), limit))
			continue
		}
		d.grow(limit)
	}
	d.buf = d.buf[:at+size]
	_, err = s2.Decode(d.buf[at:], block)
	return err
}

// snappySize returns the size that block really decodes to, by walking its elements, and an error when
// that is not the declared one. It refuses the extensions of S2, which other Snappy readers lack. The
// walk ends early when the size passes stop.
func snappySize(block []byte, stop int) (int, error) {
	declared, i := binary.Uvarint(block)
	if i <= 0 || declared > 1<<32-1 {
		return 0, errors.New("bad length of a snappy block")
	}
	size := 0
	for i < len(block) && size <= stop {
		tag := block[i]
		n := int(tag >> 2)
		switch tag & 3 {
		case 0: // literal
			i++
			if extra := n - 59; extra > 0 {
				if len(block)-i < extra {
					return 0, io.ErrUnexpectedEOF
				}
				n = 0
				for k := range extra {
					n |= int(block[i+k]) << (8 * k)
				}
				i += extra
			}
			n++
			if n > len(block)-i {
				return 0, io.ErrUnexpectedEOF
			}
			i += n
		case 1: // copy with an 11-bit offset
			if len(block)-i < 2 {
				return 0, io.ErrUnexpectedEOF
			}
			if tag&0xe0 == 0 && block[i+1] == 0 {
				return 0, errors.New("snappy copy with offset 0")
			}
			n = n&7 + 4
			i += 2
		case 2: // copy with a 16-bit offset
			n++
			i += 3
		case 3: // copy with a 32-bit offset
			n++
			i += 5
		}
		size += n
	}
	if size <= stop && uint64(size) != declared { // #nosec G115 -- not negative
		return 0, fmt.Errorf("snappy block declares %d bytes and holds %d", declared, size)
	}
	return size, nil
}
