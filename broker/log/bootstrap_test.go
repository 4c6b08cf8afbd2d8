package log

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"runnel.dev/runnel/internal/vfs/memfs"
)

// retained is a leader with three epochs and idempotent producers, of which retention (or a user) took what lies below start.
func retained(t *testing.T, start int64) *env {
	t.Helper()
	cfg := testConfig()
	cfg.SegmentBytes = 700
	e := newEnv(t, cfg)
	for i := range int32(30) {
		_, err := e.append(batch(t, 2, 1, producerTag{id: int64(i % 4), seq: i / 4 * 2}, "value"), 1+i/10)
		must(t, err)
	}
	e.flushAll()
	must(t, e.l.PublishLogStart(t.Context(), start))
	return e
}

// TestAReplicaBeginsAtTheLogStart: with the epochs below it, the producer state there, and then every byte of the leader.
func TestAReplicaBeginsAtTheLogStart(t *testing.T) {
	for name, start := range map[string]int64{"at a segment": -1, "at a batch": 34, "within a batch": 35, "at the end": 60} {
		t.Run(name, func(t *testing.T) {
			if start < 0 {
				probe := retained(t, 0)
				start = probe.l.Segments()[3].Base
			}
			leader := retained(t, start)
			base := start - start%2 // two records in each batch
			if leader.l.ReplicaStart() != base || leader.l.LogStart() != start {
				t.Fatalf("replicas begin at %d, want %d; log start %d", leader.l.ReplicaStart(), base, leader.l.LogStart())
			}
			st, err := leader.l.StartStateAt(start)
			must(t, err)
			if st.Offset != base {
				t.Fatalf("the state is of %d, want %d", st.Offset, base)
			}
			follower := newEnvOn(t, newDisk(t), leader.cfg, st)
			for _, when := range []string{"created", "after a crash", "after a clean stop"} {
				if a, b := fmt.Sprint(follower.l.Epochs()), fmt.Sprint(lineage(leader.l.Epochs()).upTo(base)); a != b || follower.l.End() != base {
					t.Fatalf("%s: epochs %s, want %s; end %d", when, a, b, follower.l.End())
				}
				ps, err := leader.l.producersAt(base)
				must(t, err)
				want := fmt.Sprint(len(ps.byID))
				states, _ := follower.l.ProducerStates()
				if got := fmt.Sprint(len(states)); got != want || !sameProducers(states, ps.export()) {
					t.Fatalf("%s: producers %v, want %v", when, states, ps.export())
				}
				switch when {
				case "created":
					follower = openOn(t, follower.fs.(*memfs.Mem).StrictCrashClone(), leader.cfg, follower.clk)
				case "after a crash":
					follower.closeAll()
					must(t, follower.reopen())
				}
			}
			replicate(t, leader.l, follower.l, 500)
			must(t, follower.host.round(follower.l))
			must(t, follower.l.JournalLogStart(t.Context(), leader.l.LogStart()))
			must(t, follower.l.PublishLogStart(t.Context(), leader.l.LogStart()))
			if follower.l.LogStart() != start || follower.l.ReplicaStart() != base {
				t.Fatalf("log start %d, replicas begin at %d", follower.l.LogStart(), follower.l.ReplicaStart())
			}
			a, err := readAll(leader.l, start, 60)
			must(t, err)
			b, err := readAll(follower.l, start, 60)
			must(t, err)
			if !bytes.Equal(a, b) || producerText(leader.l) != producerText(follower.l) {
				t.Fatalf("%d bytes, the leader has %d; producers %s, the leader's %s", len(b), len(a), producerText(follower.l), producerText(leader.l))
			}
			for epoch := range int32(6) {
				le, lo := leader.l.EndOffsetForEpoch(epoch)
				if fe, fo := follower.l.EndOffsetForEpoch(epoch); fe != le || fo != lo {
					t.Fatalf("epoch %d ends as %d at %d, at the leader as %d at %d", epoch, fe, fo, le, lo)
				}
			}
			// A producer of the old leader sends its last batch again, which only the snapshot knows for some starts.
			dup, err := follower.append(batch(t, 2, 1, producerTag{id: 0, seq: 14}, "value"), 4)
			if err != nil || !dup.Duplicate || dup.Base != 56 {
				t.Fatalf("%+v, %v", dup, err)
			}
			follower.closeAll()
		})
	}
}

func sameProducers(a, b []ProducerState) bool {
	return slices.EqualFunc(a, b, func(x, y ProducerState) bool {
		return x.ProducerID == y.ProducerID && x.Epoch == y.Epoch && slices.Equal(x.Batches, y.Batches)
	})
}

func TestStartStateIsBounded(t *testing.T) {
	leader := retained(t, 34)
	must(t, leader.l.Roll())
	_, err := leader.append(batch(t, 2, 1, noProducer, "not committed"), 3)
	must(t, err)
	for _, at := range []int64{-1, 0, 33, 61, 62, 100} {
		var r *OutOfRangeError
		if _, err := leader.l.StartStateAt(at); !errors.As(err, &r) || r.Asked != at || r.Earliest != 34 || r.Latest != 60 {
			t.Errorf("at %d: %v", at, err)
		}
	}
	for at := int64(34); at <= 60; at++ {
		if st, err := leader.l.StartStateAt(at); err != nil || st.Offset != at-at%2 {
			t.Errorf("at %d: %d, %v", at, st.Offset, err)
		}
	}
	if _, err := leader.l.ReadReplicaRange(33, 100); !errors.Is(err, ErrOffsetOutOfRange) {
		t.Errorf("%v", err)
	}
	must(t, leader.l.Close())
	if _, err := leader.l.StartStateAt(40); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestReplicasReadFromTheBatchBelowTheLogStart: readers do not.
func TestReplicasReadFromTheBatchBelowTheLogStart(t *testing.T) {
	leader := retained(t, 35)
	if _, err := leader.l.ReadRange(34, 100, 60); !errors.Is(err, ErrOffsetOutOfRange) {
		t.Fatalf("%v", err)
	}
	r, err := leader.l.ReadReplicaRange(34, 1)
	if err != nil || r.First != 34 || r.Next != 36 {
		t.Fatalf("%+v, %v", r, err)
	}
	r.Release()
	// The same after restarts, also when the batch lies deep in a segment.
	must(t, leader.host.round(leader.l))
	crashed := openOn(t, leader.fs.(*memfs.Mem).StrictCrashClone(), leader.cfg, leader.clk)
	leader.closeAll()
	must(t, leader.reopen())
	for _, e := range []*env{leader, crashed} {
		if e.l.ReplicaStart() != 34 || e.l.LogStart() != 35 {
			t.Errorf("clean %v: replicas begin at %d, log start %d", e.rep.Clean, e.l.ReplicaStart(), e.l.LogStart())
		}
		e.closeAll()
	}
}

// TestALineageThatBeginsLater: of an epoch that ended below what is left, nothing is known.
func TestALineageThatBeginsLater(t *testing.T) {
	leader := retained(t, 44) // epoch 3 begins at 40
	if base := leader.l.Segments()[0].Base; base < 40 {
		t.Fatalf("the first segment begins at %d", base)
	}
	for epoch, want := range map[int32]EpochStart{0: {-1, -1}, 1: {-1, -1}, 2: {-1, -1}, 3: {3, 60}, 9: {3, 60}} {
		if found, end := leader.l.EndOffsetForEpoch(epoch); found != want.Epoch || end != want.Start {
			t.Errorf("epoch %d: %d ends at %d, want %+v", epoch, found, end, want)
		}
	}
}

// TestTruncateBelowTheLogStart: a typed error, and the log as it was: its owner makes it anew.
func TestTruncateBelowTheLogStart(t *testing.T) {
	for start, bad := range map[int64]int64{34: 33, 35: 35} { // 35: the batch that holds it begins below
		e := retained(t, start)
		before := e.l.Offsets()
		var r *OutOfRangeError
		if err := e.l.Truncate(t.Context(), bad); !errors.As(err, &r) || r.Asked != bad && r.Asked != bad-1 || r.Earliest != start {
			t.Errorf("log start %d, truncate to %d: %v", start, bad, err)
		}
		if after := e.l.Offsets(); after != before || e.l.State().Health != Online {
			t.Errorf("offsets are %+v, were %+v", after, before)
		}
	}
}

// TestTheHighWatermarkStaysBelowTheEnd: whoever raises it while the log is truncated.
func TestTheHighWatermarkStaysBelowTheEnd(t *testing.T) {
	e := retained(t, 0)
	e.l.SetHighWatermark(100)
	if e.l.HighWatermark() != 60 {
		t.Fatalf("high watermark %d", e.l.HighWatermark())
	}
	seen := 0
	e.host.mu.onNow = func(JournalEntry) error {
		e.l.SetHighWatermark(60) // a machine that has not heard of the truncation
		seen++
		if hw := e.l.HighWatermark(); hw > 40 {
			t.Errorf("high watermark %d while the log is cut to 40", hw)
		}
		return nil
	}
	must(t, e.l.Truncate(t.Context(), 40))
	e.host.mu.onNow = nil
	e.l.SetHighWatermark(60)
	if seen != 1 || e.l.HighWatermark() != 40 || e.l.End() != 40 {
		t.Fatalf("high watermark %d, end %d", e.l.HighWatermark(), e.l.End())
	}
	if _, err := e.l.AppendAsFollower(stamped(t, 40, 2, 3)); err != nil {
		t.Fatal(err)
	}
	e.l.SetHighWatermark(60)
	if e.l.HighWatermark() != 42 {
		t.Fatalf("high watermark %d", e.l.HighWatermark())
	}
}

// TestASnapshotIsReadWhileTheLogRolls: StartStateAt does not stop appends, and they do not disturb it.
func TestASnapshotIsReadWhileTheLogRolls(t *testing.T) {
	leader := retained(t, 34)
	done := make(chan error, 1)
	go func() {
		for i := range 200 {
			b := batch(t, 2, 1, producerTag{id: 9, seq: int32(2 * i)}, "value")
			if _, err := leader.l.Append(b, header(t, b), 3, leader.clk.Now()); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	var first StartState
	for i := 0; ; i++ {
		st, err := leader.l.StartStateAt(34)
		must(t, err)
		if i == 0 {
			first = st
		}
		if !sameProducers(st.Producers, first.Producers) || !slices.Equal(st.Epochs, first.Epochs) {
			t.Fatalf("%+v, first %+v", st, first)
		}
		select {
		case err := <-done:
			must(t, err)
			return
		default:
		}
	}
}

// TestTheEpochOfABatchIsAssignedWhereItBegins: a follower's lineage is that of the batches it got; the same epoch again changes nothing.
func TestTheEpochOfABatchIsAssignedWhereItBegins(t *testing.T) {
	e := newEnv(t, testConfig())
	_, err := e.l.AppendAsFollower(stamped(t, 0, 2, 2, 2, 5, 5, 9))
	must(t, err)
	want := []EpochStart{{2, 0}, {5, 4}, {9, 8}}
	if got := e.l.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("epochs %v, want %v", got, want)
	}
	must(t, e.l.AssignEpoch(9))
	if got := e.l.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("epochs %v after the same one again, want %v", got, want)
	}
	must(t, e.host.round(e.l))
	must(t, e.l.Truncate(t.Context(), 8))
	must(t, e.l.AssignEpoch(9)) // no batch of it is left: it begins anew
	must(t, e.l.AssignEpoch(11))
	want = []EpochStart{{2, 0}, {5, 4}, {11, 8}}
	if got := e.l.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("epochs %v after the truncation, want %v", got, want)
	}
	if err := e.l.AssignEpoch(10); !errors.Is(err, ErrFenced) {
		t.Fatal(err)
	}
}

// TestTheEpochBelowTheLogStartIsKnown: all records of an idle partition have expired under a leader that wrote none. Replicas that have
// them all ask about the epoch before.
func TestTheEpochBelowTheLogStartIsKnown(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppendIn(1, "a")
	e.mustAppendIn(2, "b")
	e.flushAll()
	must(t, e.l.AssignEpoch(5))
	must(t, e.l.PublishLogStart(t.Context(), 2))
	if segs := e.l.Segments(); len(segs) != 1 || segs[0].Base != 2 {
		t.Fatalf("%+v", segs)
	}
	if epoch, end := e.l.EndOffsetForEpoch(4); epoch != 2 || end != 2 {
		t.Fatalf("epoch %d ends at %d", epoch, end)
	}
	st, err := e.l.StartStateAt(2)
	must(t, err)
	if want := []EpochStart{{2, 1}, {5, 2}}; !slices.Equal(st.Epochs, want) {
		t.Fatalf("epochs %v, want %v", st.Epochs, want)
	}
}
