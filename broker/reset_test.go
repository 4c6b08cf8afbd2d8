package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/clock"
)

// starts answers what a leader would.
type starts struct {
	state log.StartState
	err   error
}

func (s starts) StartState(context.Context, int32, metadata.PartitionRef, int32, int64) (log.StartState, error) {
	return s.state, s.err
}

// resettable is a host whose cache shows a topic, and that follows its only partition.
func resettable(t *testing.T, answer starts) (*fixture, *partition.Partition, *clock.Fake) {
	t.Helper()
	f := newFixture(t)
	clk := clock.NewFake(time.Now())
	f.clk, f.origin, f.starts = clk, clk.Now(), answer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.cache.Run(ctx) }()
	t.Cleanup(func() {
		f.resets.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	tp, err := f.client.CreateTopic(ctx, metadata.NewTopic{Name: "t", Partitions: 1, Replicas: 1, Config: &runnelv1.TopicConfig{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.cache.Wait(ctx, func(s *metadata.State) bool { _, ok := s.TopicByID(tp.ID); return ok }); err != nil {
		t.Fatal(err)
	}
	p := part(tp)
	f.log(p)
	f.pass(ctx, state(10, []*metadata.Topic{tp}, elsewhere(p)), nil)
	here, ok := f.lookup(p.PartitionRef)
	if !ok {
		t.Fatal("no partition")
	}
	return f, here, clk
}

func (f *fixture) looksAgain() bool {
	select {
	case <-f.again:
		return true
	default:
		return false
	}
}

// A log that cannot be made anew has its partition made anew, which asks for the same: not without a pause.
func TestAResetThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	f, here, clk := resettable(t, starts{state: log.StartState{Offset: 5, Epochs: []log.EpochStart{{Epoch: -1}}}})
	f.Reset(here, me+1, 1, 5)
	if err := clk.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if !here.Closed() || f.looksAgain() {
		t.Errorf("closed %v, and looked at again at once", here.Closed())
	}
	clk.Advance(hostInterval)
	f.resets.Wait()
	if !f.looksAgain() {
		t.Error("nobody looks again")
	}
}

// Without an answer of the leader nothing has changed: the partition goes on, and nobody looks at everything for it.
func TestAResetWithoutTheLeadersStateChangesNothing(t *testing.T) {
	f, here, _ := resettable(t, starts{err: errors.New("no answer")})
	f.Reset(here, me+1, 1, 5)
	f.resets.Wait()
	if here.Closed() || f.looksAgain() {
		t.Errorf("closed %v", here.Closed())
	}
}

func TestAResetMakesTheLogAnew(t *testing.T) {
	f, here, _ := resettable(t, starts{state: log.StartState{Offset: 5}})
	f.Reset(here, me+1, 1, 5)
	f.resets.Wait()
	l, ok := f.store.Log(here.TopicID(), here.Number())
	if !ok || l == here.Log() || l.End() != 5 || !here.Closed() || !f.looksAgain() {
		t.Errorf("log anew: %v, closed %v", ok && l != here.Log(), here.Closed())
	}
	// A partition that a pass made over the old log meanwhile wants the same.
	late := partition.New(partition.Config{Context: t.Context(), Log: here.Log(), Clock: f.clk})
	f.Reset(late, me+1, 1, 5)
	f.resets.Wait()
	if now, _ := f.store.Log(here.TopicID(), here.Number()); now != l {
		t.Error("the new log was replaced")
	}
}

// While the leader was asked, the log was made the one that the cluster counts on.
func TestALogThatTheClusterCountsOnIsNotReset(t *testing.T) {
	f, here, _ := resettable(t, starts{state: log.StartState{Offset: 5}})
	tp, _ := f.cache.Snapshot().TopicByID(here.TopicID())
	tenure, ok, err := f.client.AcquireController(t.Context(), me, f.reg.Epoch())
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	p := f.led(part(tp), here.Log().LogID())
	if r, err := f.client.CreatePartitions(t.Context(), tenure, tp, []*metadata.Partition{p}); err != nil || r.Count() != 1 {
		t.Fatal(r, err)
	}
	if _, err := f.cache.Wait(t.Context(), func(s *metadata.State) bool { _, ok := s.Partition(tp.ID, 0); return ok }); err != nil {
		t.Fatal(err)
	}
	f.Reset(here, me+1, 1, 5)
	f.resets.Wait()
	if l, ok := f.store.Log(tp.ID, 0); !ok || l != here.Log() || here.Closed() {
		t.Error("the log was replaced")
	}
}
