package replication

// grain is how finely a window tells what was acknowledged: frames are merged up to it, so that a window of small batches stays short.
const grain = 64 << 10

// sentQueue are the bytes that were sent and not yet acknowledged, oldest first.
type sentQueue struct {
	entries []sentEntry
	head    int
}

// emptied returns list without elements, and without its memory when that is much: there is one for each of thousands of partitions,
// most of which had much to do once.
func emptied[T any](list []T) []T {
	if cap(list) > 16 {
		return nil
	}
	return list[:0]
}

type sentEntry struct {
	end   int64 // acknowledged once the follower has flushed up to here
	bytes int64
}

func (q *sentQueue) push(end, bytes int64) {
	if n := len(q.entries); n > q.head && q.entries[n-1].bytes+bytes <= grain {
		q.entries[n-1].end = end
		q.entries[n-1].bytes += bytes
		return
	}
	if q.head > 0 && len(q.entries) == cap(q.entries) {
		n := copy(q.entries, q.entries[q.head:])
		q.entries, q.head = q.entries[:n], 0
	}
	q.entries = append(q.entries, sentEntry{end, bytes})
}

// acked returns how many bytes an acknowledgement frees.
func (q *sentQueue) acked(flushed int64) (bytes int64) {
	for q.head < len(q.entries) && q.entries[q.head].end <= flushed {
		bytes += q.entries[q.head].bytes
		q.head++
	}
	if q.head == len(q.entries) {
		q.entries, q.head = emptied(q.entries), 0
	}
	return bytes
}
