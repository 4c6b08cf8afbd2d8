package log

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// A producer snapshot, version 1: the frame of envelope.go with magic "RNLP" around
//
//	byte 0        8       12
//	     +--------+-------+------------------------------+
//	     | offset | count | count × producer             |
//	     +--------+-------+------------------------------+
//
//	producer:  id 8 | epoch 2 | batches 1 | zero 1 | last active 8 | batches × batch
//	batch:     first sequence 4 | last sequence 4 | base offset 8 | max timestamp 8       oldest first
//
// It is the state at offset, which is also the name of the file: everything below it counts, nothing from it on.
const (
	snapshotHeader   = 12
	snapshotProducer = 20
	snapshotBatch    = 24
)

var snapshotFormat = format{magic: "RNLP", version: 1}

func encodeSnapshot(offset int64, states []ProducerState) []byte {
	be := binary.BigEndian
	b := make([]byte, 0, snapshotHeader+len(states)*(snapshotProducer+rememberedBatches*snapshotBatch))
	b = be.AppendUint64(b, uint64(offset))      // #nosec G115 -- not negative
	b = be.AppendUint32(b, uint32(len(states))) // #nosec G115 -- bounded by Config.MaxProducers
	for _, p := range states {
		b = be.AppendUint64(b, uint64(p.ProducerID))   // #nosec G115 -- bits kept
		b = be.AppendUint16(b, uint16(p.Epoch))        // #nosec G115 -- bits kept
		b = append(b, byte(len(p.Batches)), 0)         // #nosec G115 -- at most five
		b = be.AppendUint64(b, uint64(p.LastActiveMS)) // #nosec G115 -- bits kept
		for _, q := range p.Batches {
			b = be.AppendUint32(b, uint32(q.FirstSequence)) // #nosec G115 -- bits kept
			b = be.AppendUint32(b, uint32(q.LastSequence))  // #nosec G115 -- bits kept
			b = be.AppendUint64(b, uint64(q.Base))          // #nosec G115 -- bits kept
			b = be.AppendUint64(b, uint64(q.MaxTimestamp))  // #nosec G115 -- bits kept
		}
	}
	return seal(snapshotFormat, b)
}

// decodeSnapshot checks everything, the ranges included.
func decodeSnapshot(name string, file []byte) (offset int64, states []ProducerState, err error) {
	b, err := unseal(name, snapshotFormat, file)
	if err != nil {
		return 0, nil, err
	}
	d := decoder{name: name, b: b}
	offset = d.int64()
	count := d.uint32()
	if d.err == nil && int64(count)*snapshotProducer > int64(len(d.b)) {
		d.fail("%d producers do not fit %d bytes", count, len(d.b))
	}
	for i := uint32(0); i < count && d.err == nil; i++ {
		p := ProducerState{ProducerID: d.int64(), Epoch: int16(d.uint16())} // #nosec G115 -- bits kept
		n := d.uint16()
		p.LastActiveMS = d.int64()
		if n&0xff != 0 || n>>8 > rememberedBatches || p.ProducerID < 0 || p.Epoch < 0 {
			d.fail("producer %d, epoch %d, %d batches", p.ProducerID, p.Epoch, n>>8)
			break
		}
		for range n >> 8 {
			q := ProducerBatch{FirstSequence: d.int32(), LastSequence: d.int32(), Base: d.int64(), MaxTimestamp: d.int64()}
			if q.FirstSequence < 0 || q.LastSequence < 0 || q.Base < 0 || q.Base >= offset {
				d.fail("producer %d: sequences %d to %d at offset %d", p.ProducerID, q.FirstSequence, q.LastSequence, q.Base)
			}
			p.Batches = append(p.Batches, q)
		}
		states = append(states, p)
	}
	if d.err == nil && (len(d.b) > 0 || offset < 0) {
		d.fail("offset %d, %d bytes behind the last producer", offset, len(d.b))
	}
	return offset, states, d.err
}

func sortProducers(s []ProducerState) {
	slices.SortFunc(s, func(a, b ProducerState) int { return cmp.Compare(a.ProducerID, b.ProducerID) })
}

// decoder takes fields off b; the first fault sticks.
type decoder struct {
	name string
	b    []byte
	pos  int64
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = &CorruptError{File: d.name, Position: envelopeSize + d.pos, Detail: fmt.Sprintf(format, args...)}
	}
}

func (d *decoder) take(n int) []byte {
	if d.err == nil && len(d.b) < n {
		d.fail("%d bytes where %d are needed", len(d.b), n)
	}
	if d.err != nil {
		return make([]byte, min(n, 16))
	}
	b := d.b[:n]
	d.b, d.pos = d.b[n:], d.pos+int64(n)
	return b
}

func (d *decoder) uint16() uint16 { return binary.BigEndian.Uint16(d.take(2)) }
func (d *decoder) uint32() uint32 { return binary.BigEndian.Uint32(d.take(4)) }
func (d *decoder) int32() int32   { return int32(d.uint32()) }                         // #nosec G115 -- bits kept
func (d *decoder) int64() int64   { return int64(binary.BigEndian.Uint64(d.take(8))) } // #nosec G115 -- bits kept

// bytes takes a length-prefixed string of bytes.
func (d *decoder) bytes() []byte {
	n := d.uint32()
	if d.err == nil && int64(n) > int64(len(d.b)) {
		d.fail("length %d, %d bytes are left", n, len(d.b))
	}
	if d.err != nil {
		return nil
	}
	return append([]byte(nil), d.take(int(n))...)
}
