package broker

import (
	"testing"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// An attempt stayed unanswered, and then the broker had to register anew. The metadata refuse to be asked again under the new registration,
// which says nothing about the first attempt: it may have been applied, and then the next leader is chosen from its members.
func TestAnUnsettledISRChangeStaysSoWhenTheRegistrationIsReplaced(t *testing.T) {
	f := newFixture(t)
	clk := clock.NewFake(time.Now())
	f.clk, f.origin = clk, clk.Now()
	w := newISRWriter(f.client, f.cache, f.reg, func(*metadata.State, *metadata.Partition) int { return 1 }, f.clk, quiet)
	f.writer = w
	tp := topic("t")
	p := f.led(part(tp), f.log(part(tp)))
	p.Replicas = append(p.Replicas, me+1)
	p.ISR = append(p.ISR, metadata.Member{BrokerID: me + 1, StorageID: ids.NewStorageID(), LogID: ids.NewLogID()})
	f.pass(t.Context(), state(10, []*metadata.Topic{tp}, p), nil)
	here, _ := f.lookup(p.PartitionRef)
	pass := func() {
		for range 40 { // more than the lag timeout and all delays
			clk.Advance(100 * time.Millisecond)
			here.Tick()
		}
	}
	pass()
	if len(w.mu.queue) != 1 {
		t.Fatalf("%d changes were asked for, want that a member that is not there leaves", len(w.mu.queue))
	}
	asked := w.mu.queue[0]
	w.mu.queue = nil
	before := p.Clone()
	before.LeaderBrokerEpoch-- // as after a new registration, before the host has told the partition
	asked.change.Partition, asked.change.Unsettled = before, true
	if open := w.write(t.Context(), []*proposal{asked}); len(open) != 0 {
		t.Errorf("%d changes will be asked for for ever", len(open))
	}
	pass()
	if len(w.mu.queue) != 0 {
		t.Error("a change whose outcome is not known was answered")
	}
}
