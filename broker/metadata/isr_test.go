package metadata

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// trio is a cluster of three eligible brokers with a topic that broker 1 leads and whose only in-sync replica it is.
type trio struct {
	t      *testing.T
	c      *Client
	cache  *Cache
	regs   [4]*Registration
	stops  [4]func() error
	tenure Tenure
	topic  *Topic
}

func newTrio(t *testing.T, f *faults, n int32) *trio {
	t.Helper()
	tr := &trio{t: t, c: client(t, f)}
	for id := int32(1); id <= 3; id++ {
		tr.regs[id], tr.stops[id] = register(t, tr.c, id, ids.NewStorageID())
	}
	var ok bool
	var err error
	if tr.tenure, ok, err = tr.c.AcquireController(t.Context(), 1, tr.regs[1].Epoch()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	tr.cache = follow(t, tr.c)
	for id := int32(1); id <= 3; id++ {
		tr.declare(id)
	}
	if tr.topic, err = tr.c.CreateTopic(t.Context(), NewTopic{Name: "t", Partitions: n, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	list := make([]*Partition, n)
	for i := range list {
		list[i] = &Partition{
			PartitionRef: PartitionRef{TopicID: tr.topic.ID, Partition: int32(i)}, Leader: 1, LeaderEpoch: 1,
			LeaderBrokerEpoch: tr.regs[1].Epoch(), Replicas: []int32{1, 2, 3}, ISR: []Member{tr.member(1)},
		}
	}
	r, err := tr.c.CreatePartitions(t.Context(), tr.tenure, tr.topic, list)
	if err != nil || r.Count() != int(n) {
		t.Fatal(r.Count(), err)
	}
	tr.see(r.Revision)
	return tr
}

// member is the entry of a broker; its log ID is made of its broker id.
func (tr *trio) member(id int32) Member {
	return Member{BrokerID: id, StorageID: tr.regs[id].Info().StorageID, LogID: ids.LogID{byte(id)}}
}

func (tr *trio) see(revision int64) *State {
	tr.t.Helper()
	s, err := tr.cache.WaitRevision(tr.t.Context(), revision)
	if err != nil {
		tr.t.Fatal(err)
	}
	return s
}

func (tr *trio) declare(id int32) *State {
	tr.t.Helper()
	reg := tr.regs[id]
	next := &Storage{BrokerID: id, StorageID: reg.Info().StorageID, EligibleEpoch: reg.Epoch(), State: StorageActive}
	if st, ok := tr.see(reg.Epoch()).Storage(id); ok {
		next.Revision = st.Revision
	}
	revision, err := tr.c.DeclareEligible(tr.t.Context(), tr.tenure, next)
	if err != nil {
		tr.t.Fatal(err)
	}
	return tr.see(revision)
}

// wish is a change of partition n to the given members, those that are new under their present registrations.
func (tr *trio) wish(s *State, n int32, members ...int32) ISRChange {
	p, _ := s.Partition(tr.topic.ID, n)
	ch := ISRChange{Partition: p}
	for _, id := range members {
		ch.ISR = append(ch.ISR, tr.member(id))
		if _, old := p.Member(id); !old {
			ch.Added = append(ch.Added, AddedMember{BrokerID: id, BrokerEpoch: tr.regs[id].Epoch()})
		}
	}
	return ch
}

func (tr *trio) change(s *State, changes ...ISRChange) []ISRResult {
	tr.t.Helper()
	results, err := tr.c.ChangeISRs(tr.t.Context(), tr.regs[1], s, changes)
	if err != nil {
		tr.t.Fatal(err)
	}
	return results
}

// stored is what etcd has of partition n.
func (tr *trio) stored(n int32) *Partition {
	tr.t.Helper()
	key := tr.c.keys.partition(tr.topic.ID, n)
	resp, err := tr.c.get(tr.t.Context(), "test", key)
	if err != nil || len(resp.Kvs) != 1 {
		tr.t.Fatalf("partition %d: %v", n, err)
	}
	p, err := decodePartition(resp.Kvs[0], PartitionRef{TopicID: tr.topic.ID, Partition: n})
	if err != nil {
		tr.t.Fatal(err)
	}
	return p
}

func TestISRGrowsAndShrinks(t *testing.T) {
	tr := newTrio(t, nil, 300)
	var grow, shrink []ISRChange
	s := tr.cache.Snapshot()
	for n := range int32(300) {
		grow = append(grow, tr.wish(s, n, 1, 2, 3))
	}
	results := tr.change(s, grow...)
	var last int64
	for n, r := range results {
		if !r.Applied || r.Err != nil || len(r.Partition.ISR) != 3 || r.Partition.Partition != int32(n) {
			t.Fatalf("partition %d: %+v", n, r)
		}
		last = max(last, r.Partition.Revision)
	}
	s = tr.see(last)
	for n := range int32(300) {
		shrink = append(shrink, tr.wish(s, n, 1, 3))
	}
	for n, r := range tr.change(s, shrink...) {
		if _, member := r.Partition.Member(2); !r.Applied || member {
			t.Fatalf("partition %d: %+v", n, r)
		}
	}
	if p := tr.stored(299); len(p.ISR) != 2 || p.LeaderEpoch != 1 {
		t.Errorf("stored %+v", p)
	}
}

// TestGrowthNamesTheRegistration: the member restarted between its acknowledgement and the change. Its registration is the one that it
// acknowledged under, whatever the leader's cache shows by now.
func TestGrowthNamesTheRegistration(t *testing.T) {
	tr := newTrio(t, nil, 2)
	before := tr.cache.Snapshot()
	stale, fresh := tr.wish(before, 0, 1, 2), tr.wish(before, 1, 1, 3)
	old := tr.regs[2]
	tr.regs[2], _ = register(t, tr.c, 2, old.Info().StorageID)
	// The leader has not seen it: the transaction does.
	results := tr.change(before, stale, fresh)
	if r := results[0]; r.Applied || r.Err != nil || r.Partition.Revision != stale.Partition.Revision {
		t.Errorf("an old registration was admitted: %+v", r)
	}
	if !results[1].Applied {
		t.Errorf("a stale change held up another one: %+v", results[1])
	}
	// The leader has seen that the new registration is eligible; the acknowledgement is still of the old one.
	now := tr.declare(2)
	if r := tr.change(now, stale)[0]; !errors.Is(r.Err, ErrNotEligible) {
		t.Errorf("an old registration against the leader's newer cache: %+v", r)
	}
	if r := tr.change(now, tr.wish(now, 0, 1, 2))[0]; !r.Applied {
		t.Errorf("the new registration: %+v", r)
	}
}

// TestGrowthRacesAMark: a log is marked as damaged after the leader has looked.
func TestGrowthRacesAMark(t *testing.T) {
	tr := newTrio(t, nil, 1)
	before := tr.cache.Snapshot()
	ch := tr.wish(before, 0, 1, 2)
	if err := tr.c.MarkLogs(t.Context(), tr.regs[2], []Mark{{Partition: ch.Partition.PartitionRef, Kind: MarkQuarantined}}); err != nil {
		t.Fatal(err)
	}
	if r := tr.change(before, ch)[0]; r.Applied || r.Err != nil {
		t.Errorf("a marked log was admitted: %+v", r)
	}
	s := wait(t, tr.cache, func(s *State) bool { st, _ := s.Storage(2); return len(st.Marks) == 1 })
	if r := tr.change(s, ch)[0]; !errors.Is(r.Err, ErrNotEligible) {
		t.Errorf("%+v", r)
	}
}

// TestISRChangeComparesTheRevision, not only the leader epoch.
func TestISRChangeComparesTheRevision(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	first := tr.change(s, tr.wish(s, 0, 1, 2))[0]
	second := tr.change(s, tr.wish(s, 0, 1, 3))[0]
	if !first.Applied || second.Applied || second.Partition.Revision != first.Partition.Revision {
		t.Errorf("%+v, %+v", first, second)
	}
}

// TestISRChangeRacesAnElection: the controller elects anew between the leader's look and its change.
func TestISRChangeRacesAnElection(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	ch := tr.wish(s, 0, 1, 2)
	next := ch.Partition.Clone()
	next.LeaderEpoch++
	if r, err := tr.c.UpdatePartitions(t.Context(), tr.tenure, []*Partition{next}); err != nil || r.Count() != 1 {
		t.Fatal(r, err)
	}
	if r := tr.change(s, ch)[0]; r.Applied || r.Partition.LeaderEpoch != 2 || len(r.Partition.ISR) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestISRChangeOfALapsedLeader: its registration is over, and with it what it may change.
func TestISRChangeOfALapsedLeader(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	ch := tr.wish(s, 0, 1, 2)
	if err := tr.stops[1](); err != nil {
		t.Fatal(err)
	}
	results, err := tr.c.ChangeISRs(t.Context(), tr.regs[1], s, []ISRChange{ch})
	if !errors.Is(err, ErrNotRegistered) || !errors.Is(results[0].Err, ErrNotRegistered) || len(tr.stored(0).ISR) != 1 {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestISRChangeLostAndLateAnswers(t *testing.T) {
	f := &faults{}
	tr := newTrio(t, f, 1)
	s := tr.cache.Snapshot()
	f.next(lost, delayed)
	grown := tr.change(s, tr.wish(s, 0, 1, 2))[0]
	if !grown.Applied {
		t.Fatalf("its own attempt was not recognised: %+v", grown)
	}
	s = tr.see(grown.Partition.Revision)
	f.next(delayed)
	shrunk := tr.change(s, tr.wish(s, 0, 1))[0]
	f.deliver(t)
	if p := tr.stored(0); !shrunk.Applied || p.Revision != shrunk.Partition.Revision {
		t.Errorf("a late attempt took effect: %+v, stored %+v", shrunk, p)
	}
}

// TestUnsettledISRChangeIsFenced: the leader gave up while a growth was under way; the member may not be added any more. That alone says
// nothing about the attempt: it is killed, or found to have taken effect.
func TestUnsettledISRChangeIsFenced(t *testing.T) {
	for name, kind := range map[string]fault{"the attempt is still under way": delayed, "the attempt took effect": lost} {
		t.Run(name, func(t *testing.T) {
			f := &faults{}
			tr := newTrio(t, f, 1)
			s := tr.cache.Snapshot()
			ch := tr.wish(s, 0, 1, 2)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			f.next(slices.Repeat([]fault{kind}, 1000)...)
			results, err := tr.c.ChangeISRs(ctx, tr.regs[1], s, []ISRChange{ch})
			var open *UnavailableError
			if !errors.As(results[0].Err, &open) || !open.Unsettled || !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%+v, %v", results, err)
			}
			f.next()
			tr.regs[2], _ = register(t, tr.c, 2, tr.regs[2].Info().StorageID)
			now := tr.declare(2)
			ch.Unsettled = true
			r := tr.change(now, ch)[0]
			f.deliver(t)
			p := tr.stored(0)
			if r.Err != nil || r.Applied != (kind == lost) || p.Revision != r.Partition.Revision || len(p.ISR) != len(r.Partition.ISR) {
				t.Errorf("%+v, stored %+v", r, p)
			}
		})
	}
}

func TestISRChangeArguments(t *testing.T) {
	tr := newTrio(t, nil, 1)
	s := tr.cache.Snapshot()
	good := tr.wish(s, 0, 1, 2)
	for name, tc := range map[string]struct {
		spoil func(*ISRChange)
		want  error
	}{
		"led by another registration": {func(ch *ISRChange) { ch.Partition = ch.Partition.Clone(); ch.Partition.LeaderBrokerEpoch++ }, ErrConflict},
		"led by another broker":       {func(ch *ISRChange) { ch.Partition = ch.Partition.Clone(); ch.Partition.Leader = 2 }, ErrConflict},
		"without the leader":          {func(ch *ISRChange) { ch.ISR = ch.ISR[1:] }, ErrInvalidArgument},
		"another log of the leader": {func(ch *ISRChange) {
			ch.ISR[0].LogID = ids.NewLogID()
			ch.Added = append(ch.Added, AddedMember{1, tr.regs[1].Epoch()})
		}, ErrInvalidArgument},
		"a broker twice":             {func(ch *ISRChange) { ch.ISR = append(ch.ISR, ch.ISR[1]) }, ErrInvalidArgument},
		"a broker without a replica": {func(ch *ISRChange) { ch.ISR[1].BrokerID, ch.Added[0].BrokerID = 9, 9 }, ErrInvalidArgument},
		"no registration named":      {func(ch *ISRChange) { ch.Added = nil }, ErrInvalidArgument},
		"a registration too many":    {func(ch *ISRChange) { ch.Added = append(ch.Added, AddedMember{3, 1}) }, ErrInvalidArgument},
		"no change":                  {func(ch *ISRChange) { ch.ISR, ch.Added = ch.ISR[:1], nil }, ErrInvalidArgument},
		"another storage":            {func(ch *ISRChange) { ch.ISR[1].StorageID = ids.NewStorageID() }, ErrNotEligible},
		"an older registration":      {func(ch *ISRChange) { ch.Added[0].BrokerEpoch-- }, ErrNotEligible},
	} {
		ch := good
		ch.ISR, ch.Added = slices.Clone(good.ISR), slices.Clone(good.Added)
		tc.spoil(&ch)
		if _, err := tr.c.build.ChangeISR(s, tr.regs[1].Ref(), ch); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	results := tr.change(s, good, good)
	if !results[0].Applied || !errors.Is(results[1].Err, ErrConflict) {
		t.Errorf("two changes of one partition: %+v", results)
	}
	tx, err := tr.c.build.ChangeISR(s, tr.regs[1].Ref(), good)
	if err != nil || len(tx.Compares) != 4 {
		t.Errorf("a growth by one compares partition, leader, member and its registry entry: %+v, %v", tx, err)
	}
}
