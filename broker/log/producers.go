package log

import (
	"math"

	"runnel.dev/runnel/record"
)

// rememberedBatches is how many batches of each producer are kept to recognise duplicates: as many as a producer may
// have in flight.
const rememberedBatches = 5

// pastBatch is what is remembered of one batch.
type pastBatch struct {
	first, last  int32 // sequences
	base         int64 // offset of the first record
	maxTimestamp int64 // ms
}

// delta returns the last offset delta. Sequences count records, and wrap from MaxInt32 to 0.
func (b pastBatch) delta() int32 {
	return int32((int64(b.last) - int64(b.first)) & math.MaxInt32) // #nosec G115 -- masked
}

// producer is one idempotent producer's state.
type producer struct {
	epoch      int16
	n          uint8 // batches remembered, the last n of the ring below
	next       uint8 // where the next one goes
	lastActive int64 // broker time of the last append in ms
	ring       [rememberedBatches]pastBatch
}

// at returns the i-th newest batch; i < n.
func (p *producer) at(i int) pastBatch {
	return p.ring[(int(p.next)+2*rememberedBatches-1-i)%rememberedBatches]
}

func (p *producer) push(b pastBatch) {
	p.ring[p.next] = b
	p.next = (p.next + 1) % rememberedBatches
	if p.n < rememberedBatches {
		p.n++
	}
}

// producers is the producer state at the log end. Guarded by appendMu.
type producers struct{ byID map[int64]*producer }

func newProducers() *producers { return &producers{} }

// check decides about the next batch: ok with the original if it is a duplicate of one of the last five, an error if it
// is neither that nor the next in sequence.
func (ps *producers) check(h record.Header) (dup pastBatch, ok bool, err error) {
	if h.ProducerID < 0 {
		return pastBatch{}, false, nil
	}
	p := ps.byID[h.ProducerID]
	switch {
	case p == nil && h.BaseSequence != 0:
		return pastBatch{}, false, &unknownProducerError{id: h.ProducerID, sequence: h.BaseSequence}
	case p == nil:
		return pastBatch{}, false, nil
	case h.ProducerEpoch < p.epoch:
		return pastBatch{}, false, &producerFencedError{id: h.ProducerID, epoch: h.ProducerEpoch, current: p.epoch}
	case h.ProducerEpoch > p.epoch:
		if h.BaseSequence != 0 {
			return pastBatch{}, false, &SequenceError{ProducerID: h.ProducerID, Epoch: h.ProducerEpoch, Expected: 0, Got: h.BaseSequence}
		}
		return pastBatch{}, false, nil
	}
	last := h.LastSequence()
	for i := range int(p.n) {
		if b := p.at(i); b.first == h.BaseSequence && b.last == last {
			return b, true, nil
		}
	}
	if expected := p.expected(); h.BaseSequence != expected {
		return pastBatch{}, false, &SequenceError{ProducerID: h.ProducerID, Epoch: h.ProducerEpoch, Expected: expected, Got: h.BaseSequence}
	}
	return pastBatch{}, false, nil
}

func (p *producer) expected() int32 {
	if p.n == 0 {
		return 0
	}
	last := p.at(0).last
	if last == math.MaxInt32 {
		return 0
	}
	return last + 1
}

// add takes an appended batch. It does not check: what is in the log is so.
func (ps *producers) add(h record.Header, nowMS int64) {
	if h.ProducerID < 0 {
		return
	}
	p := ps.byID[h.ProducerID]
	if p == nil {
		if ps.byID == nil {
			ps.byID = make(map[int64]*producer)
		}
		p = &producer{epoch: h.ProducerEpoch}
		ps.byID[h.ProducerID] = p
	}
	if p.epoch != h.ProducerEpoch {
		*p = producer{epoch: h.ProducerEpoch}
	}
	p.lastActive = nowMS
	p.push(pastBatch{first: h.BaseSequence, last: h.LastSequence(), base: h.BaseOffset, maxTimestamp: h.MaxTimestamp})
}

// expire forgets producers that have not written since beforeMS. It goes by the broker's clock at append, not by
// record timestamps: a backfill of old records would be forgotten at once.
func (ps *producers) expire(beforeMS int64) int {
	n := 0
	for id, p := range ps.byID {
		if p.lastActive < beforeMS {
			delete(ps.byID, id)
			n++
		}
	}
	return n
}

// ProducerBatch is one remembered batch of a producer.
type ProducerBatch struct {
	FirstSequence, LastSequence int32
	Base                        int64 // offset of the first record
	MaxTimestamp                int64 // ms
}

// ProducerState is what a log remembers of one idempotent producer.
type ProducerState struct {
	ProducerID   int64
	Epoch        int16
	LastActiveMS int64           // broker time of the last append
	Batches      []ProducerBatch // oldest first, at most five
}

func (ps *producers) export() []ProducerState {
	out := make([]ProducerState, 0, len(ps.byID))
	for id, p := range ps.byID {
		st := ProducerState{ProducerID: id, Epoch: p.epoch, LastActiveMS: p.lastActive}
		for i := int(p.n) - 1; i >= 0; i-- {
			b := p.at(i)
			st.Batches = append(st.Batches, ProducerBatch{FirstSequence: b.first, LastSequence: b.last, Base: b.base, MaxTimestamp: b.maxTimestamp})
		}
		out = append(out, st)
	}
	sortProducers(out)
	return out
}

func importProducers(states []ProducerState) *producers {
	ps := &producers{byID: make(map[int64]*producer, len(states))}
	for _, st := range states {
		p := &producer{epoch: st.Epoch, lastActive: st.LastActiveMS}
		for _, b := range st.Batches[max(0, len(st.Batches)-rememberedBatches):] {
			p.push(pastBatch{first: b.FirstSequence, last: b.LastSequence, base: b.Base, maxTimestamp: b.MaxTimestamp})
		}
		ps.byID[st.ProducerID] = p
	}
	return ps
}

// ProducerStates returns the state of all producers at the log end, ordered by id, and that end. Waits for an append in
// progress.
func (l *Log) ProducerStates() (states []ProducerState, end int64) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	return l.w.producers.export(), l.end.Load()
}
