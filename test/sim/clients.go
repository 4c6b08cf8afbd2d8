package sim

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/record"
)

// sent is one batch of a producer.
type sent struct {
	batch   []byte
	numbers []uint64
	began   time.Duration
	relaxed bool
	done    bool
}

// producer writes to one partition. An idempotent one keeps a few batches in flight and sends each again until it is acknowledged; a plain one
// sends one batch at a time, and once.
type producer struct {
	*world
	index      int // of the partition
	lane       int32
	idempotent bool
	id         int64
	sequence   int32
	leader     int32
	flight     []*sent
	// round is the connection: after an error it is given up, and all that is unresolved is sent again on the next one. Requests
	// and answers arrive in order.
	round   int
	arrived time.Duration
	replied time.Duration
	epoch   int32 // the newest that it was told of
	backOff bool
	anyAck  bool
	stopped bool
	history []history.Send
	places  map[uint64]int
	next    uint64
}

const (
	produceTimeout = 1500 * time.Millisecond
	maxInFlight    = 5
)

func (w *world) newProducer(index int, lane int32, idempotent bool) *producer {
	p := &producer{world: w, index: index, lane: lane, idempotent: idempotent, id: -1, epoch: -1, places: map[uint64]int{}}
	if idempotent {
		p.id = int64(lane) + 1000
	}
	w.after(w.between(time.Second, 2*time.Second), p.produce)
	return p
}

// produce sends the next batch, after a while the next one, and so on.
func (p *producer) produce() {
	if p.stopped {
		return
	}
	gap := p.between(p.knobs.produceGap/2, p.knobs.produceGap*3/2)
	if len(p.flight) >= maxInFlight || !p.idempotent && len(p.flight) > 0 {
		p.after(gap, p.produce)
		return
	}
	s := p.build()
	p.flight = append(p.flight, s)
	if !p.backOff {
		p.send(s)
	}
	p.after(gap, p.produce)
}

func (p *producer) build() *sent {
	s := &sent{began: p.now, relaxed: !p.idempotent && p.chance(0.1)}
	b := record.NewBuilder(record.CodecNone)
	n := 1 + p.rng.IntN(3)
	ts := wallStart.Add(p.now).UnixMilli()
	for range n {
		p.next++
		value := make([]byte, 12+p.rng.IntN(60))
		binary.BigEndian.PutUint64(value, p.next)
		binary.BigEndian.PutUint32(value[8:], uint32(p.lane)) // #nosec G115 -- small
		b.Append(ts, nil, value, nil)
		s.numbers = append(s.numbers, p.next)
		p.places[p.next] = len(p.history)
		p.history = append(p.history, history.Send{Partition: p.lane, Number: p.next, Began: int64(p.now)})
	}
	if p.idempotent {
		b.SetProducer(p.id, 0, p.sequence)
		p.sequence += int32(n) // #nosec G115 -- small
	}
	batch, err := b.Build(nil)
	p.must(err)
	s.batch = batch
	return s
}

func (p *producer) send(s *sent) {
	round := p.round
	answered := false
	answer := func(r produced) {
		if answered {
			return
		}
		answered = true
		p.answered(s, round, r)
	}
	epoch := int32(-1)
	if p.chance(0.3) {
		epoch = p.epoch
	}
	p.arrived = max(p.arrived, p.now+p.between(50*time.Microsecond, 800*time.Microsecond))
	p.net.client(p.nodes[p.leader], p.arrived-p.now, func(b *proc) {
		pt := b.parts[p.index]
		reply := func(r produced) {
			p.replied = max(p.replied, p.now+p.between(50*time.Microsecond, 800*time.Microsecond))
			p.after(p.replied-p.now, func() { answer(r) })
		}
		if pt == nil || pt.held.Log == nil {
			reply(produced{err: errNotLeader})
			return
		}
		pt.produce(s.batch, epoch, s.relaxed, reply)
	})
	p.after(produceTimeout, func() { answer(produced{err: errUnknownResult}) })
}

func (p *producer) answered(s *sent, round int, r produced) {
	if s.done || p.idempotent && round != p.round {
		return // of a connection that was given up
	}
	p.epoch = max(p.epoch, r.epoch)
	if r.err == nil {
		p.finish(s, history.Acked, r.base)
		return
	}
	if errors.Is(r.err, log.ErrUnknownProducer) && p.anyAck && !p.check.ledgers[p.index].forced {
		p.fail(invProducerState, "%s: producer %d was acknowledged, and is unknown in epoch %d: %v", p.name(p.refs[p.index]), p.id, r.epoch, r.err)
	}
	if !p.idempotent {
		outcome := history.NotWritten
		if errors.Is(r.err, errUnknownResult) {
			outcome = history.Unknown
		}
		p.finish(s, outcome, -1)
		p.guess()
		return
	}
	p.retry()
}

// retry sends all that is unresolved again, in order, after a while.
func (p *producer) retry() {
	p.round++
	p.backOff = true
	round := p.round
	p.guess()
	p.after(p.between(20*time.Millisecond, 150*time.Millisecond), func() {
		if round != p.round {
			return
		}
		p.backOff = false
		for _, s := range slices.Clone(p.flight) {
			p.send(s)
		}
	})
}

// guess is what a client does after an error: it asks anybody who leads. Now and then the answer is out of date.
func (p *producer) guess() { p.leader = p.leaderGuess(p.index) }

func (w *world) leaderGuess(index int) int32 {
	if l := w.check.ledgers[index]; l.record != nil && l.record.Leader >= 0 && w.chance(0.85) {
		return l.record.Leader
	}
	return int32(w.rng.IntN(len(w.nodes))) // #nosec G115 -- small
}

func (p *producer) finish(s *sent, outcome history.Outcome, base int64) {
	s.done = true
	p.flight = slices.DeleteFunc(p.flight, func(o *sent) bool { return o == s })
	if outcome == history.Acked {
		p.anyAck = p.anyAck || !s.relaxed
		if s.relaxed {
			outcome = history.Unknown
		}
	}
	for i, n := range s.numbers {
		h := &p.history[p.places[n]]
		h.Outcome, h.Ended = outcome, int64(p.now)
		if outcome == history.Acked {
			h.Offset = base + int64(i)
		}
	}
}

// consumer reads one partition from its beginning, and now and then asks where it ends.
type consumer struct {
	*world
	index   int
	leader  int32
	at      int64
	epoch   int32
	waiting bool
	lastHW  int64
	hwEpoch int32
}

func (w *world) newConsumer(index int) *consumer {
	c := &consumer{world: w, index: index}
	w.after(w.between(time.Second, 2*time.Second), c.poll)
	w.after(w.between(time.Second, 2*time.Second), c.askLatest)
	return c
}

// fetched is the answer to a fetch.
type fetched struct {
	batches         []byte
	next            int64
	hw, start       int64
	epoch           int32
	err             error
	earliest, limit int64
}

func (c *consumer) poll() {
	again := c.between(20*time.Millisecond, 120*time.Millisecond)
	if !c.waiting {
		c.waiting = true
		done := false
		finish := func(f fetched) {
			if !done {
				done, c.waiting = true, false
				c.take(&f)
			}
		}
		at := c.at
		c.net.client(c.nodes[c.leader], c.between(50*time.Microsecond, 800*time.Microsecond), func(b *proc) {
			f := b.fetch(c.index, at)
			c.after(c.between(50*time.Microsecond, 800*time.Microsecond), func() { finish(f) })
		})
		c.after(produceTimeout, func() { finish(fetched{err: errUnknownResult}) })
	}
	c.after(again, c.poll)
}

// fetch reads committed batches, as partition.Read does.
func (p *proc) fetch(index int, at int64) fetched {
	pt := p.parts[index]
	if pt == nil || pt.held.Log == nil || !pt.status.Leading {
		return fetched{err: errNotLeader}
	}
	l := pt.held.Log
	f := fetched{hw: l.HighWatermark(), start: l.LogStart(), epoch: pt.status.Epoch, earliest: l.LogStart(), limit: l.End()}
	r, err := l.ReadRange(at, 16<<10, f.hw)
	if err != nil {
		f.err = err
		return f
	}
	defer r.Release()
	f.batches, f.next = make([]byte, r.Len), r.Next
	f.err = r.ReadInto(f.batches)
	return f
}

func (c *consumer) take(f *fetched) {
	l := c.check.ledgers[c.index]
	switch {
	case errors.Is(f.err, log.ErrOffsetOutOfRange):
		switch {
		case f.epoch < c.epoch: // of somebody who does not know yet that he was replaced
		case c.at < f.earliest:
			if f.earliest > l.asked {
				c.fail(invLogStart, "%s begins at %d, asked for was %d", c.name(l.ref), f.earliest, l.asked)
			}
			c.at = f.earliest
		case !l.forced:
			c.fail(invReadCommitted, "%s: epoch %d ends at %d, and %d was read in epoch %d", c.name(l.ref), f.epoch, f.limit, c.at, c.epoch)
		default:
			c.at = f.limit
		}
		return
	case f.err != nil:
		c.leader = c.leaderGuess(c.index)
		return
	}
	if f.epoch == c.hwEpoch && f.hw < c.lastHW {
		c.fail(invHWForward, "%s epoch %d: a reader was told %d after %d", c.name(l.ref), f.epoch, f.hw, c.lastHW)
	}
	c.lastHW, c.hwEpoch = f.hw, f.epoch
	for b := f.batches; len(b) > 0; {
		batch, rest, err := record.NextFrame(b)
		c.must(err)
		h, err := record.ParseHeader(batch)
		c.must(err)
		if h.BaseOffset > c.at || h.NextOffset() <= c.at {
			c.fail(invReadCommitted, "%s: a reader at %d got %d to %d", c.name(l.ref), c.at, h.BaseOffset, h.NextOffset())
		}
		if i, found := l.at(h.BaseOffset); !found || l.batches[i].hash != crc32.Checksum(batch, castagnoli) {
			if !l.forced {
				c.fail(invReadCommitted, "%s: a reader got what was not committed at %d", c.name(l.ref), h.BaseOffset)
			}
		}
		c.at, b = h.NextOffset(), rest
	}
	c.epoch = max(c.epoch, f.epoch)
}

// askLatest asks for the latest offset, which is at or above all that clients knew before they asked, unless the broker has been replaced.
func (c *consumer) askLatest() {
	l := c.check.ledgers[c.index]
	epoch, known := l.ackedEpoch, l.latest
	c.net.client(c.nodes[c.leaderGuess(c.index)], c.between(50*time.Microsecond, 800*time.Microsecond), func(b *proc) {
		pt := b.parts[c.index]
		if pt == nil || pt.held.Log == nil {
			return
		}
		v, in, err := pt.latest(-1)
		if err != nil || in < epoch || l.forced {
			return
		}
		if v < known {
			c.fail(invLatest, "%s: broker %d says %d in epoch %d, known was %d in epoch %d", c.name(l.ref), b.node.id, v, in, known, epoch)
		}
		c.check.told(l, in, v)
	})
	c.after(c.between(30*time.Millisecond, 200*time.Millisecond), c.askLatest)
}
