package metadata

import (
	"errors"
	"sync"
	"testing"
)

// TestWitnessesRaceForTheController: several brokers found the controller dead although its registration lives. One gets the key, and the
// one that had it changes nothing any more.
func TestWitnessesRaceForTheController(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	seen := s.Controller()
	var wg sync.WaitGroup
	won := make([]Tenure, 4)
	for id := 2; id <= 3; id++ {
		wg.Go(func() {
			tenure, ok, err := tr.c.TakeController(t.Context(), tr.regs[id], seen)
			if err != nil {
				t.Error(err)
			}
			if ok {
				won[id] = tenure
			}
		})
	}
	wg.Wait()
	if (won[2].Epoch > 0) == (won[3].Epoch > 0) {
		t.Fatalf("tenures %+v, want exactly one", won)
	}
	winner := won[2]
	if winner.Epoch == 0 {
		winner = won[3]
	}
	if winner.Epoch <= tr.tenure.Epoch {
		t.Errorf("controller epoch %d after %d", winner.Epoch, tr.tenure.Epoch)
	}
	p, _ := s.Partition(tr.topic.ID, 0)
	next := p.Clone()
	next.LeaderEpoch++
	if r, err := tr.c.UpdatePartitions(t.Context(), tr.tenure, []*Partition{next}); !errors.Is(err, ErrNotController) || r.Count() != 0 {
		t.Errorf("the deposed controller: %+v, %v", r, err)
	}
	if r, err := tr.c.UpdatePartitions(t.Context(), winner, []*Partition{next}); err != nil || r.Count() != 1 {
		t.Errorf("the new one: %+v, %v", r, err)
	}
	again, ok, err := tr.c.TakeController(t.Context(), tr.regs[winner.BrokerID], &ControllerInfo{winner.BrokerID, winner.BrokerEpoch, winner.Epoch})
	if err != nil || !ok || again != winner {
		t.Errorf("from itself: %+v, %v, %v", again, ok, err)
	}
}

// TestTakeoverByADeadWitness: a registration that is over takes nothing.
func TestTakeoverByADeadWitness(t *testing.T) {
	tr := newTrio(t, nil, 1)
	seen := tr.cache.Snapshot().Controller()
	if err := tr.stops[2](); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := tr.c.TakeController(t.Context(), tr.regs[2], seen); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// TestTakeoverLostAnswer: the witness recognises its own tenure; a late attempt of a loser deposes nobody.
func TestTakeoverLostAnswer(t *testing.T) {
	f := &faults{}
	tr := newTrio(t, f, 1)
	seen := tr.cache.Snapshot().Controller()
	f.next(delayed, lost)
	tenure, ok, err := tr.c.TakeController(t.Context(), tr.regs[2], seen)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	f.next(delayed)
	if _, ok, err := tr.c.TakeController(t.Context(), tr.regs[3], seen); ok || err != nil {
		t.Errorf("on what was seen before: %v, %v", ok, err)
	}
	f.deliver(t)
	if _, revision := value(t, tr.c, tr.c.keys.controller()); revision != tenure.Epoch {
		t.Errorf("the key is at %d, the tenure at %d", revision, tenure.Epoch)
	}
}
