package storage

import (
	"errors"
	"testing"

	"runnel.dev/runnel/internal/vfs"
)

// TestStoreOnTheOperatingSystem walks through a life on real files: everything else here runs in memory.
func TestStoreOnTheOperatingSystem(t *testing.T) {
	dir := t.TempDir() + "/not/there/yet"
	inDir := func(c *Config) { c.DataDir = dir }
	s := newStore(t, vfs.OS(), inDir)
	stop := s.start()
	for n := range int32(40) {
		l := s.create(n)
		end := mustAppend(t, l, "x")
		if n == 0 {
			<-flushedTo(l, end)
		}
	}
	cfg := testConfig()
	cfg.DataDir = dir
	if _, err := openStore(vfs.OS(), cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("second store on one directory: %v", err)
	}
	if u := s.DiskUsage(); u.Total <= 0 || u.Free <= 0 || u.Reserve <= 0 || u.FullIn <= 0 {
		t.Errorf("usage: %+v", u)
	}
	if err := s.DeleteLog(Tombstone{testTopic, 39}); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.mustClose()
	again := newStore(t, vfs.OS(), inDir)
	if r := again.Report(); !r.Clean || r.Partitions != 39 || len(r.Damage)+len(r.Foreign)+len(r.Quarantined) > 0 {
		t.Errorf("report: %+v", r)
	}
	for _, l := range again.Logs() {
		if got := texts(t, l); len(got) != 1 {
			t.Errorf("partition %d holds %q", l.Partition(), got)
		}
	}
	again.mustClose()
	sum, err := VerifyDir(t.Context(), vfs.OS(), dir, func(f Finding) { t.Error(f) })
	if err != nil || sum.Partitions != 39 || sum.Records != 39 {
		t.Errorf("verify: %+v, %v", sum, err)
	}
}
