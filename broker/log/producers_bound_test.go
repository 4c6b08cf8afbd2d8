package log

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/broker/segment"
)

// produce appends one record as an idempotent producer.
func (e *env) produce(id int64, seq int32) error {
	_, err := e.append(batch(e.t, 1, 1, producerTag{id: id, seq: seq}, "v"), 0)
	return err
}

// commit flushes and acknowledges everything.
func (e *env) commit() {
	e.t.Helper()
	must(e.t, e.host.round(e.l))
	e.l.SetHighWatermark(e.l.Flushed())
}

func (e *env) producerIDs() (ids []int64) {
	states, _ := e.l.ProducerStates()
	for _, st := range states {
		ids = append(ids, st.ProducerID)
	}
	return ids
}

func boundedConfig(limit int) Config {
	cfg := testConfig()
	cfg.MaxProducers = limit
	return cfg
}

// TestProducersAreBounded: a new producer takes the place of the longest idle one, as long as no batch of that one may come again.
func TestProducersAreBounded(t *testing.T) {
	e := newEnv(t, boundedConfig(3))
	for id := range int64(3) {
		must(t, e.produce(id, 0))
	}
	refused := func(why string) {
		t.Helper()
		end := e.l.End()
		if err := e.produce(9, 0); !errors.Is(err, ErrTooManyProducers) || e.l.End() != end {
			t.Fatalf("%s: %v, end %d to %d", why, err, end, e.l.End())
		}
		if got := e.producerIDs(); !slices.Equal(got, []int64{0, 1, 2}) {
			t.Fatalf("%s: %v are left", why, got)
		}
	}
	e.clk.Advance(minProducerIdle)
	refused("nobody has acknowledged the batches")
	e.commit()
	must(t, e.produce(0, 1)) // those that are known go on
	e.commit()
	must(t, e.produce(9, 0))
	if got := e.producerIDs(); !slices.Equal(got, []int64{0, 2, 9}) {
		t.Fatalf("%v are left", got)
	}
	if err := e.produce(1, 1); !errors.Is(err, ErrUnknownProducer) {
		t.Fatalf("a producer that was forgotten goes on: %v", err)
	}
	e.commit()
	must(t, e.produce(2, 1))
	e.commit()
	if err := e.produce(1, 0); !errors.Is(err, ErrTooManyProducers) {
		t.Fatalf("all of them wrote within minProducerIdle: %v", err)
	}
	_, err := e.append(batch(t, 1, 1, noProducer, "v"), 0)
	must(t, err)
	e.clk.Advance(minProducerIdle - 1)
	if err := e.produce(1, 0); !errors.Is(err, ErrTooManyProducers) {
		t.Fatalf("a moment too early: %v", err)
	}
	e.clk.Advance(1)
	must(t, e.produce(1, 0))
	if got := e.producerIDs(); !slices.Equal(got, []int64{1, 2, 9}) {
		t.Fatalf("%v are left", got)
	}
}

// TestReplicasForgetTheSameProducers: a follower that knows no high watermark yet and has another clock, and a replay with and
// without snapshots, remember what the leader does.
func TestReplicasForgetTheSameProducers(t *testing.T) {
	const limit = 5
	leader, follower := newEnv(t, boundedConfig(limit)), newEnv(t, boundedConfig(limit))
	seqs := map[int64]int32{}
	for i := range int64(60) {
		id := (i * i) % 17
		if !slices.Contains(leader.producerIDs(), id) {
			seqs[id] = 0
		}
		must(t, leader.produce(id, seqs[id]))
		seqs[id]++
		leader.commit()
		leader.clk.Advance(minProducerIdle)
	}
	all, err := readAll(leader.l, 0, leader.l.End())
	must(t, err)
	for rest := all; len(rest) > 0; {
		n := header(t, rest).Size()
		_, err := follower.l.AppendAsFollower(bytes.Clone(rest[:n]))
		must(t, err)
		rest = rest[n:]
	}
	want := leader.producerIDs()
	if len(want) != limit {
		t.Fatalf("the leader remembers %v", want)
	}
	if got := follower.producerIDs(); !slices.Equal(got, want) {
		t.Errorf("the follower remembers %v, the leader %v", got, want)
	}
	must(t, follower.host.round(follower.l))
	follower.host.close()
	must(t, follower.reopen())
	if got := follower.producerIDs(); !slices.Equal(got, want) {
		t.Errorf("after a crash the follower remembers %v, the leader %v", got, want)
	}
	_ = follower.l.Close()
	follower.host.close()
	leader.closeAll()
}

// TestASnapshotOfMoreProducers: a file of a release without a bound, or of a larger one, is cut down to those that wrote last.
func TestASnapshotOfMoreProducers(t *testing.T) {
	var states []ProducerState
	for id := range int64(10) {
		states = append(states, ProducerState{ProducerID: id, Batches: []ProducerBatch{{Base: 90 - id}}})
	}
	e := newEnvOn(t, newDisk(t), boundedConfig(4), StartState{Offset: 100, Producers: states})
	if got := e.producerIDs(); !slices.Equal(got, []int64{0, 1, 2, 3}) {
		t.Errorf("%v are left", got)
	}
	// A smaller bound holds from the next append on.
	cfg := boundedConfig(2)
	must(t, e.l.SetConfig(cfg))
	e.clk.Advance(time.Hour)
	must(t, e.produce(50, 0))
	if got := e.producerIDs(); !slices.Equal(got, []int64{0, 50}) {
		t.Errorf("%v are left", got)
	}
	e.closeAll()
}

// TestTheLargestSnapshotCanBeRead: what a snapshot needs for a producer is what the bound of Config was computed from, and nothing is
// written that could not be read back.
func TestTheLargestSnapshotCanBeRead(t *testing.T) {
	var full ProducerState
	for i := range int64(rememberedBatches) {
		full.Batches = append(full.Batches, ProducerBatch{Base: i})
	}
	states := make([]ProducerState, 1000)
	for i := range states {
		states[i] = full
		states[i].ProducerID = int64(i)
	}
	file := encodeSnapshot(10, states)
	each := (len(file) - envelopeSize - snapshotHeader) / len(states)
	if most := int64(envelopeSize + snapshotHeader + each*maxProducers); each != snapshotProducer+rememberedBatches*snapshotBatch || most > maxEnvelope {
		t.Errorf("%d bytes for a producer, up to %d in all", each, most)
	}
	if err := fits("x", maxEnvelope); err != nil {
		t.Error(err)
	}
	if err := fits("x", maxEnvelope+1); err == nil {
		t.Error("a file is written that is too large to be read")
	}
	for _, n := range []int{0, -1, maxProducers + 1} {
		if err := boundedConfig(n).Validate(); err == nil {
			t.Errorf("maxProducers %d is accepted", n)
		}
	}
}

// TestProducerOrder: the list by last append and the map hold the same producers whatever happens to them.
func TestProducerOrder(t *testing.T) {
	ps := newProducers(4)
	check := func(when string, want ...int64) {
		t.Helper()
		var up, down []int64
		for p := ps.oldest; p != nil; p = p.newer {
			up = append(up, p.id)
		}
		for p := ps.newest; p != nil; p = p.older {
			down = append(down, p.id)
		}
		slices.Reverse(down)
		if !slices.Equal(up, want) || !slices.Equal(down, want) || len(ps.byID) != len(want) {
			t.Fatalf("%s: %v, backwards %v, %d in the map, want %v", when, up, down, len(ps.byID), want)
		}
	}
	at := int64(0)
	add := func(ids ...int64) {
		for _, id := range ids {
			ps.add(header(t, batch(t, 1, 1, producerTag{id: id}, "v")), at)
			at++
		}
	}
	add(1, 2, 3)
	check("added", 1, 2, 3)
	add(2, 1)
	check("wrote again", 3, 2, 1)
	add(4, 5, 6)
	check("one too many, twice", 1, 4, 5, 6)
	if n := ps.expire(6); n != 2 { // 1 wrote at 4, 4 at 5
		t.Fatalf("%d expired", n)
	}
	check("expired", 5, 6)
	if n := ps.expire(100); n != 2 {
		t.Fatalf("%d expired", n)
	}
	check("all expired")
	add(7)
	check("again", 7)
	ps.limit = 1
	add(8)
	check("a limit of one", 8)
}

// TestManyProducersAreCheap: a snapshot of the default limit is written and read.
func TestManyProducersAreCheap(t *testing.T) {
	limit := DefaultConfig().MaxProducers
	states := make([]ProducerState, limit+1)
	for i := range states {
		states[i] = ProducerState{ProducerID: int64(i), Batches: []ProducerBatch{{Base: int64(i)}}}
	}
	disk := newDisk(t)
	e := newEnvOn(t, disk, DefaultConfig(), StartState{Offset: int64(limit) + 1, Producers: states})
	got, err := readSnapshot(disk, testDir, int64(limit)+1)
	if err != nil || len(got) != limit || got[0].ProducerID != 1 {
		t.Fatalf("%d producers: %v", len(got), err)
	}
	if st, err := disk.Stat(segment.Path(testDir, int64(limit)+1, segment.ExtSnapshot)); err != nil || st.Size > 16<<20 {
		t.Errorf("%v, %v", fmt.Sprint(st.Size), err)
	}
	e.closeAll()
}
