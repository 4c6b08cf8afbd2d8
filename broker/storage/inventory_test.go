package storage

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// appendFrom appends one record of an idempotent producer.
func appendFrom(t testing.TB, l *log.Log, epoch int32, producer int64, sequence int32) {
	t.Helper()
	b := record.NewBuilder(record.CodecNone)
	b.Append(testStart.UnixMilli(), []byte("k"), []byte("v"), nil)
	b.SetProducer(producer, 0, sequence)
	raw, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(raw, h, epoch, testStart); err != nil {
		t.Fatal(err)
	}
}

func inventoryOf(t testing.TB, s *storeEnv) map[int32]LogInventory {
	t.Helper()
	all, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[int32]LogInventory{}
	for i, in := range all {
		if in.Ref.TopicID != testTopic || i > 0 && all[i-1].Ref.Partition >= in.Ref.Partition {
			t.Fatalf("%+v", all)
		}
		out[in.Ref.Partition] = in
	}
	return out
}

// TestInventory: of open logs, damaged ones and missing ones, before and after a restart.
func TestInventory(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, smallSegments)
	for n := range int32(4) {
		l := s.create(n)
		l.AdoptEpoch(10 + n)
		for i := range int32(30) {
			appendFrom(t, l, 5+n, int64(100*n), i)
		}
		s.round()
		l.SetHighWatermark(30)
		if err := l.PublishLogStart(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
	}
	appendFrom(t, s.mustLog(0), 6, 7, 0) // not flushed
	s.mustLog(0).AdoptEpoch(40)          // not durable
	before := inventoryOf(t, s)
	in := before[0]
	if in.AdoptedEpoch != 10 || in.LatestEpoch != 6 || in.LogStart != 3 || in.Flushed != 30 || in.End != 31 || in.MaxProducerID != 7 ||
		in.TopicName != "orders" || string(in.TopicConfig) != "config" || in.LogID != s.mustLog(0).LogID() || in.Health != log.Online {
		t.Fatalf("%+v", in)
	}
	if len(in.Epochs) != 2 || in.Epochs[0].Epoch != 5 || in.Epochs[0].Start > 3 || in.Epochs[1] != (log.EpochStart{Epoch: 6, Start: 30}) {
		t.Errorf("epochs %+v", in.Epochs)
	}
	if in := before[2]; in.AdoptedEpoch != 12 || in.LatestEpoch != 7 || in.End != 30 || in.MaxProducerID != 200 {
		t.Fatalf("%+v", in)
	}
	s.round()
	s.mustClose()
	if err := disk.RemoveAll(testDir + "/" + testTopic.String() + "/2"); err != nil {
		t.Fatal(err)
	}
	dir := testDir + "/" + testTopic.String() + "/3"
	bases, err := segmentBases(disk, dir)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, disk, segment.Path(dir, bases[len(bases)-1], segment.ExtLog), 80, 1)
	for _, path := range []string{dir + "/clean", testDir + "/clean"} {
		if err := disk.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	s = newStore(t, disk, smallSegments)
	after := inventoryOf(t, s)
	if in := after[0]; in.AdoptedEpoch != 40 || in.LatestEpoch != 6 || in.Flushed != 31 || in.End != 31 || in.MaxProducerID != 7 {
		t.Errorf("after a restart: %+v", in)
	}
	for n, name := range map[int32]string{2: "", 3: "orders"} {
		in := after[n]
		if in.Health != log.Quarantined || in.AdoptedEpoch != 10+n || in.LatestEpoch != 5+n || in.LogStart != 3 || in.Flushed != 30 || in.End != 30 ||
			in.LogID != before[n].LogID || in.TopicName != name || in.MaxProducerID != -1 {
			t.Errorf("partition %d: %+v", n, in)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Inventory(cancelled); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSnapshotIsReplacedDurably: a crash at any change leaves the old one or the new one.
func TestSnapshotIsReplacedDurably(t *testing.T) {
	if b, err := LoadSnapshot(memfs.New(), "/nowhere"); b != nil || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	older, newer := bytes.Repeat([]byte("old"), 1000), bytes.Repeat([]byte("newer"), 2000)
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k, hit := int64(1), true; hit; k++ {
				disk := memfs.New()
				fsys := errorfs.Wrap(disk, nil)
				s := newStore(t, fsys)
				if err := s.SaveSnapshot(older); err != nil {
					t.Fatal(err)
				}
				fsys.CrashAt(fsys.Mutations() + k)
				saved := s.SaveSnapshot(newer) == nil
				hit = fsys.Crashed()
				fsys.Crash()
				_ = s.Close()
				after := clone(disk)
				again := newStore(t, after)
				if r := again.Report(); len(r.Foreign) > 0 {
					t.Fatalf("change %d: %+v", k, r)
				}
				again.mustClose()
				got, err := LoadSnapshot(after, testDir)
				if err != nil || !bytes.Equal(got, newer) && (saved || !bytes.Equal(got, older)) {
					t.Fatalf("change %d: %d bytes, %v", k, len(got), err)
				}
				if _, err := after.Stat(testDir + "/" + snapshotName + tmpSuffix); err == nil {
					t.Fatalf("change %d: the temporary file is left", k)
				}
			}
		})
	}
}

func TestSnapshotIsBounded(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk)
	var large *SnapshotTooLargeError
	if err := s.SaveSnapshot(make([]byte, SnapshotMaxBytes+1)); !errors.As(err, &large) || large.Limit != SnapshotMaxBytes {
		t.Errorf("save: %v", err)
	}
	f, err := disk.Create(testDir + "/" + snapshotName)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(SnapshotMaxBytes+1), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSnapshot(disk, testDir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("load: %v", err)
	}
}

// observed counts what a KeyObserver sees.
type observed struct {
	refs    []PartitionRef
	offsets []int64
	bytes   int
}

func (o *observed) ObserveBatch(ref PartitionRef, batch []byte, h record.Header) {
	o.refs = append(o.refs, ref)
	o.offsets = append(o.offsets, h.BaseOffset)
	o.bytes += len(batch)
}

// TestTheKeyObserverSeesWhatALeaderAppends: once, stamped; neither duplicates, nor what is refused, nor what a follower gets.
func TestTheKeyObserverSeesWhatALeaderAppends(t *testing.T) {
	var seen observed
	s := newStore(t, memfs.New(), func(c *Config) { c.KeyObserver = &seen })
	l, follower := s.create(0), s.create(1)
	appendFrom(t, l, 1, 9, 0)
	appendFrom(t, l, 1, 9, 1)
	appendFrom(t, l, 1, 9, 1) // a duplicate
	if _, err := appendOne(l, 0, "an older epoch"); err == nil {
		t.Fatal("not refused")
	}
	buf := make([]byte, 1<<10)
	r, err := l.ReadReplicaRange(0, len(buf))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ReadInto(buf); err != nil {
		t.Fatal(err)
	}
	r.Release()
	if n, err := follower.AppendAsFollower(buf[:r.Len]); err != nil || n != r.Len {
		t.Fatal(n, err)
	}
	if len(seen.refs) != 2 || seen.refs[1] != (PartitionRef{testTopic, 0}) || seen.offsets[1] != 1 || int64(seen.bytes) != l.Size() {
		t.Errorf("%+v", seen)
	}
	for _, l := range []*log.Log{l, follower} {
		if records, in, out := l.Counters(); records != 2 || int64(in) != l.Size() || out != 0 {
			t.Errorf("partition %d: %d records, %d bytes in, %d out; a replica's reads do not count", l.Partition(), records, in, out)
		}
	}
	if _, _, err := l.Read(0, len(buf), 2, buf); err != nil {
		t.Fatal(err)
	}
	if _, _, out := l.Counters(); int64(out) != l.Size() {
		t.Errorf("%d bytes out", out)
	}
}

func TestOnSyncFailedIsCalledOnce(t *testing.T) {
	var calls []error
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, nil)
	s := newStore(t, fsys, func(c *Config) { c.OnSyncFailed = func(err error) { calls = append(calls, err) } })
	l, other := s.create(0), s.create(1)
	s.round()
	fsys.SetInjector(errorfs.FailAll(errors.New("broken"), errorfs.Sync))
	mustAppend(t, l, "x")
	mustAppend(t, other, "x")
	var failed *SyncFailedError
	if err := s.Run(t.Context()); !errors.As(err, &failed) || len(calls) != 1 || !errors.Is(calls[0], failed) {
		t.Fatalf("%v, calls %v", err, calls)
	}
}
