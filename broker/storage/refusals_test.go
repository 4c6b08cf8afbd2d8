package storage

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

var errVolume = errors.New("no space")

// TestARefusalOutlastsIt: it is over once writes were possible for a while, and for longer when it comes back soon.
func TestARefusalOutlastsIt(t *testing.T) {
	var w refusalWatch
	now := testStart
	over := func() time.Duration {
		w.observe(now, errVolume, nil)
		seen := now
		for {
			now = now.Add(time.Second)
			if w.observe(now, nil, nil).Volume == nil {
				return now.Sub(seen)
			}
		}
	}
	for i, want := range []time.Duration{calm, 2 * calm, 4 * calm, 8 * calm, 16 * calm, 32 * calm, 32 * calm} {
		if got := over(); got != want {
			t.Errorf("refusal %d stood for %v, want %v", i, got, want)
		}
	}
	now = now.Add(relapse)
	if got := over(); got != calm {
		t.Errorf("after a calm time a refusal stands for %v, want %v", got, calm)
	}
}

// TestRefusalLaws: what is refused stands; what stands was refused within the longest time; logs come ordered, and not too many.
func TestRefusalLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w refusalWatch
		now := testStart
		last := map[partitionKey]time.Time{}
		var lastVolume time.Time
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
			var volume error
			if rapid.Bool().Draw(t, "volume") {
				volume, lastVolume = errVolume, now
			}
			refused := map[partitionKey]error{}
			for _, n := range rapid.SliceOfDistinct(rapid.Int32Range(0, 5), rapid.ID[int32]).Draw(t, "logs") {
				refused[partitionKey{testTopic, n}] = errVolume
				last[partitionKey{testTopic, n}] = now
			}
			got := w.observe(now, volume, refused)
			if volume != nil && got.Volume == nil || got.Volume != nil && now.Sub(lastVolume) >= calm<<maxCalmLevel {
				t.Fatalf("volume %v, last refused %v ago", got.Volume, now.Sub(lastVolume))
			}
			for k := range refused {
				if !slices.Contains(got.Logs, k.ref()) {
					t.Fatalf("%v is refused and not listed in %v", k, got.Logs)
				}
			}
			for i, ref := range got.Logs {
				if now.Sub(last[partitionKey(ref)]) >= calm<<maxCalmLevel || i > 0 && compareKeys(partitionKey(got.Logs[i-1]), partitionKey(ref)) >= 0 {
					t.Fatalf("%v", got.Logs)
				}
			}
		}
	})
	many := map[partitionKey]error{}
	for n := range int32(MaxRefusedLogs + 10) {
		many[partitionKey{testTopic, n}] = errVolume
	}
	var w refusalWatch
	if got := w.observe(testStart, nil, many); len(got.Logs) != MaxRefusedLogs || got.Logs[0].Partition != 0 {
		t.Errorf("%d logs are listed, from %v", len(got.Logs), got.Logs[0])
	}
	w.observe(testStart.Add(calm), nil, nil)
	if w.observe(testStart.Add(calm+relapse), nil, nil); len(w.logs) != 0 {
		t.Errorf("%d logs are remembered for ever", len(w.logs))
	}
}

// TestRefusals: a log that fails alone is listed alone, and everything that says "no space" or "read-only" stands for the volume. Both
// end by themselves, although nobody appends any more.
func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		wide bool
	}{
		"EIO":    {syscall.EIO, false},
		"ENOSPC": {syscall.ENOSPC, true},
		"EROFS":  {syscall.EROFS, true},
	} {
		t.Run(name, func(t *testing.T) {
			var bad atomic.Bool
			fsys := errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
				if bad.Load() && op.Kind == errorfs.Write && strings.HasSuffix(op.Name, "/1/00000000000000000000.log") {
					return tc.err
				}
				return nil
			})
			s := newStore(t, fsys)
			s.create(0)
			l := s.create(1)
			mustAppend(t, l, "x")
			stop := s.start()
			if r := s.Refusals(); r.Volume != nil || r.Logs != nil {
				t.Errorf("%+v", r)
			}
			until := func(what string, step time.Duration, ok func(Refusals) bool) {
				t.Helper()
				for i := 0; !ok(s.Refusals()); i++ {
					if i == 1_000_000 {
						t.Fatalf("%s does not happen: %+v", what, s.Refusals())
					}
					s.clk.Advance(step)
					runtime.Gosched()
				}
			}
			bad.Store(true)
			if _, err := appendOne(l, 0, "refused"); !errors.Is(err, log.ErrReadOnly) {
				t.Fatal(err)
			}
			until("the refusal, without waiting for the next look", 0, func(r Refusals) bool {
				return (r.Volume != nil) == tc.wide && slices.Equal(r.Logs, []PartitionRef{{testTopic, 1}}) == !tc.wide && (r.Volume != nil || r.Logs != nil)
			})
			s.clk.Advance(10 * calm)
			bad.Store(false)
			until("the way back", time.Second, func(r Refusals) bool { return r.Volume == nil && r.Logs == nil })
			if st := l.State(); st.Health != log.Online {
				t.Errorf("the log is %v", st.Health)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBelowTheReserveTheVolumeRefuses: logs that can still write do not matter, and none is tried.
func TestBelowTheReserveTheVolumeRefuses(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, func(c *Config) { c.ReserveBytes = 1 << 20 })
	l := s.create(0)
	mustAppend(t, l, "x")
	look := func() Refusals {
		s.lookAtDisk()
		s.lookAtRefusals(true)
		return s.Refusals()
	}
	if r := look(); r.Volume != nil {
		t.Errorf("%+v", r)
	}
	disk.SetCapacity(1 << 19)
	if r := look(); !errors.Is(r.Volume, ErrDiskFull) || l.State().Health != log.Online {
		t.Errorf("%+v", r)
	}
	disk.SetCapacity(1 << 30)
	if r := look(); r.Volume == nil || s.CheckProduce() != nil {
		t.Errorf("leaderships come back at once: %+v, produce %v", r, s.CheckProduce())
	}
	s.clk.Advance(calm)
	if r := look(); r.Volume != nil {
		t.Errorf("%+v", r)
	}
}

// TestAJournalWithoutSpaceIsTheVolumes: a leader that cannot begin its epoch is of no use, although nobody has appended.
func TestAJournalWithoutSpaceIsTheVolumes(t *testing.T) {
	var full atomic.Bool
	s := newStore(t, errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.Write && strings.HasSuffix(op.Name, "/"+journalName) {
			return syscall.ENOSPC
		}
		return nil
	}))
	l := s.create(0)
	s.round()
	full.Store(true)
	l.AdoptEpoch(3)
	s.round()
	s.lookAtRefusals(true)
	if r := s.Refusals(); !errors.Is(r.Volume, log.ErrNoSpace) {
		t.Errorf("%+v", r)
	}
}
