package storage

import (
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// TestRetentionAsksInsteadOfDeleting: with somebody to ask, the pass moves nothing, asks until the start has moved, and counts what went.
func TestRetentionAsksInsteadOfDeleting(t *testing.T) {
	type question struct {
		l      *log.Log
		target int64
	}
	var asked []question
	s := newStore(t, memfs.New(), func(c *Config) {
		c.LogConfig = func([]byte) (log.Config, error) {
			lc := log.DefaultConfig()
			lc.SegmentBytes, lc.IndexInterval, lc.RetentionBytes, lc.RetentionTime = 1024, 100, 2048, -1
			return lc, nil
		}
		c.Retention = func(l *log.Log, target int64) { asked = append(asked, question{l, target}) }
	})
	l := s.create(0)
	for range 40 {
		mustAppend(t, l, strings.Repeat("x", 100))
	}
	s.applyRetention(t.Context(), l) // nothing is committed
	if len(asked) != 0 {
		t.Fatalf("asked %v", asked)
	}
	s.round()
	l.SetHighWatermark(l.End())
	for range 2 {
		s.applyRetention(t.Context(), l)
	}
	if len(asked) != 2 || asked[0].l != l || asked[0].target <= 0 || asked[1] != asked[0] || l.LogStart() != 0 || valueOf(t, s.metrics.retired) != 0 {
		t.Fatalf("asked %v, log start %d", asked, l.LogStart())
	}
	if err := l.PublishLogStart(t.Context(), asked[0].target); err != nil {
		t.Fatal(err)
	}
	s.applyRetention(t.Context(), l)
	if len(asked) != 2 || l.LogStart() != asked[0].target || valueOf(t, s.metrics.retired) == 0 {
		t.Fatalf("asked %v, log start %d, %v segments counted", asked, l.LogStart(), valueOf(t, s.metrics.retired))
	}
}

// TestTheJournaledLogStartOutlivesARestart: with the published one beside it, each as it was.
func TestTheJournaledLogStartOutlivesARestart(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, smallSegments)
	l, start, _ := deletedFrom(t, s)
	wanted := l.End() - 1
	if err := l.JournalLogStart(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	crashed := disk.StrictCrashClone()
	s.mustClose()
	lost := disk.StrictCrashClone()
	loseRecords(t, lost)
	for name, disk := range map[string]*memfs.Mem{"crash": crashed, "clean stop": disk, "lost records": lost} {
		l := newStore(t, disk, smallSegments).mustLog(0)
		if l.LogStart() != start || l.JournaledLogStart() != wanted {
			t.Errorf("%s: log start %d, journaled %d, want %d, %d", name, l.LogStart(), l.JournaledLogStart(), start, wanted)
		}
	}
}
