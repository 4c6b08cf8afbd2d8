package client

import (
	"fmt"
	"iter"
	"time"

	"runnel.dev/runnel/record"
)

// Batch is what one frame brought of one partition, valid until the next Poll.
type Batch struct {
	TopicPartition
	// HighWatermark is where the partition's readable records ended when the broker sent the frame; -1 while a new leader does not know it yet.
	HighWatermark int64
	// NextOffset is the position behind the batch.
	NextOffset int64

	f *frame
}

// Records yields the records, each valid until the next one. An error ends the iteration; it is a *PartitionError.
func (b *Batch) Records() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for b.f.active {
			r, err := b.f.read()
			if (r == nil && err == nil) || !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Raw returns the frame as whole record batches (Kafka's format v2), borrowed. The first may begin before the position that was
// asked for, and checksums are not verified.
func (b *Batch) Raw() []byte { return b.f.raw }

// maxHeaderKeys bounds the header keys that a consumer remembers in order to not allocate them again.
const maxHeaderKeys = 1024

// frame iterates the records of one item. Only the reading goroutine uses it; it is reused.
type frame struct {
	cs     *Consumer
	active bool
	item   item
	batch  Batch
	raw    []byte // all of the item's batches
	rest   []byte // those not started yet
	open   bool   // reader is within a batch
	at     int64  // the claim's position as this frame has left it
	stop   int64  // with UntilEnd; else -1

	reader  record.Reader
	rec     record.Record
	out     Record
	headers []Header
	keys    map[string]string
}

func (f *frame) start(cs *Consumer, it item) {
	f.cs, f.item, f.active, f.open = cs, it, true, false
	f.raw = it.batch.ReadOnlyData()
	f.rest = f.raw
	f.at, f.stop = it.claim.cursor.Load(), it.claim.end
	f.out.Topic, f.out.Partition = it.claim.sub.tp.Topic, it.claim.sub.tp.Partition
	f.batch = Batch{TopicPartition: it.claim.sub.tp, HighWatermark: it.hw, NextOffset: it.next, f: f}
}

// read returns the next record; neither record nor error: the frame is finished or its claim revoked.
func (f *frame) read() (*Record, error) {
	for {
		if !f.open {
			if len(f.rest) == 0 {
				return nil, nil //nolint:nilnil // the end
			}
			if err := f.nextBatch(); err != nil {
				return nil, err
			}
			continue
		}
		if !f.reader.Next(&f.rec) {
			f.open = false
			if err := f.reader.Err(); err != nil {
				return nil, f.corrupt(err)
			}
			continue
		}
		if f.rec.Offset < f.at {
			continue // batches are sent whole, the first may begin before the position
		}
		if (f.stop >= 0 && f.rec.Offset >= f.stop) || !f.item.claim.move(f.at, f.rec.Offset+1) {
			f.open, f.rest = false, nil
			return nil, nil //nolint:nilnil // the end
		}
		f.at = f.rec.Offset + 1
		return f.fill(), nil
	}
}

func (f *frame) nextBatch() error {
	batch, rest, err := record.NextFrame(f.rest)
	if err != nil {
		return f.corrupt(err)
	}
	f.rest = rest
	h, err := record.ParseHeader(batch)
	if err != nil {
		return f.corrupt(err)
	}
	if h.NextOffset() <= f.at || h.Attributes.Control() {
		return nil
	}
	if err := f.reader.Reset(batch); err != nil {
		return f.corrupt(err)
	}
	f.open = true
	return nil
}

func (f *frame) fill() *Record {
	r := &f.out
	r.Offset, r.Key, r.Value = f.rec.Offset, f.rec.Key, f.rec.Value
	r.Timestamp = time.UnixMilli(f.rec.Timestamp)
	r.Headers = nil
	if len(f.rec.Headers) > 0 {
		f.headers = f.headers[:0]
		for _, h := range f.rec.Headers {
			f.headers = append(f.headers, Header{Key: f.key(h.Key), Value: h.Value})
		}
		r.Headers = f.headers
	}
	return r
}

// key returns a header key as a string, the same one for the same bytes.
func (f *frame) key(b []byte) string {
	if k, ok := f.keys[string(b)]; ok {
		return k
	}
	if f.keys == nil || len(f.keys) >= maxHeaderKeys {
		f.keys = make(map[string]string)
	}
	k := string(b)
	f.keys[k] = k
	return k
}

// corrupt ends the frame and the partition, which waits for a seek.
func (f *frame) corrupt(err error) error {
	f.open, f.rest = false, nil
	s := f.item.claim.sub
	perr := &PartitionError{s.tp, fmt.Errorf("%w: at offset %d: %w", ErrCorrupt, f.at, err)}
	f.cs.mu.Lock()
	defer f.cs.mu.Unlock()
	if s.claim == f.item.claim {
		f.cs.revokeLocked(s)
		s.failed = true
	}
	return perr
}

// finish counts the rest of the frame as read.
func (f *frame) finish() {
	to := f.item.next
	if f.stop >= 0 {
		to = min(to, max(f.stop, f.at))
	}
	f.item.claim.move(f.at, to)
	f.active, f.open, f.raw, f.rest = false, false, nil, nil
}
