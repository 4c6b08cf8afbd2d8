package partition_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// answers collects what waiters were told, in order.
type answers struct {
	mu  sync.Mutex
	got []answer
}

type answer struct {
	name string
	partition.Result
}

type waiter struct {
	to   *answers
	name string
}

func (w waiter) Acked(r partition.Result) {
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	w.to.got = append(w.to.got, answer{w.name, r})
}

func (a *answers) take() []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

type fixture struct {
	*testing.T
	host *partitiontest.Host
	log  *log.Log
	p    *partition.Partition
	answers
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, host: partitiontest.NewHost(t, clock.NewFake(start))}
	f.log = f.host.Log(ids.NewTopicID(), 3, log.DefaultConfig())
	f.p = partition.New(partition.Config{Context: t.Context(), Log: f.log, Clock: f.host.Clock, Replica: replica.Config{BrokerID: 7}})
	f.lead(1)
	return f
}

// lead makes broker 7, which is this one, lead alone.
func (f *fixture) lead(epoch int32) {
	partitiontest.Lead(f.p, 7, epoch)
	if f.log.End() == f.log.Flushed() {
		f.host.Sync() // the epoch, which nothing counts before
	}
}

// follow makes broker 8 lead.
func (f *fixture) follow(epoch int32) { partitiontest.Follow(f.p, 8, epoch) }

// record gives the partition a record that broker 7 leads with others in sync.
func (f *fixture) record(epoch int32, minISR int, others ...int32) {
	r := replica.Record{
		Leader: 7, LeaderEpoch: epoch, LeaderBrokerEpoch: 1, Replicas: append([]int32{7}, others...), MinISR: minISR,
		ISR: []replica.Member{{BrokerID: 7, StorageID: partitiontest.StorageID, LogID: f.log.LogID()}},
	}
	for _, id := range others {
		r.ISR = append(r.ISR, replica.Member{BrokerID: id, StorageID: partitiontest.StorageID, LogID: ids.NewLogID()})
	}
	partitiontest.Set(f.p, r)
}

func (f *fixture) produce(name string, change ...func(*partition.Produce)) {
	f.Helper()
	b, h := partitiontest.Batch(f, 1, name)
	req := &partition.Produce{Batch: b, Header: h, LeaderEpoch: -1, InOrder: true, Waiter: waiter{&f.answers, name}}
	for _, c := range change {
		c(req)
	}
	f.p.Produce(req)
}

func (f *fixture) names(want ...string) []answer {
	f.Helper()
	got := f.take()
	if len(got) != len(want) {
		f.Fatalf("answered %v, want %v", got, want)
	}
	for i := range got {
		if got[i].name != want[i] {
			f.Fatalf("answered %v, want %v", got, want)
		}
	}
	return got
}

func TestAckWaitsForTheSync(t *testing.T) {
	f := setup(t)
	f.produce("a")
	f.produce("b")
	f.names()
	if lim, err := f.p.Limits(-1); err != nil || lim.HighWatermark != 0 {
		t.Fatalf("visible before the sync: %+v %v", lim, err)
	}
	f.host.Sync()
	got := f.names("a", "b")
	for i, a := range got {
		if a.Err != nil || a.Base != int64(i) || a.AppendTimeMS != -1 {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	if lim, _ := f.p.Limits(-1); lim.HighWatermark != 2 || lim.LeaderEpoch != 1 {
		t.Fatalf("%+v", lim)
	}
}

func TestAckLeaderIsImmediateAndKeepsItsPlaceWhenAsked(t *testing.T) {
	f := setup(t)
	leader := func(p *partition.Produce) { p.AcksLeader = true }
	f.produce("all")
	f.produce("leader", leader)
	f.names()
	f.produce("other stream", leader, func(p *partition.Produce) { p.InOrder = false })
	f.names("other stream")
	f.p.Refuse(waiter{&f.answers, "refused"}, errors.New("no"))
	f.names()
	f.host.Sync()
	if got := f.names("all", "leader", "refused"); got[2].Err == nil || got[2].Base != -1 {
		t.Fatalf("%+v", got)
	}
	f.produce("alone", leader)
	f.names("alone")
}

func TestDuplicateWaitsForTheOriginal(t *testing.T) {
	f := setup(t)
	dup := func(p *partition.Produce) { p.Batch, p.Header = partitiontest.Idempotent(f, 9, 0, "x", "y") }
	f.produce("original", dup)
	f.produce("retry", dup)
	f.names()
	f.host.Sync()
	got := f.names("original", "retry")
	if got[0].Duplicate || !got[1].Duplicate || got[0].Base != 0 || got[1].Base != 0 {
		t.Fatalf("%+v", got)
	}
	f.produce("late retry", dup)
	if got := f.names("late retry"); !got[0].Duplicate {
		t.Fatalf("%+v", got)
	}
	if end := f.log.End(); end != 2 {
		t.Fatalf("log end %d: a duplicate was appended", end)
	}
}

func TestEpochsAreChecked(t *testing.T) {
	f := setup(t)
	f.lead(5)
	epoch := func(e int32) func(*partition.Produce) {
		return func(p *partition.Produce) { p.LeaderEpoch, p.InOrder = e, false }
	}
	f.produce("older", epoch(4))
	f.produce("newer", epoch(6))
	got := f.names("older", "newer")
	var nl *partition.NotLeaderError
	if !errors.As(got[0].Err, &nl) || nl.LeaderID != 7 || nl.LeaderEpoch != 5 {
		t.Fatalf("older: %v", got[0].Err)
	}
	if !errors.Is(got[1].Err, partition.ErrUnknownEpoch) {
		t.Fatalf("newer: %v", got[1].Err)
	}
	f.p.SetRecord(partition.RecordUpdate{
		Record: &replica.Record{Leader: 7, LeaderEpoch: 4}, BrokerEpoch: 1, StorageID: partitiontest.StorageID, Usable: true,
	})
	if e := f.p.Role().Epoch; e != 5 {
		t.Fatalf("an older record was taken over: epoch %d", e)
	}
	f.follow(6)
	f.produce("follower", epoch(-1))
	if got := f.names("follower"); !errors.Is(got[0].Err, partition.ErrNotLeader) {
		t.Fatalf("%v", got[0].Err)
	}
	if _, _, err := f.p.Read(0, 100); !errors.Is(err, partition.ErrNotLeader) {
		t.Fatalf("read: %v", err)
	}
	if end := f.log.End(); end != 0 {
		t.Fatalf("refused batches were appended: end %d", end)
	}
}

func TestLostLeadershipLeavesTheOutcomeUnknown(t *testing.T) {
	f := setup(t)
	f.produce("waits")
	f.follow(2)
	got := f.names("waits")
	if !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) || !errors.Is(got[0].Err, partition.ErrNotLeader) {
		t.Fatalf("%v", got[0].Err)
	}
	// The bytes are flushed later, and leadership comes back: the old produce is not answered twice, and nothing new is.
	f.host.Sync()
	f.names()
	f.lead(3)
	f.names()
	if lim, err := f.p.Limits(3); err != nil || lim.HighWatermark != 1 {
		t.Fatalf("%+v %v", lim, err)
	}
}

func TestRegainedLeadershipDoesNotAnswerByOffsetAlone(t *testing.T) {
	f := setup(t)
	f.produce("old")
	f.follow(2)
	f.names("old")
	if err := f.p.Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.lead(3)
	f.produce("new")
	f.names()
	f.host.Sync()
	if got := f.names("new"); got[0].Err != nil || got[0].Base != 0 {
		t.Fatalf("%+v", got)
	}
}

func TestTruncationFailsWhatWaits(t *testing.T) {
	f := setup(t)
	f.produce("kept")
	f.host.Sync()
	f.names("kept")
	f.produce("cut")
	if err := f.p.Truncate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := f.names("cut"); !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) {
		t.Fatalf("%v", got[0].Err)
	}
	f.host.Sync()
	if hw := f.log.HighWatermark(); hw != 1 {
		t.Fatalf("high watermark %d", hw)
	}
}

// A truncation behind the partition's back voids the generation, so that a flush of the same offset answers nothing.
func TestGenerationIsPartOfTheMatch(t *testing.T) {
	f := setup(t)
	f.produce("cut")
	if err := f.log.Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.produce("same offset")
	f.host.Sync()
	got := f.names("cut", "same offset")
	if !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) || got[1].Err != nil || got[1].Base != 0 {
		t.Fatalf("%+v", got)
	}
}

func TestNotEnoughReplicas(t *testing.T) {
	f := setup(t)
	f.record(1, 2)
	f.produce("refused", func(p *partition.Produce) { p.InOrder = false })
	if got := f.names("refused"); !errors.Is(got[0].Err, partition.ErrNotEnoughReplicas) {
		t.Fatalf("%v", got[0].Err)
	}
	if f.log.End() != 0 {
		t.Fatal("appended")
	}
}

func TestTheHighWatermarkWaitsForOtherMembers(t *testing.T) {
	f := setup(t)
	f.record(1, 1, 8)
	f.produce("waits")
	f.host.Sync()
	f.names()
	if hw := f.log.HighWatermark(); hw != 0 {
		t.Fatalf("high watermark %d rests on one of two members", hw)
	}
	f.lead(1) // the other member left
	f.names("waits")
}

func TestLatestWaitsForTheEpochStart(t *testing.T) {
	f := setup(t)
	f.produce("unflushed")
	f.lead(2)
	f.take()
	if _, err := f.p.Latest(-1); !errors.Is(err, partition.ErrNotReady) {
		t.Fatalf("latest before the epoch's start is committed: %v", err)
	}
	for _, before := range []int64{-1, 1} { // what may be committed is neither out of range nor forgotten
		if _, err := f.p.DeleteRecords(t.Context(), before); !errors.Is(err, partition.ErrNotReady) {
			t.Fatalf("delete up to %d before the epoch's start is committed: %v", before, err)
		}
	}
	f.host.Sync()
	if at, err := f.p.Latest(2); err != nil || at != 1 {
		t.Fatalf("%d %v", at, err)
	}
}

func TestCloseAndFail(t *testing.T) {
	f := setup(t)
	f.produce("failed")
	cause := errors.New("sync failed")
	f.p.Fail(cause)
	if got := f.names("failed"); !errors.Is(got[0].Err, cause) || !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) {
		t.Fatalf("%v", got[0].Err)
	}
	f.produce("after", func(p *partition.Produce) { p.InOrder = false })
	if got := f.names("after"); !errors.Is(got[0].Err, partition.ErrNotLeader) {
		t.Fatalf("%v", got[0].Err)
	}
	f.lead(2)
	f.produce("closed")
	f.p.Close()
	f.produce("late", func(p *partition.Produce) { p.InOrder = false })
	got := f.names("closed", "late")
	if !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) || !errors.Is(got[1].Err, partition.ErrClosed) || errors.Is(got[1].Err, partition.ErrOutcomeUnknown) {
		t.Fatalf("%+v", got)
	}
	if f.lead(9); f.p.Role().Leading {
		t.Fatal("a closed partition leads again")
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) Wake() { c.n.Add(1) }

func TestConcurrentProducersAreAnsweredInAppendOrder(t *testing.T) {
	f := setup(t)
	stop := f.host.StartSyncing()
	defer stop()
	const streams, each = 8, 200
	var wg sync.WaitGroup
	done := make([]chan partition.Result, streams)
	for s := range streams {
		done[s] = make(chan partition.Result, each)
		wg.Go(func() {
			for range each {
				b, h := partitiontest.Batch(t, 1, "v")
				f.p.Produce(&partition.Produce{Batch: b, Header: h, LeaderEpoch: 1, InOrder: true, Waiter: channel(done[s])})
			}
		})
	}
	wg.Wait()
	seen := make([]bool, streams*each)
	for s := range streams {
		last := int64(-1)
		for range each {
			r := <-done[s]
			if r.Err != nil || r.Base <= last || seen[r.Base] {
				t.Fatalf("stream %d: %+v after %d", s, r, last)
			}
			seen[r.Base], last = true, r.Base
		}
	}
}

type channel chan partition.Result

func (c channel) Acked(r partition.Result) { c <- r }

func TestProduceAllocates(t *testing.T) {
	f := setup(t)
	b, h := partitiontest.Batch(t, 1, "value")
	req := &partition.Produce{Batch: b, Header: h, LeaderEpoch: 1, Waiter: discard{}}
	if n := testing.AllocsPerRun(200, func() { f.p.Produce(req) }); n > 2 {
		t.Errorf("produce: %v allocations per batch", n)
	}
	f.host.Sync()
	if n := testing.AllocsPerRun(200, func() {
		r, _, err := f.p.Read(0, 1<<20)
		if err != nil {
			t.Error(err)
		}
		r.Release()
	}); n > 1 {
		t.Errorf("read: %v allocations", n)
	}
}

type discard struct{}

func (discard) Acked(partition.Result) {}

// A refusal that arrives while the log is being truncated is answered when that is done, not at the next append.
func TestRefusalsDuringTruncationAreAnswered(t *testing.T) {
	f := setup(t)
	f.produce("cut", func(p *partition.Produce) {
		p.Waiter = onAck(func(partition.Result) { // runs within the truncation, on another goroutine's behalf
			go f.p.Refuse(waiter{&f.answers, "refused"}, errors.New("no"))
		})
	})
	if err := f.p.Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if got := f.take(); len(got) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("never answered")
		}
		runtime.Gosched()
	}
}

type onAck func(partition.Result)

func (f onAck) Acked(r partition.Result) { f(r) }

// An epoch that cannot be begun ends the one before all the same: a newer one exists.
func TestAnEpochThatCannotBeginEndsTheOneBefore(t *testing.T) {
	f := setup(t)
	f.produce("waits")
	if err := f.log.AssignEpoch(9); err != nil {
		t.Fatal(err)
	}
	f.lead(2)
	if got := f.names("waits"); !errors.Is(got[0].Err, partition.ErrOutcomeUnknown) {
		t.Fatalf("%v", got[0].Err)
	}
	f.produce("refused", func(p *partition.Produce) { p.InOrder = false })
	if got := f.names("refused"); !errors.Is(got[0].Err, partition.ErrNotLeader) {
		t.Fatalf("%v", got[0].Err)
	}
}

// Epochs begin at 1. A client that leaves the field out sends 0 and means any.
func TestEpochZeroIsAnyEpoch(t *testing.T) {
	f := setup(t)
	f.lead(3)
	for epoch, want := range map[int32]error{-1: nil, 0: nil, 3: nil, 1: partition.ErrNotLeader, 4: partition.ErrUnknownEpoch} {
		if _, err := f.p.Limits(epoch); !errors.Is(err, want) {
			t.Errorf("epoch %d: %v, want %v", epoch, err, want)
		}
	}
}

// BenchmarkProduce appends batches of 1 KiB to a partition whose only replica is here; each is acknowledged by a round of its own.
func BenchmarkProduce(b *testing.B) {
	host := partitiontest.NewHost(b, clock.System())
	p := host.Leader(ids.NewTopicID(), 0, 7, log.DefaultConfig())
	batch, h := partitiontest.Batch(b, 1, string(make([]byte, 1<<10)))
	req := &partition.Produce{Batch: batch, Header: h, LeaderEpoch: 1, Waiter: discard{}}
	b.ReportAllocs()
	for b.Loop() {
		p.Produce(req)
		host.Sync()
	}
	if n := p.Waiting(); n != 0 {
		b.Fatalf("%d wait", n)
	}
}
