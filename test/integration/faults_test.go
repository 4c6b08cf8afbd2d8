package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

func onFS(t *testing.T, fsys vfs.FS, edits ...func(*config.Config)) *testcluster.Cluster {
	t.Helper()
	return testcluster.New(t, testcluster.Options{Etcd: shared, FS: fsys, Configure: func(c *config.Config) {
		for _, edit := range edits {
			edit(c)
		}
	}})
}

// flip inverts one byte of a file.
func flip(t *testing.T, fsys vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fsys.OpenRW(name)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

const firstSegment = "00000000000000000000.log"

// Damage below what was made durable is never cut away: the partition waits for somebody to accept the loss, the others go on.
func TestDamagedPartitionIsQuarantinedUntilAccepted(t *testing.T) {
	t.Parallel()
	disk := memfs.New()
	c := onFS(t, disk)
	b, cl := c.Broker(1), c.Client()
	topic := create(t, cl, "t", 2, client.TopicConfig{})
	produce(t, cl, "t", 0, values(5)...)
	// The round of these syncs the journal's word on those.
	produce(t, cl, "t", 1, values(3)...)
	before := partitions(t, cl, "t")

	after := disk.StrictCrashClone()
	b.Stop()
	b.FS = after
	log := filepath.Join(topicDir(b, topic.ID), "0", firstSegment)
	info, err := after.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, after, log, info.Size/2) // in the third of five batches
	b.Start()

	damaged := partitions(t, cl, "t")
	if p := damaged[0]; p.Health != client.HealthQuarantined || p.Detail == "" || !strings.Contains(p.Detail, firstSegment) {
		t.Errorf("the damaged partition is shown as %+v", p)
	}
	if p := damaged[1]; p.Health != client.HealthOnline {
		t.Errorf("the other partition is shown as %+v", p)
	}
	if got := produce(t, cl, "t", 1, "other"); got[0] != 3 {
		t.Errorf("the other partition goes on at %d", got[0])
	}
	s := rawProduce(t, b.Address())
	if e := s.do(topic.ID, 0, batch(t, "refused")).GetError(); e.GetReason() != "PARTITION_QUARANTINED" || codes.Code(e.GetCode()) != codes.DataLoss || e.GetRetriable() {
		t.Errorf("produce to the damaged partition: %v", e)
	}
	if e := rawFetch(t, b.Address(), topic.ID, 0, 0).GetError(); e.GetReason() != "PARTITION_QUARANTINED" || e.GetRetriable() {
		t.Errorf("fetch from the damaged partition: %v", e)
	}

	plan, err := cl.Admin().RecoverPartition(bounded(t), tp("t", 0), false)
	if err != nil || plan.Applied || plan.KeptEnd != 2 || plan.LostEnd != 5 || plan.Detail == "" {
		t.Fatalf("the plan: %+v, %v", plan, err)
	}
	if p := partitions(t, cl, "t")[0]; p.Health != client.HealthQuarantined {
		t.Fatalf("a plan has changed something: %+v", p)
	}
	done, err := cl.Admin().RecoverPartition(bounded(t), tp("t", 0), true)
	if err != nil || !done.Applied || done.KeptEnd != plan.KeptEnd || done.LostEnd != plan.LostEnd {
		t.Fatalf("the recovery: %+v, %v", done, err)
	}
	// The log goes on behind what was kept. Its new epoch tells the records that now have the lost ones' offsets from those.
	if got := produce(t, cl, "t", 0, "again"); got[0] != plan.KeptEnd {
		t.Errorf("the log goes on at %d, want %d", got[0], plan.KeptEnd)
	}
	if p := partitions(t, cl, "t")[0]; p.Health != client.HealthOnline || p.LeaderEpoch <= before[0].LeaderEpoch {
		t.Errorf("after the recovery: %+v, before the damage epoch %d", p, before[0].LeaderEpoch)
	}
	want := []string{"value-0", "value-1", "again"}
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("read %q, want %q", got, want)
	}
	_, err = cl.Admin().RecoverPartition(bounded(t), tp("t", 0), false)
	wantReason(t, err, codes.FailedPrecondition, "NOT_DAMAGED")
	b.Restart()
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("after a restart: %q, want %q", got, want)
	}
}

// A directory that vanished is damage as well: an empty one must not take its place.
func TestLostDirectoryIsQuarantined(t *testing.T) {
	t.Parallel()
	disk := memfs.New()
	c := onFS(t, disk)
	b, cl := c.Broker(1), c.Client()
	topic := create(t, cl, "t", 2, client.TopicConfig{})
	produce(t, cl, "t", 0, values(5)...)
	produce(t, cl, "t", 1, values(3)...)
	b.Stop()
	if err := disk.RemoveAll(filepath.Join(topicDir(b, topic.ID), "0")); err != nil {
		t.Fatal(err)
	}
	b.Start()
	if p := partitions(t, cl, "t"); p[0].Health != client.HealthQuarantined || p[1].Health != client.HealthOnline {
		t.Errorf("partitions are shown as %s (%s) and %s", p[0].Health, p[0].Detail, p[1].Health)
	}
	plan, err := cl.Admin().RecoverPartition(bounded(t), tp("t", 0), true)
	if err != nil || !plan.Applied || plan.KeptEnd > 0 || plan.LostEnd != 5 {
		t.Fatalf("the recovery: %+v, %v", plan, err)
	}
	if got := produce(t, cl, "t", 0, "again"); got[0] < 5 {
		t.Errorf("offset %d was given to a record before", got[0])
	}
}

// Bytes above what was made durable are a torn tail: they go, and nothing else happens.
func TestTornTailIsCutOff(t *testing.T) {
	t.Parallel()
	disk := memfs.New()
	c := onFS(t, disk)
	b, cl := c.Broker(1), c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(5)...)
	after := disk.StrictCrashClone()
	b.Stop()
	b.FS = after
	log := filepath.Join(topicDir(b, topic.ID), "0", firstSegment)
	f, err := after.OpenRW(log)
	if err != nil {
		t.Fatal(err)
	}
	info, err := after.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(batch(t, "torn")[:40], info.Size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	b.Start()
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != 5 {
		t.Errorf("%d records after the crash", len(got))
	}
	if got := produce(t, cl, "t", 0, "next"); got[0] != 5 {
		t.Errorf("the log goes on at %d", got[0])
	}
}

func TestProduceStopsBelowTheReserveAndResumes(t *testing.T) {
	t.Parallel()
	disk := memfs.New()
	const reserve = 1 << 20
	c := onFS(t, disk, func(c *config.Config) { c.Storage.Reserve = reserve })
	cl := c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(3)...)
	usage, err := disk.DiskUsage("/")
	if err != nil {
		t.Fatal(err)
	}
	disk.SetCapacity(usage.Total - usage.Free + reserve/2)
	s := rawProduce(t, c.Broker(1).Address())
	small := batch(t, "x")
	var acked int64
	testcluster.Eventually(t, func() error {
		resp := s.do(topic.ID, 0, small)
		if resp.GetError() == nil {
			acked++
			return errors.New("there is still room")
		}
		if e := resp.GetError(); e.GetReason() != "NO_SPACE" || !e.GetRetriable() || codes.Code(e.GetCode()) != codes.ResourceExhausted {
			t.Fatalf("on a full disk: %v", e)
		}
		return nil
	})
	if got := read(t, cl, client.Earliest, tp("t", 0)); int64(len(got)) != 3+acked {
		t.Errorf("%d of %d records can be read from a full disk", len(got), 3+acked)
	}
	if p := partitions(t, cl, "t")[0]; p.Leader != 1 {
		t.Errorf("on a full disk: %+v", p)
	}
	// A producer that waits is served as soon as there is room.
	done := make(chan error, 1)
	r := &client.Record{Topic: "t", Value: []byte("waited")}
	producer(t, cl).Produce(bounded(t), r, func(_ *client.Record, err error) { done <- err })
	disk.SetCapacity(1 << 40)
	if err := <-done; err != nil || r.Offset != 3+acked {
		t.Errorf("with room again: offset %d, %v, want %d", r.Offset, err, 3+acked)
	}
}

func TestWritesThatFindNoSpace(t *testing.T) {
	t.Parallel()
	disk := errorfs.Wrap(memfs.New(), nil)
	c := onFS(t, disk)
	cl := c.Client()
	topic := create(t, cl, "t", 2, client.TopicConfig{})
	produce(t, cl, "t", 0, values(3)...)
	full := filepath.Join(topicDir(c.Broker(1), topic.ID), "0")
	disk.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && strings.HasPrefix(op.Name, full) && strings.HasSuffix(op.Name, ".log") {
			return errorfs.ShortWrite(20, syscall.ENOSPC)
		}
		return nil
	})
	s := rawProduce(t, c.Broker(1).Address())
	for range 3 {
		if e := s.do(topic.ID, 0, batch(t, "x")).GetError(); e.GetReason() != "NO_SPACE" || !e.GetRetriable() {
			t.Fatalf("a write without space: %v", e)
		}
	}
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != 3 {
		t.Errorf("%d records can be read", len(got))
	}
	if p := partitions(t, cl, "t")[0]; p.Health != client.HealthReadOnly || p.Detail == "" {
		t.Errorf("the full partition is shown as %+v", p)
	}
	if resp := s.do(topic.ID, 1, batch(t, "other")); resp.GetError() != nil {
		t.Errorf("the other partition: %v", resp)
	}
	disk.SetInjector(nil)
	if got := produce(t, cl, "t", 0, "again"); got[0] != 3 {
		t.Errorf("the log goes on at %d", got[0])
	}
	c.Broker(1).Restart()
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); len(got) != 4 || got[3] != "again" {
		t.Errorf("after a restart: %q", got)
	}
}

// failSyncs fails the syncs of records.
func failSyncs(op errorfs.Op) error {
	if op.Kind == errorfs.VolumeSync || op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, ".log") {
		return errorfs.LosePages(syscall.EIO)
	}
	return nil
}

// After a sync that failed nothing is acknowledged any more, and the broker ends: only a restart, which reads what the disk really has,
// may go on.
func TestFailedSyncStopsTheBroker(t *testing.T) {
	t.Parallel()
	mem := memfs.New()
	disk := errorfs.Wrap(mem, nil)
	c := onFS(t, disk)
	b, cl := c.Broker(1), c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(4)...)
	disk.SetInjector(failSyncs)
	s := rawProduce(t, b.Address())
	for i := range uint64(20) {
		s.send(i, topic.ID, 0, batch(t, fmt.Sprint("unsynced ", i)))
	}
	for {
		resp, err := s.stream.Recv()
		if err != nil {
			break
		}
		if resp.GetError() == nil {
			t.Errorf("acked without a sync: %v", resp)
		}
	}
	var failed *storage.SyncFailedError
	if err := b.Wait(); !errors.As(err, &failed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("the broker ended with %v", err)
	}
	// The power goes as well, and takes everything that was not synced.
	b.FS = mem.StrictCrashClone()
	b.Start()
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); strings.Join(got, " ") != strings.Join(values(4), " ") {
		t.Errorf("after the restart: %q", got)
	}
	if got := produce(t, cl, "t", 0, "next"); got[0] != 4 {
		t.Errorf("the log goes on at %d", got[0])
	}
}

// Three failed syncs in ten minutes: the disk has to be looked at before the broker starts again.
func TestRepeatedSyncFailuresKeepTheBrokerDown(t *testing.T) {
	t.Parallel()
	disk := errorfs.Wrap(memfs.New(), nil)
	c := onFS(t, disk)
	b, cl := c.Broker(1), c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	for range 3 {
		disk.SetInjector(failSyncs)
		rawProduce(t, b.Address()).send(1, topic.ID, 0, batch(t, "x"))
		var failed *storage.SyncFailedError
		if err := b.Wait(); !errors.As(err, &failed) {
			t.Fatalf("the broker ended with %v", err)
		}
		disk.SetInjector(nil)
		b.Launch()
		if again := awaitReadyOrEnd(b); again != nil {
			var often *storage.StoppedTooOftenError
			if !errors.As(again, &often) || len(often.Stops) != 3 || often.Within != 10*time.Minute {
				t.Fatalf("the restart was refused with %v", again)
			}
			if err := storage.ClearStops(disk, b.DataDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			b.Start()
			return
		}
	}
	t.Error("the broker starts after three failed syncs")
}

// awaitReadyOrEnd returns nil once the broker is ready, or what it ended with.
func awaitReadyOrEnd(b *testcluster.Broker) error {
	for b.Running() {
		if state, err := b.Readiness(); err == nil && state.Ready {
			return nil
		}
	}
	return b.Wait()
}
