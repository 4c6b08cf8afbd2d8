package log

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// small makes a directory with two sealed segments and an active one, of which some bytes are above the flushed offset
// that the journal knows. It returns the disk, the bytes of the log, its flushed offset and its end.
func small(t *testing.T) (disk *memfs.Mem, content []byte, flushed, end int64) {
	t.Helper()
	cfg := flipConfig()
	disk = newDisk(t)
	e := newEnvOn(t, disk, cfg, StartState{})
	for i := range 6 {
		e.clk.Advance(time.Minute)
		b := batch(t, 2, e.clk.Now().UnixMilli(), producerTag{id: 3, seq: int32(2 * i)}, "v")
		_, err := e.append(b, int32(i/3))
		must(t, err)
		if i == 4 {
			must(t, e.host.round(e.l))
			must(t, e.host.idle(e.l))
			flushed = e.l.Flushed()
		}
	}
	end = e.l.End()
	content, err := readAll(e.l, 0, end)
	must(t, err)
	must(t, e.l.active().FlushIndex())
	_ = e.l.Close()
	e.host.close()
	disk.SyncAll()
	return disk, content, flushed, end
}

func flipConfig() Config {
	c := testConfig()
	c.IndexInterval = 1
	c.SegmentBytes = 256
	return c
}

func flip(t *testing.T, disk *memfs.Mem, name string, at int64, mask byte) {
	t.Helper()
	f, err := disk.OpenRW(name)
	must(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	must(t, err)
	b[0] ^= mask
	_, err = f.WriteAt(b, at)
	must(t, err)
	must(t, f.Close())
	disk.SyncAll()
}

// TestEveryFlippedByte flips each byte of each file of a small partition directory, one at a time. Nothing wrong may
// ever be read. Damage above the flushed offset is cut off; damage below it is found, at the open or at the read, and
// named; damaged indexes are rebuilt; damaged checkpoints and descriptions are detected, damaged snapshots replaced by
// an older one.
func TestEveryFlippedByte(t *testing.T) {
	disk, content, flushed, end := small(t)
	entries, err := disk.ReadDir(testDir)
	must(t, err)
	kinds := map[string]int{}
	for _, f := range entries {
		for at := range f.Size {
			for _, mask := range []byte{0x01, 0x80} {
				clone := disk.StrictCrashClone()
				flip(t, clone, testDir+"/"+f.Name, at, mask)
				outcome, err := openFlipped(t, clone, content, flushed, end)
				if err != nil {
					t.Errorf("%s byte %d mask %02x: %s: %v", f.Name, at, mask, outcome, err)
				}
				kind := f.Name
				if i := strings.LastIndexByte(kind, '.'); i >= 0 {
					kind = kind[i:]
				}
				kinds[kind+" "+outcome]++
			}
		}
	}
	for _, want := range []string{".log cut", ".log quarantined at open", ".index intact", ".timeindex intact", ".snapshot intact", "epochs quarantined at open", ".meta refused"} {
		if kinds[want] == 0 {
			t.Errorf("never saw %q: %v", want, kinds)
		}
	}
	for got := range kinds {
		if !strings.HasPrefix(got, ".log") && strings.HasSuffix(got, "cut") {
			t.Errorf("%s: batches lost for the sake of another file", got)
		}
	}
}

// openFlipped says what became of the log.
func openFlipped(t *testing.T, disk *memfs.Mem, content []byte, flushed, end int64) (string, error) {
	t.Helper()
	cfg := flipConfig()
	cfg.RecoverVerifyBytes = 200 // so that some damage lies below what recovery looks at
	e := &env{t: t, fs: disk, clk: clock.NewFake(testStart), cfg: cfg}
	before := snapshotDisk(t, disk)
	if err := e.reopen(); err != nil {
		var c *CorruptError
		if errors.As(err, &c) && strings.HasSuffix(c.File, MetaFile) || errors.Is(err, ErrVersion) {
			return "refused", nil
		}
		return "refused", err
	}
	defer e.host.close()
	defer func() { _ = e.l.Close() }()
	if e.rep.Quarantined != nil {
		var c *CorruptError
		if !errors.As(e.rep.Quarantined, &c) || c.File == "" {
			return "quarantined at open", e.rep.Quarantined
		}
		if now := snapshotDisk(t, disk); now != before {
			return "quarantined at open", errors.New("files were touched")
		}
		_, err := e.l.ReadRange(0, 1, 1)
		if !errors.Is(err, ErrQuarantined) {
			return "quarantined at open", fmt.Errorf("a read says %w", err)
		}
		return "quarantined at open", nil
	}
	if e.l.End() < flushed {
		return "lost", fmt.Errorf("ends at %d, flushed %d", e.l.End(), flushed)
	}
	for off := int64(0); off < e.l.End(); off++ { // each offset by itself, so that every index entry is used
		if _, err := readAll(e.l, off, min(off+2, e.l.End())); err != nil {
			continue
		}
	}
	got, err := readAll(e.l, 0, e.l.End())
	if !bytes.HasPrefix(content, got) {
		return "misread", errors.New("other bytes")
	}
	if err != nil {
		var c *CorruptError
		if errors.Is(err, ErrQuarantined) && errors.As(err, &c) || errors.As(err, &c) {
			if e.l.State().Health != Quarantined {
				return "corrupt at read", errors.New("log is not quarantined")
			}
			return "corrupt at read", nil
		}
		return "corrupt at read", err
	}
	if err := checkTimes(e.l); err != nil {
		return "misread", err
	}
	if states, _ := e.l.ProducerStates(); len(states) != 1 || states[0].Batches[len(states[0].Batches)-1].LastSequence != int32(e.l.End())-1 {
		return "producers lost", fmt.Errorf("%+v", states)
	}
	if e.l.End() < end {
		return "cut", nil
	}
	return "intact", nil
}

// checkTimes looks every minute up.
func checkTimes(l *Log) error {
	l.SetHighWatermark(l.End())
	for i := range l.End() / 2 {
		ms := testStart.Add(time.Duration(i+1) * time.Minute).UnixMilli()
		off, ts, ok, err := l.OffsetForTime(ms)
		if err != nil || !ok || off != 2*i || ts != ms {
			return fmt.Errorf("time of batch %d: offset %d timestamp %d found %t error %w", i, off, ts, ok, err)
		}
		off, _, ok, err = l.OffsetForTime(ms - 1)
		if err != nil || !ok || off != 2*i {
			return fmt.Errorf("just before batch %d: offset %d found %t error %w", i, off, ok, err)
		}
	}
	return nil
}

// snapshotDisk is everything in the partition directory.
func snapshotDisk(t *testing.T, disk *memfs.Mem) string {
	t.Helper()
	entries, err := disk.ReadDir(testDir)
	must(t, err)
	var out strings.Builder
	for _, f := range entries {
		b, err := readFile(disk, testDir+"/"+f.Name)
		must(t, err)
		fmt.Fprintf(&out, "%s %x\n", f.Name, b)
	}
	return out.String()
}

func TestVerifyFileNamesTheDamage(t *testing.T) {
	disk, _, _, _ := small(t)
	entries, err := disk.ReadDir(testDir)
	must(t, err)
	n := 0
	for _, f := range entries {
		name := testDir + "/" + f.Name
		if !IsFile(f.Name) {
			continue
		}
		must(t, VerifyFile(disk, name))
		for at := range f.Size {
			clone := disk.StrictCrashClone()
			flip(t, clone, name, at, 0x10)
			err := VerifyFile(clone, name)
			var c *CorruptError
			if !errors.As(err, &c) || c.File != name {
				t.Fatalf("%s byte %d: %v", f.Name, at, err)
			}
			n++
		}
	}
	if n < 100 {
		t.Fatalf("only %d bytes", n)
	}
}

func TestFutureVersionsAreRefused(t *testing.T) {
	for _, f := range []format{metaFormat, epochsFormat, cleanFormat, snapshotFormat} {
		b := seal(format{f.magic, f.version + 1}, make([]byte, 64))
		if _, err := unseal("file", f, b); !errors.Is(err, ErrVersion) {
			t.Errorf("%s version %d: %v", f.magic, f.version+1, err)
		}
	}
	disk, _, _, _ := small(t)
	must(t, replaceFile(disk, testDir+"/"+MetaFile, seal(format{metaFormat.magic, 7}, nil)))
	e := &env{t: t, fs: disk, clk: clock.NewFake(testStart), cfg: flipConfig()}
	if err := e.reopen(); !errors.Is(err, ErrVersion) {
		t.Errorf("open: %v", err)
	}
	e.host.close()
	must(t, replaceFile(disk, testDir+"/"+epochsName, seal(format{epochsFormat.magic, 7}, nil)))
	_, err := readEpochs(disk, testDir)
	if !errors.Is(err, ErrVersion) {
		t.Errorf("epochs: %v", err)
	}
	if _, _, err := Open(t.Context(), OpenConfig{}); err == nil {
		t.Error("an empty OpenConfig was accepted")
	}
}
