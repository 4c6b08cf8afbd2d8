package storage

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

const gib = 1 << 30

func TestReserveDefaultsToTheSmallerOfAGibibyteAndTwoPercent(t *testing.T) {
	for _, c := range []struct{ configured, total, want int64 }{
		{0, 1000 * gib, gib},
		{0, 10 * gib, 10 * gib / 50},
		{0, 0, 0},
		{5 * gib, 10 * gib, 5 * gib},
	} {
		d := diskWatch{configured: c.configured}
		d.observe(testStart, vfs.Usage{Total: c.total, Free: c.total})
		if got := d.usage().Reserve; got != c.want {
			t.Errorf("reserve of %d, configured %d: %d, want %d", c.total, c.configured, got, c.want)
		}
	}
}

func TestDiskFullHasAMargin(t *testing.T) {
	d := diskWatch{configured: 800}
	for i, step := range []struct {
		free            int64
		became, resumed bool
	}{
		{10_000, false, false},
		{800, false, false},
		{799, true, false},
		{0, false, false},
		{899, false, false}, // above the reserve, within the margin
		{900, false, true},
		{850, false, false}, // the margin is for the way back only
		{1, true, false},
	} {
		became, resumed := d.observe(testStart.Add(time.Duration(i)*time.Second), vfs.Usage{Total: 10_000, Free: step.free})
		if became != step.became || resumed != step.resumed {
			t.Errorf("step %d, %d free: became %v, resumed %v", i, step.free, became, resumed)
		}
	}
}

func TestFullInFollowsTheRate(t *testing.T) {
	d := diskWatch{configured: 1000}
	free, at := int64(1_000_000), testStart
	observe := func(delta int64) time.Duration {
		free, at = free-delta, at.Add(time.Second)
		d.observe(at, vfs.Usage{Total: 2_000_000, Free: free})
		return d.usage().FullIn
	}
	if got := observe(0); got != Never {
		t.Errorf("after one look: %v", got)
	}
	var got time.Duration
	for range 600 {
		got = observe(100)
	}
	want := time.Duration(float64(free-1000) / 100 * float64(time.Second))
	if got < want*98/100 || got > want*105/100 {
		t.Errorf("at 100 bytes/s: %v, want about %v", got, want)
	}
	for range 1200 {
		got = observe(-10)
	}
	if got != Never {
		t.Errorf("while space grows: %v", got)
	}
	if got = observe(free); got != 0 {
		t.Errorf("on a full disk: %v", got)
	}
	d.observe(at, vfs.Usage{Total: 2_000_000, Free: 500_000}) // the clock stands still
	if got := d.usage().FullIn; got < 0 {
		t.Errorf("without time: %v", got)
	}
}

// noUsage is a platform that cannot tell free space.
type noUsage struct{ *memfs.Mem }

func (noUsage) DiskUsage(string) (vfs.Usage, error) { return vfs.Usage{}, errors.ErrUnsupported }

func (noUsage) FileSystem(string) (string, bool, error) { return "", false, errors.ErrUnsupported }

func TestPlatformWithoutDiskUsageNeverRefuses(t *testing.T) {
	s := newStore(t, noUsage{memfs.New()})
	if err := s.CheckProduce(); err != nil || s.DiskUsage() != (Usage{}) {
		t.Errorf("produce: %v, usage %+v", err, s.DiskUsage())
	}
}

func TestRunWatchesDiskAndRetention(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, func(c *Config) {
		c.ReserveBytes = 1 << 20
		c.LogConfig = func([]byte) (log.Config, error) {
			lc := log.DefaultConfig()
			lc.SegmentBytes, lc.IndexInterval, lc.RetentionBytes, lc.RetentionTime = 1024, 100, 2048, -1
			return lc, nil
		}
	})
	l := s.create(0)
	for range 100 {
		mustAppend(t, l, strings.Repeat("x", 100))
	}
	s.round()
	l.SetHighWatermark(l.End())
	stop := s.start()
	until := func(what string, ok func() bool) {
		t.Helper()
		for i := 0; !ok(); i++ {
			if i == 1_000_000 {
				t.Fatalf("%s does not happen", what)
			}
			s.clk.Advance(time.Second)
			runtime.Gosched()
		}
	}
	until("retention", func() bool { return l.LogStart() > 0 && l.Size() < 4096 && valueOf(t, s.metrics.retired) > 0 })
	disk.SetCapacity(1 << 19)
	until("refusal of produce", func() bool { return errors.Is(s.CheckProduce(), ErrDiskFull) })
	disk.SetCapacity(1 << 30)
	until("the way back", func() bool { return s.CheckProduce() == nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run twice")
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	disk := memfs.New()
	open := func() *Store {
		s, err := Open(t.Context(), testConfig(), disk, testClock(), slog.New(slog.DiscardHandler), reg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e := &storeEnv{t: t, fs: disk, Store: open()} // the names are free again
	l := e.create(0)
	mustAppend(t, l, "x")
	e.round()
	if err := disk.RemoveAll(l.Dir()); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	for _, name := range []string{
		"runnel_storage_sync_rounds_total", "runnel_storage_sync_duration_seconds", "runnel_storage_sync_failures_total",
		"runnel_storage_dirty_logs", "runnel_storage_journal_written_bytes_total", "runnel_storage_journal_size_bytes",
		"runnel_storage_disk_free_bytes", "runnel_storage_disk_size_bytes", "runnel_storage_disk_reserve_bytes",
		"runnel_storage_quarantined_partitions", "runnel_storage_partitions", "runnel_storage_retention_deleted_segments_total",
	} {
		if !got[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if valueOf(t, e.metrics.journalBytes) == 0 {
		t.Error("journal bytes are not counted")
	}
	abandon(t, e)
	s = open()
	families, err = reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "runnel_storage_quarantined_partitions" && f.GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("quarantined partitions: %v", f.GetMetric())
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
