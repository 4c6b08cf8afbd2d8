package metadata

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

// TestReassignmentWithoutTheLeader: its registration is over; replicas can be planned all the same.
func TestReassignmentWithoutTheLeader(t *testing.T) {
	tr := newTrio(t, nil, 2)
	s := tr.cache.Snapshot()
	if err := tr.stops[1](); err != nil {
		t.Fatal(err)
	}
	var next []*Partition
	for n := range int32(2) {
		p, _ := s.Partition(tr.topic.ID, n)
		q := p.Clone()
		q.Replicas, q.Adding, q.Removing = []int32{4, 2, 1, 3}, []int32{4}, []int32{1, 3}
		next = append(next, q)
	}
	next[1].Revision--
	r, err := tr.c.SetReassignment(t.Context(), tr.tenure, next)
	if err != nil || !r.Applied[0] || r.Applied[1] {
		t.Fatalf("%+v, %v: want the first, and not the one that changed meanwhile", r, err)
	}
	if p := tr.stored(0); len(p.Replicas) != 4 || len(p.Adding) != 1 || len(p.Removing) != 2 || p.LeaderEpoch != 1 {
		t.Errorf("stored %+v", p)
	}
}

func TestReassignmentArguments(t *testing.T) {
	storage := ids.NewStorageID()
	good := func() *Partition {
		return &Partition{
			Leader: 1, LeaderEpoch: 1, Replicas: []int32{4, 1, 2}, Adding: []int32{4}, Removing: []int32{2},
			ISR: []Member{{BrokerID: 1, StorageID: storage}},
		}
	}
	b := NewBuilder("c")
	if _, err := b.SetReassignment(Tenure{}, []*Partition{good()}); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Partition){
		"replicas of partition":          func(p *Partition) { p.Replicas = nil },
		"each once":                      func(p *Partition) { p.Replicas = []int32{1, 4, 2, 1} },
		"[-1 1]":                         func(p *Partition) { p.Replicas = []int32{-1, 1} },
		"adding of partition":            func(p *Partition) { p.Adding = []int32{5} },
		"removing of partition":          func(p *Partition) { p.Removing = []int32{5} },
		"none of those that are removed": func(p *Partition) { p.Removing = []int32{4} },
		"not all replicas":               func(p *Partition) { p.Adding, p.Removing = nil, []int32{1, 2, 4} },
		"leader of partition":            func(p *Partition) { p.Leader = 7 },
		"all members of the ISR":         func(p *Partition) { p.ISR[0].BrokerID = 7 },
		"1 to 64, old and new together":  func(p *Partition) { p.Replicas = make([]int32, 65) },
	} {
		p := good()
		spoil(p)
		if _, err := b.SetReassignment(Tenure{}, []*Partition{p}); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestStorageStates: drain, undrain, fence; a stale look and a deposed controller change nothing.
func TestStorageStates(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	st, _ := s.Storage(2)
	set := func(s *State, tenure Tenure, state StorageState) *State {
		t.Helper()
		st, _ := s.Storage(2)
		next := *st
		next.State = state
		revision, err := tr.c.SetStorageState(t.Context(), tenure, &next)
		if err != nil {
			t.Fatal(err)
		}
		return tr.see(revision)
	}
	growth := tr.wish(s, 0, 1, 2)
	draining := set(s, tr.tenure, StorageDraining)
	if now, _ := draining.Storage(2); now.State != StorageDraining || now.EligibleEpoch != st.EligibleEpoch || !draining.Eligible(2) {
		t.Errorf("draining: %+v", now)
	}
	if r := tr.change(s, growth)[0]; r.Applied || r.Err != nil {
		t.Errorf("growth on the entry as it was: %+v", r)
	}
	if now := set(s, tr.tenure, StorageFenced); now.storages[2].State != StorageDraining {
		t.Errorf("a change based on a stale look: %+v", now.storages[2])
	}
	deposed := tr.tenure
	deposed.Epoch--
	if now := set(draining, deposed, StorageFenced); now.storages[2].State != StorageDraining {
		t.Errorf("a change by a deposed controller: %+v", now.storages[2])
	}
	fenced := set(draining, tr.tenure, StorageFenced)
	if r := tr.change(fenced, growth)[0]; !errors.Is(r.Err, ErrNotEligible) || fenced.Eligible(2) {
		t.Errorf("growth by a fenced storage: %+v", r)
	}
	if now := set(fenced, tr.tenure, StorageActive); !now.Eligible(2) {
		t.Error("unfenced, and not eligible")
	}
	bad := *st
	bad.State = 9
	if _, err := tr.c.SetStorageState(t.Context(), tr.tenure, &bad); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("an unknown state: %v", err)
	}
}

func TestUpdateReplicas(t *testing.T) {
	tr := newTrio(t, nil, 1)
	update := func(n int32, config *runnelv1.TopicConfig) (*Topic, []*runnelv1.ConfigChange, error) {
		return tr.c.UpdateTopic(t.Context(), TopicUpdate{Name: "t", Replicas: n, Config: config})
	}
	got, changes, err := update(2, &runnelv1.TopicConfig{MinInSyncReplicas: proto.Int32(2)})
	if err != nil || got.Replicas != 2 || got.Generation != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if last := changes[len(changes)-1]; last.GetField() != "replicas" || last.GetBefore() != "3" || last.GetAfter() != "2" {
		t.Errorf("changes %v", changes)
	}
	var bad *topicconfig.InvalidError
	if _, _, err := update(1, nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), "min_in_sync_replicas") {
		t.Errorf("fewer replicas than the minimum: %v", err)
	}
	if _, _, err := update(4, nil); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "replicas is 4, want 1 to 3 (live brokers)") {
		t.Errorf("more than there are brokers: %v", err)
	}
	if _, _, err := update(-1, nil); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a negative number: %v", err)
	}
	if same, changes, err := update(2, nil); err != nil || same.Generation != 2 || len(changes) != 0 {
		t.Errorf("no change: %+v, %v, %v", same, changes, err)
	}
}

// TestUncleanElection: a replica that is not in sync becomes the whole ISR; whoever was named before leads nothing and changes nothing.
func TestUncleanElection(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	p, _ := s.Partition(tr.topic.ID, 0)
	growth := tr.wish(s, 0, 1, 3)
	if err := tr.stops[1](); err != nil {
		t.Fatal(err)
	}
	log := ids.NewLogID()
	r, err := tr.c.AcceptUnclean(t.Context(), tr.regs[2], s, p, log)
	if err != nil || r.Count() != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	got := tr.stored(0)
	if m := got.ISR[0]; len(got.ISR) != 1 || m.BrokerID != 2 || m.LogID != log || got.Leader != NoLeader || got.LeaderEpoch != 2 {
		t.Errorf("stored %+v", got)
	}
	if _, err := tr.c.ChangeISRs(t.Context(), tr.regs[1], s, []ISRChange{growth}); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("the old leader: %v", err)
	}
	if r, err := tr.c.AcceptUnclean(t.Context(), tr.regs[3], s, p, log); err != nil || r.Count() != 0 {
		t.Errorf("on what was seen before: %+v, %v", r, err)
	}
	if _, err := tr.c.AcceptUnclean(t.Context(), tr.regs[3], s, p, ids.LogID{}); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("without a log: %v", err)
	}
	// A registration that is not eligible, or not alive, accepts nothing.
	now := tr.see(r.Revision)
	p, _ = now.Partition(tr.topic.ID, 0)
	old := tr.regs[3]
	tr.regs[3], _ = register(t, tr.c, 3, old.Info().StorageID)
	if _, err := tr.c.AcceptUnclean(t.Context(), old, now, p, log); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("a replaced registration: %v", err)
	}
	if _, err := tr.c.AcceptUnclean(t.Context(), tr.regs[3], now, p, log); !errors.Is(err, ErrNotEligible) {
		t.Errorf("a registration that is not eligible yet: %v", err)
	}
}
