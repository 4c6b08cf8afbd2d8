package log

import (
	"cmp"
	"math"
	"slices"
	"time"

	"runnel.dev/runnel/record"
)

// rememberedBatches is how many batches of each producer are kept to recognise duplicates: as many as a producer may
// have in flight.
const rememberedBatches = 5

// minProducerIdle is how long a producer has to be idle before another one may take its place: longer than clients retry a batch
// (two minutes, unless they are told otherwise).
const minProducerIdle = 5 * time.Minute

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
	id           int64
	older, newer *producer // by last append

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

// lastBase returns the base offset of the last batch, -1 if none is remembered.
func (p *producer) lastBase() int64 {
	if p.n == 0 {
		return -1
	}
	return p.at(0).base
}

// producers is the producer state at the log end. Guarded by appendMu.
//
// Any client can make up producer ids, so there are at most limit of them, and the longest idle one gives way to a new one. What is
// forgotten follows from the batches in the log alone: "longest idle" goes by the offset of the last batch, not by a clock. So all
// replicas, and a replay after a crash, forget the same ones.
//
// Why that is safe: a producer that was forgotten and goes on gets ErrUnknownProducer, because its sequence is not 0; nothing is
// appended twice, and the client begins anew with another id. Only its very first batch, with sequence 0, would be taken for that of
// a new producer if it came again. So the leader lets go of no producer whose last batch may still be retried: one at or above the
// high watermark, which nobody has acknowledged, or one that wrote within minProducerIdle. As long as there is no other to let go of,
// new producers are refused (admit), and those that are known go on.
type producers struct {
	byID           map[int64]*producer
	oldest, newest *producer
	limit          int
	// maxID is the largest id that was ever added, -1 before the first.
	maxID int64
}

func newProducers(limit int) *producers { return &producers{limit: limit, maxID: -1} }

// admit returns an error if h is of a new producer for which there is no room. For leaders: what a leader has admitted, followers
// take.
func (ps *producers) admit(h record.Header, highWatermark int64, now time.Time) error {
	if h.ProducerID < 0 || len(ps.byID) < ps.limit || ps.byID[h.ProducerID] != nil {
		return nil
	}
	idle := now.Sub(time.UnixMilli(ps.oldest.lastActive))
	if ps.oldest.lastBase() < highWatermark && idle >= minProducerIdle {
		return nil
	}
	return &tooManyProducersError{id: h.ProducerID, limit: ps.limit, idle: idle}
}

// makeRoom forgets the longest idle producers until there is room for n more.
func (ps *producers) makeRoom(n int) {
	for len(ps.byID) > 0 && len(ps.byID)+n > ps.limit {
		ps.forget(ps.oldest)
	}
}

func (ps *producers) forget(p *producer) {
	ps.unlink(p)
	delete(ps.byID, p.id)
}

func (ps *producers) unlink(p *producer) {
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		ps.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		ps.newest = p.older
	}
	p.older, p.newer = nil, nil
}

// link makes p the newest one.
func (ps *producers) link(p *producer) {
	p.older = ps.newest
	if ps.newest != nil {
		ps.newest.newer = p
	} else {
		ps.oldest = p
	}
	ps.newest = p
}

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
		ps.makeRoom(1)
		p = ps.insert(h.ProducerID)
		p.epoch = h.ProducerEpoch
	} else {
		ps.unlink(p)
		ps.link(p)
	}
	if p.epoch != h.ProducerEpoch {
		p.epoch, p.n, p.next = h.ProducerEpoch, 0, 0
	}
	p.lastActive = nowMS
	p.push(pastBatch{first: h.BaseSequence, last: h.LastSequence(), base: h.BaseOffset, maxTimestamp: h.MaxTimestamp})
}

// insert adds an empty producer as the newest one.
func (ps *producers) insert(id int64) *producer {
	if ps.byID == nil {
		ps.byID = make(map[int64]*producer)
	}
	p := &producer{id: id}
	ps.maxID = max(ps.maxID, id)
	ps.byID[id] = p
	ps.link(p)
	return p
}

// expire forgets producers that have not written since beforeMS. It goes by the broker's clock at append, not by
// record timestamps: a backfill of old records would be forgotten at once.
func (ps *producers) expire(beforeMS int64) int {
	n := 0
	for _, p := range ps.byID {
		if p.lastActive < beforeMS {
			ps.forget(p)
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

// importProducers takes over an exported state; of more than limit producers, the least idle ones.
func importProducers(states []ProducerState, limit int) *producers {
	last := func(st ProducerState) int64 {
		if n := len(st.Batches); n > 0 {
			return st.Batches[n-1].Base
		}
		return -1
	}
	states = slices.Clone(states)
	slices.SortFunc(states, func(a, b ProducerState) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	ps := newProducers(limit)
	for _, st := range states {
		ps.maxID = max(ps.maxID, st.ProducerID)
	}
	states = states[max(0, len(states)-limit):]
	for _, st := range states {
		p := ps.byID[st.ProducerID]
		if p != nil {
			ps.forget(p) // the state of another replica names it twice
		}
		p = ps.insert(st.ProducerID)
		p.epoch, p.lastActive = st.Epoch, st.LastActiveMS
		for _, b := range st.Batches[max(0, len(st.Batches)-rememberedBatches):] {
			p.push(pastBatch{first: b.FirstSequence, last: b.LastSequence, base: b.Base, maxTimestamp: b.MaxTimestamp})
		}
	}
	return ps
}

// MaxProducerID returns the largest producer id that the log has seen, -1 if none: of the producers that it remembers, and of those that
// it has forgotten since it was opened. Waits for an append in progress.
func (l *Log) MaxProducerID() int64 {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	return l.w.producers.maxID
}

// ProducerStates returns the state of all producers at the log end, ordered by id, and that end. Waits for an append in
// progress.
func (l *Log) ProducerStates() (states []ProducerState, end int64) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	return l.w.producers.export(), l.end.Load()
}
