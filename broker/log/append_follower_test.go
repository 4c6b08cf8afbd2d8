package log

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// stamped builds batches of n records each, as a leader with the given epochs would have stamped them from base on.
func stamped(t tester, base int64, n int, epochs ...int32) []byte {
	t.Helper()
	var out []byte
	for i, epoch := range epochs {
		b := batch(t, n, 1, producerTag{id: 5, seq: int32(base) + int32(i*n)}, fmt.Sprintf("batch %02d", i))
		record.Stamp(b, base+int64(i*n), epoch)
		out = append(out, b...)
	}
	return out
}

// producerText is the producer state without the times at which this replica saw it.
func producerText(l *Log) string {
	states, _ := l.ProducerStates()
	for i := range states {
		states[i].LastActiveMS = 0
	}
	return fmt.Sprint(states)
}

// TestManyBatchesAreAsOneByOne: however the leader's batches are packed, the files, the indexes, the epochs and the producers are the same.
func TestManyBatchesAreAsOneByOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig()
		cfg.SegmentBytes, cfg.SnapshotInterval, cfg.IndexInterval = 900, 400, 150
		env := func() *env {
			disk := memfs.New()
			must(rt, disk.MkdirAll(dataDir))
			e := &env{t: rt, fs: disk, clk: clock.NewFake(testStart), cfg: cfg}
			var err error
			e.host, err = openHost(disk)
			must(rt, err)
			e.l, err = Create(t.Context(), e.openConfig(), testMeta(), StartState{})
			must(rt, err)
			return e
		}
		one, many := env(), env()
		var all []byte
		base, epoch := int64(0), int32(1)
		for i := range rapid.IntRange(1, 25).Draw(rt, "batches") {
			n := rapid.IntRange(1, 4).Draw(rt, "records")
			epoch += int32(rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(rt, "epochs"))
			p := producerTag{id: int64(i % 3), seq: int32(base)}
			b := batch(rt, n, 1000+int64(i), p, strings.Repeat("v", rapid.IntRange(1, 120).Draw(rt, "size")))
			record.Stamp(b, base, epoch)
			base += int64(n)
			if got, err := one.l.AppendAsFollower(b); err != nil || got != len(b) {
				rt.Fatalf("%d of %d bytes: %v", got, len(b), err)
			}
			all = append(all, b...)
		}
		for rest := all; len(rest) > 0; {
			n := 0
			for range rapid.IntRange(1, 9).Draw(rt, "in one buffer") {
				if n < len(rest) {
					n += header(rt, rest[n:]).Size()
				}
			}
			if got, err := many.l.AppendAsFollower(rest[:n]); err != nil || got != n {
				rt.Fatalf("%d of %d bytes: %v", got, n, err)
			}
			rest = rest[n:]
		}
		if a, b := fmt.Sprint(one.l.Segments(), one.l.Epochs(), one.l.Offsets()), fmt.Sprint(many.l.Segments(), many.l.Epochs(), many.l.Offsets()); a != b {
			rt.Fatalf("one by one: %s\ntogether:   %s", a, b)
		}
		if a, b := producerText(one.l), producerText(many.l); a != b {
			rt.Fatalf("one by one: %s\ntogether:   %s", a, b)
		}
		must(rt, one.host.round(one.l))
		must(rt, many.host.round(many.l))
		one.closeAll()
		many.closeAll()
		for _, ext := range []string{".log", ".index", ".timeindex"} {
			if a, b := contents(rt, one.fs, ext), contents(rt, many.fs, ext); a != b {
				rt.Fatalf("%s files differ", ext)
			}
		}
	})
}

// contents returns the files with this extension, one behind the other, with their names.
func contents(t tester, fsys vfs.FS, ext string) string {
	t.Helper()
	entries, err := fsys.ReadDir(testDir)
	must(t, err)
	var out strings.Builder
	for _, f := range entries {
		if strings.HasSuffix(f.Name, ext) {
			b, err := readFile(fsys, testDir+"/"+f.Name)
			must(t, err)
			fmt.Fprintln(&out, f.Name, string(b))
		}
	}
	return out.String()
}

func TestAFollowerTakesTheValidPrefix(t *testing.T) {
	const n = 2 // records in a batch
	size := len(stamped(t, 0, n, 4))
	for name, c := range map[string]struct {
		spoil func(b []byte) []byte // of four batches in epoch 4; the third is wrong
		want  error
	}{
		"checksum":         {func(b []byte) []byte { b[3*size-1] ^= 1; return b }, record.ErrCorrupt},
		"cut short":        {func(b []byte) []byte { return b[:3*size-1] }, record.ErrCorrupt},
		"half a header":    {func(b []byte) []byte { return b[:2*size+20] }, record.ErrCorrupt},
		"a gap":            {func(b []byte) []byte { return append(b[:2*size], stamped(t, 3*n, n, 4)...) }, ErrNotContiguous},
		"again":            {func(b []byte) []byte { return append(b[:2*size], b[size:]...) }, ErrNotContiguous},
		"an older epoch":   {func(b []byte) []byte { return append(b[:2*size], stamped(t, 2*n, n, 3)...) }, ErrFenced},
		"nothing, at last": {func(b []byte) []byte { return b[:2*size] }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, testConfig())
			got, err := e.l.AppendAsFollower(c.spoil(stamped(t, 0, n, 4, 4, 4, 4)))
			if got != 2*size || e.l.End() != 2*n || (c.want == nil) != (err == nil) || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("%d bytes (%d are right), end %d, %v", got, 2*size, e.l.End(), err)
			}
			if _, err := readAll(e.l, 0, 2*n); err != nil {
				t.Fatal(err)
			}
			got, err = e.l.AppendAsFollower(stamped(t, 2*n, n, 4, 7)) // the rest comes again
			if err != nil || got != 2*size || e.l.End() != 4*n || e.l.LatestEpoch() != 7 {
				t.Fatalf("%d bytes, end %d, %v", got, e.l.End(), err)
			}
		})
	}
	e := newEnv(t, testConfig())
	if got, err := e.l.AppendAsFollower(stamped(t, 1, n, 4)); got != 0 || !errors.Is(err, ErrNotContiguous) {
		t.Fatalf("%d bytes: %v", got, err)
	}
	if got, err := e.l.AppendAsFollower(nil); got != 0 || err != nil {
		t.Fatalf("nothing: %d bytes: %v", got, err)
	}
}

// TestARunIsOneWrite: batches of one epoch that go to one segment.
func TestARunIsOneWrite(t *testing.T) {
	var writes atomic.Int32
	fsys := errorfs.Wrap(newDisk(t), func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && strings.HasSuffix(op.Name, ".log") {
			writes.Add(1)
		}
		return nil
	})
	e := newEnvOn(t, fsys, DefaultConfig(), StartState{})
	if _, err := e.l.AppendAsFollower(stamped(t, 0, 1, 1, 1, 1, 1, 2, 2)); err != nil || writes.Load() != 2 || e.l.End() != 6 {
		t.Fatalf("%d writes, end %d, %v", writes.Load(), e.l.End(), err)
	}
}

// TestAFollowersFullDisk: what did not fit leaves no trace, what came before it stays, and the rest can come again.
func TestAFollowersFullDisk(t *testing.T) {
	fsys := errorfs.Wrap(newDisk(t), nil)
	e := newEnvOn(t, fsys, DefaultConfig(), StartState{})
	b := stamped(t, 0, 2, 1, 1, 2, 2) // two runs
	writes := 0
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && strings.HasSuffix(op.Name, ".log") {
			if writes++; writes == 2 {
				return errorfs.ShortWrite(70, syscall.ENOSPC)
			}
		}
		return nil
	})
	n, err := e.l.AppendAsFollower(b)
	if n != len(b)/2 || !errors.Is(err, ErrReadOnly) || !errors.Is(err, ErrNoSpace) || e.l.End() != 4 {
		t.Fatalf("%d of %d bytes, end %d, %v", n, len(b), e.l.End(), err)
	}
	fsys.SetInjector(nil)
	e.clk.Advance(retryDisk)
	if n, err := e.l.AppendAsFollower(b[n:]); err != nil || n != len(b)/2 || e.l.End() != 8 {
		t.Fatalf("%d bytes, end %d, %v", n, e.l.End(), err)
	}
	if got, err := readAll(e.l, 0, 8); err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%d bytes: %v", len(got), err)
	}
}

// TestATornRunIsCutAtABatch: a crash leaves any part of a run's one write.
func TestATornRunIsCutAtABatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	ends := map[int64]bool{}
	for range 60 {
		e := newEnv(t, DefaultConfig())
		if _, err := e.l.AppendAsFollower(stamped(t, 0, 2, 3)); err != nil {
			t.Fatal(err)
		}
		must(t, e.host.round(e.l))
		must(t, e.host.idle(e.l))
		b := stamped(t, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3)
		_, err := e.l.AppendAsFollower(b)
		must(t, err)
		c := openOn(t, e.fs.(*memfs.Mem).CrashClone(rng), DefaultConfig(), e.clk)
		end := c.l.End()
		ends[end] = true
		if c.rep.Quarantined != nil || end < 2 || end%2 != 0 {
			t.Fatalf("end %d, %+v", end, c.rep)
		}
		if _, err := c.l.AppendAsFollower(b[:0:0]); err != nil {
			t.Fatal(err)
		}
		if _, err := c.l.AppendAsFollower(stamped(t, end, 2, 3)); err != nil {
			t.Fatal(err)
		}
		c.host.close()
		e.host.close()
	}
	if len(ends) < 2 {
		t.Fatalf("the crashes left only %v", ends)
	}
}

// replicate gives the follower what the leader has from the follower's end on.
func replicate(t tester, leader, follower *Log, maxBytes int) {
	t.Helper()
	for follower.End() < leader.End() {
		r, err := leader.ReadReplicaRange(follower.End(), maxBytes)
		must(t, err)
		b := make([]byte, r.Len)
		err = r.ReadInto(b)
		r.Release()
		must(t, err)
		n, err := follower.AppendAsFollower(b)
		if err != nil || n != len(b) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	follower.SetHighWatermark(leader.HighWatermark())
}

// TestFailoverWithIdempotentProducers: the follower's producer state is the leader's, whatever came between; and when it leads, it
// knows duplicates and what comes next.
func TestFailoverWithIdempotentProducers(t *testing.T) {
	cfg := testConfig()
	cfg.MaxProducers, cfg.SnapshotInterval = 6, 600
	leader, follower := newEnv(t, cfg), newEnv(t, cfg)
	seq := map[int64]int32{}
	write := func(epoch int32, ids ...int64) {
		for _, id := range ids {
			n := int(id)%3 + 1
			a, err := leader.append(batch(t, n, 1, producerTag{id: id, seq: seq[id]}, "v"), epoch)
			must(t, err)
			if a.Duplicate {
				t.Fatal("a duplicate")
			}
			seq[id] += int32(n)
		}
		leader.l.SetHighWatermark(leader.l.End())
	}
	same := func(when string) {
		t.Helper()
		if a, b := producerText(leader.l), producerText(follower.l); a != b {
			t.Fatalf("%s\nleader:   %s\nfollower: %s", when, a, b)
		}
	}
	for i := range int32(12) {
		write(1+i/6, 0, 1, 2, 3, 4)
		if i == 6 {
			write(2, 5)
		}
		leader.clk.Advance(minProducerIdle)
	}
	write(3, 6, 7, 8) // more than are remembered: the longest idle ones go
	replicate(t, leader.l, follower.l, 700)
	same("after replication")

	must(t, follower.host.round(follower.l))
	at := follower.l.End() - 9
	must(t, follower.l.Truncate(t.Context(), at))
	replicate(t, leader.l, follower.l, 1<<20)
	same("after a truncation")

	must(t, follower.host.round(follower.l))
	must(t, follower.host.idle(follower.l))
	crashed := openOn(t, follower.fs.(*memfs.Mem).StrictCrashClone(), cfg, follower.clk)
	follower.closeAll()
	must(t, follower.reopen())
	same("after a clean stop")
	follower.closeAll()
	follower = crashed
	same("after a crash")

	for id := int64(6); id <= 8; id++ {
		n := int(id)%3 + 1
		a, err := follower.append(batch(t, n, 1, producerTag{id: id}, "v"), 4)
		if err != nil || !a.Duplicate {
			t.Fatalf("producer %d sends again to the new leader: %+v, %v", id, a, err)
		}
		if _, err := follower.append(batch(t, n, 1, producerTag{id: id, seq: int32(n) + 1}, "v"), 4); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Fatalf("producer %d leaves a gap: %v", id, err)
		}
		if a, err = follower.append(batch(t, n, 1, producerTag{id: id, seq: int32(n)}, "v"), 4); err != nil || a.Duplicate {
			t.Fatalf("producer %d goes on: %+v, %v", id, a, err)
		}
	}
	follower.host.close()
}

// TestAllocationsOfAFollower: none for a batch, and none for a buffer.
func TestAllocationsOfAFollower(t *testing.T) {
	e := &env{t: t, fs: rooted{vfs.OS(), t.TempDir()}, clk: clock.NewFake(testStart), cfg: DefaultConfig()}
	must(t, e.fs.MkdirAll(dataDir))
	var err error
	e.host, err = openHost(e.fs)
	must(t, err)
	e.l, err = Create(t.Context(), e.openConfig(), testMeta(), StartState{})
	must(t, err)
	const batches = 16
	b := stamped(t, 0, 2, make([]int32, batches)...)
	size := len(b) / batches
	appendAll := func() {
		for i := range batches {
			record.Stamp(b[i*size:(i+1)*size], e.l.End()+int64(2*i), 1)
		}
		if n, err := e.l.AppendAsFollower(b); err != nil || n != len(b) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	for range 300 {
		appendAll()
	}
	if n := testing.AllocsPerRun(300, appendAll); n > 1 {
		t.Errorf("%.1f allocations for %d batches", n, batches)
	}
	e.closeAll()
}

// BenchmarkAppendAsFollower: 64 batches of about 1 KiB, each in a call of its own, and all in one.
func BenchmarkAppendAsFollower(b *testing.B) {
	const batches = 64
	for name, together := range map[string]bool{"one by one": false, "together": true} {
		b.Run(name, func(b *testing.B) {
			e := &env{t: b, fs: rooted{vfs.OS(), b.TempDir()}, clk: clock.NewFake(testStart), cfg: DefaultConfig()}
			must(b, e.fs.MkdirAll(dataDir))
			var err error
			e.host, err = openHost(e.fs)
			must(b, err)
			e.l, err = Create(b.Context(), e.openConfig(), testMeta(), StartState{})
			must(b, err)
			one := batch(b, 1, 1, producerTag{id: 5}, strings.Repeat("x", 1<<10))
			buf := bytes.Repeat(one, batches)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				for i := range batches {
					record.Stamp(buf[i*len(one):(i+1)*len(one)], e.l.End()+int64(i), 1)
				}
				step := len(one)
				if together {
					step = len(buf)
				}
				for at := 0; at < len(buf); at += step {
					if _, err := e.l.AppendAsFollower(buf[at : at+step]); err != nil {
						b.Fatal(err)
					}
				}
			}
			e.closeAll()
		})
	}
}
