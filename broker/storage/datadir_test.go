package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

const testDir = "/srv/runnel/data"

var testStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func testConfig() Config { return DefaultConfig(testDir, "c1") }

func testClock() *clock.Fake { return clock.NewFake(testStart) }

// put makes a file with durable content.
func put(t testing.TB, fsys *memfs.Mem, path string, content []byte) {
	t.Helper()
	if err := writeSynced(fsys, path, content); err != nil {
		t.Fatal(err)
	}
	fsys.SyncAll()
}

func mustOpenDataDir(t testing.TB, fsys vfs.FS) *dataDir {
	t.Helper()
	d, err := openDataDir(testConfig(), fsys, testClock())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeAll(t testing.TB, c interface{ close() error }) {
	t.Helper()
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
}

func TestDataDirKeepsItsIdentity(t *testing.T) {
	fsys := memfs.New()
	d := mustOpenDataDir(t, fsys)
	id := d.meta.StorageID
	closeAll(t, d)
	if id.IsZero() || !d.meta.Formatted.Equal(testStart) {
		t.Errorf("meta is %+v", d.meta)
	}
	again := mustOpenDataDir(t, fsys.StrictCrashClone())
	defer closeAll(t, again)
	if again.meta != d.meta {
		t.Errorf("after a crash meta is %+v, was %+v", again.meta, d.meta)
	}
}

func TestDataDirRefusals(t *testing.T) {
	sealedFuture := sealedKind{metaName, metaFile.magic, metaFile.version + 1}.encode([]byte("whatever a later release writes"))
	damaged := meta{StorageID: ids.StorageID{1}, ClusterID: "c1", Formatted: testStart}.encode()
	damaged[30] ^= 1
	for name, c := range map[string]struct {
		options memfs.Options
		prepare func(t *testing.T, fsys *memfs.Mem)
		want    func(error) bool
	}{
		"another cluster": {
			prepare: func(t *testing.T, fsys *memfs.Mem) {
				t.Helper()
				put(t, fsys, testDir+"/meta", meta{StorageID: ids.StorageID{1}, ClusterID: "c2"}.encode())
			},
			want: func(err error) bool {
				var e *ForeignClusterError
				return errors.As(err, &e) && e.Found == "c2" && e.Expected == "c1"
			},
		},
		"future format": {
			prepare: func(t *testing.T, fsys *memfs.Mem) { t.Helper(); put(t, fsys, testDir+"/meta", sealedFuture) },
			want: func(err error) bool {
				var e *FutureFormatError
				return errors.As(err, &e) && e.Version == metaFile.version+1 && e.Supported == metaFile.version
			},
		},
		"damaged meta": {
			prepare: func(t *testing.T, fsys *memfs.Mem) { t.Helper(); put(t, fsys, testDir+"/meta", damaged) },
			want: func(err error) bool {
				var e *CorruptFileError
				return errors.As(err, &e) && e.File == testDir+"/meta"
			},
		},
		"second store": {
			prepare: func(t *testing.T, fsys *memfs.Mem) {
				t.Helper()
				l, err := fsys.Lock(testDir + "/lock")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
			},
			want: func(err error) bool { return errors.Is(err, ErrLocked) },
		},
		"network file system": {
			options: memfs.Options{FileSystem: "nfs", Network: true},
			want: func(err error) bool {
				var e *NetworkStorageError
				return errors.As(err, &e) && e.Kind == "nfs"
			},
		},
		"data without meta": {
			prepare: func(t *testing.T, fsys *memfs.Mem) {
				t.Helper()
				if err := fsys.MkdirAll(testDir + "/" + ids.NewTopicID().String() + "/0"); err != nil {
					t.Fatal(err)
				}
			},
			want: func(err error) bool {
				var e *UnformattedError
				return errors.As(err, &e) && errors.Is(err, ErrCorrupt)
			},
		},
		"journal without meta": {
			prepare: func(t *testing.T, fsys *memfs.Mem) {
				t.Helper()
				content, _ := sampleJournal()
				put(t, fsys, testDir+"/journal", content)
			},
			want: func(err error) bool {
				var e *UnformattedError
				return errors.As(err, &e) && e.Found == "journal"
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.NewWith(c.options)
			if err := fsys.MkdirAll(testDir); err != nil {
				t.Fatal(err)
			}
			if c.prepare != nil {
				c.prepare(t, fsys)
			}
			before := listing(t, fsys, testDir)
			d, err := openDataDir(testConfig(), fsys, testClock())
			if err == nil {
				closeAll(t, d)
			}
			if !c.want(err) {
				t.Fatalf("error is %v", err)
			}
			if len(err.Error()) > 500 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			after := listing(t, fsys, testDir)
			delete(after, "lock")
			delete(before, "lock")
			for name, content := range after {
				if before[name] != content {
					t.Errorf("a refused directory got or changed %s", name)
				}
			}
		})
	}
}

func TestDataDirAllowsNetworkStorageWhenTold(t *testing.T) {
	cfg := testConfig()
	cfg.AllowNetworkStorage = true
	d, err := openDataDir(cfg, memfs.NewWith(memfs.Options{FileSystem: "nfs", Network: true}), testClock())
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, d)
}

func TestDataDirIsFormattedAmongForeignFiles(t *testing.T) {
	fsys := memfs.New()
	if err := fsys.MkdirAll(testDir + "/lost+found"); err != nil {
		t.Fatal(err)
	}
	put(t, fsys, testDir+"/README", []byte("mine"))
	put(t, fsys, testDir+"/notes.tmp", []byte("mine too"))
	closeAll(t, mustOpenDataDir(t, fsys))
	got := listing(t, fsys, testDir)
	if got["README"] != "mine" || got["notes.tmp"] != "mine too" {
		t.Errorf("foreign files changed: %v", got)
	}
}

// TestDataDirFormatCrash stops at every moment of formatting, keeps what the disk could hold, and formats again.
func TestDataDirFormatCrash(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	crashAtEveryOp(t, func(fsys vfs.FS) error {
		d, err := openDataDir(testConfig(), fsys, testClock())
		if err != nil {
			return err
		}
		return d.close()
	}, func(t *testing.T, fsys *memfs.Mem) {
		for _, clone := range []*memfs.Mem{fsys.CrashClone(rng), fsys.CrashClone(rng), fsys.StrictCrashClone()} {
			d := mustOpenDataDir(t, clone)
			first := d.meta
			closeAll(t, d)
			d = mustOpenDataDir(t, clone.StrictCrashClone())
			if d.meta != first {
				t.Errorf("opened twice: %+v, then %+v", first, d.meta)
			}
			closeAll(t, d)
			if _, err := replayJournal(clone, testDir+"/journal", first.StorageID); err != nil {
				t.Errorf("a formatted directory has no good journal: %v", err)
			}
			for name := range listing(t, clone, testDir) {
				if rootFiles[name] && name[len(name)-1] == 'p' {
					t.Errorf("%s is left", name)
				}
			}
		}
	})
}

func TestStopsRefuseTheThirdWithinTenMinutes(t *testing.T) {
	for name, c := range map[string]struct {
		after  []time.Duration
		refuse bool
	}{
		"none":                    {nil, false},
		"two":                     {[]time.Duration{0, time.Second}, false},
		"three at once":           {[]time.Duration{0, time.Second, 2 * time.Second}, true},
		"three in ten minutes":    {[]time.Duration{0, 5 * time.Minute, 10 * time.Minute}, true},
		"three in eleven minutes": {[]time.Duration{0, 5 * time.Minute, 11 * time.Minute}, false},
		"the newest three count":  {[]time.Duration{0, time.Hour, time.Hour + time.Minute, time.Hour + 2*time.Minute}, true},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.New()
			closeAll(t, mustOpenDataDir(t, fsys))
			for _, d := range c.after {
				if err := recordStop(fsys, testDir, testStart.Add(d)); err != nil {
					t.Fatal(err)
				}
			}
			fsys = fsys.StrictCrashClone() // a stop has to be on the disk
			d, err := openDataDir(testConfig(), fsys, testClock())
			if err == nil {
				closeAll(t, d)
			}
			var often *StoppedTooOftenError
			if errors.As(err, &often) != c.refuse {
				t.Fatalf("open: %v", err)
			}
			if !c.refuse {
				return
			}
			if len(often.Stops) != maxStops {
				t.Errorf("the error names %v", often.Stops)
			}
			if err := ClearStops(fsys, testDir); err != nil {
				t.Fatal(err)
			}
			closeAll(t, mustOpenDataDir(t, fsys))
		})
	}
}

func TestStopsThatAreDamagedStopNothingElse(t *testing.T) {
	fsys := memfs.New()
	closeAll(t, mustOpenDataDir(t, fsys))
	put(t, fsys, testDir+"/stops", []byte("garbage"))
	if _, err := openDataDir(testConfig(), fsys, testClock()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("open with a damaged record of stops: %v", err)
	}
	if err := recordStop(fsys, testDir, testStart); err != nil {
		t.Errorf("recording over a damaged file: %v", err)
	}
	closeAll(t, mustOpenDataDir(t, fsys))
}

func TestConfigReportsAllFaults(t *testing.T) {
	err := Config{ReserveBytes: -1}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 12 {
		t.Errorf("faults: %v", err)
	}
	if err := testConfig().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func FuzzSealedMeta(f *testing.F) {
	f.Add(meta{StorageID: ids.StorageID{1}, ClusterID: "c1"}.encode())
	f.Add(sealedKind{metaName, metaFile.magic, 9}.encode([]byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta("meta", b)
		if err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("%+v is encoded differently from what was read", m)
		}
	})
}
