package cli

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

// dataDir makes a data directory as a broker leaves it, with one record, and returns the path of its segment too.
func dataDir(t *testing.T) (dir, segment string) {
	t.Helper()
	dir = t.TempDir()
	s, err := storage.Open(t.Context(), storage.DefaultConfig(dir, "cluster"), vfs.OS(), clock.System(), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	l, err := s.CreateLog(ctx, ids.TopicID{1}, 0, storage.TopicInfo{Name: "orders"}, log.StartState{})
	if err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder(record.CodecNone)
	b.Append(1_000, []byte("key"), []byte("a\x1b[2Jvalue"), nil)
	raw, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(raw, h, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".log" {
			segment = path
		}
		return err
	})
	if err != nil || segment == "" {
		t.Fatalf("no segment in %s: %v", dir, err)
	}
	return dir, segment
}

func TestLogDump(t *testing.T) {
	s := &shell{t: t}
	_, segment := dataDir(t)
	if out := s.must("log", "dump", segment); !strings.Contains(out, "batch 0..0") || strings.Contains(out, "value") {
		t.Errorf("output %q, want the batch without its record", out)
	}
	out := s.must("log", "dump", segment, "--records")
	if !strings.Contains(out, "key") || strings.IndexFunc(out, drivesTerminal) >= 0 {
		t.Errorf("output %q, want the record, and nothing that drives a terminal", out)
	}
	s.run("log", "dump", segment+".nope").want(t, exitFailed, "nope")
	s.run("log", "dump").want(t, exitUsage)
}

func TestLogVerify(t *testing.T) {
	s := &shell{t: t}
	dir, segment := dataDir(t)
	if out := s.must("log", "verify", dir); !strings.Contains(out, "1 partitions, 1 segments, 1 batches, 1 records") || !strings.Contains(out, "0 damaged") {
		t.Errorf("output %q, want a summary without damage", out)
	}
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-2] ^= 1
	if err := os.WriteFile(segment, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.run("log", "verify", dir)
	r.want(t, exitFailed, "1 damage", "runnel partition recover")
	if !strings.Contains(r.out, segment) || !strings.Contains(r.out, "segment 0, offset 0") {
		t.Errorf("output %q, want file, segment and offset", r.out)
	}
	r = s.run("log", "verify", dir, "-o", "json")
	r.want(t, exitFailed)
	var v verifyView
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Findings) == 0 || v.Damages == 0 || v.Findings[0].File != segment || *v.Findings[0].Offset != 0 {
		t.Errorf("findings %+v, want the segment", v.Findings)
	}
	if r = s.run("log", "verify", dir, "-o", "name"); !strings.HasPrefix(r.out, segment+"\n") {
		t.Errorf("output %q, want the file's name", r.out)
	}
	s.run("log", "verify", t.TempDir()).want(t, exitFailed, "not a data directory")
}

func TestDevWithoutCluster(t *testing.T) {
	s := &shell{t: t}
	dir := t.TempDir()
	for _, line := range [][]string{{"status"}, {"stop"}, {"stop", "1"}, {"start"}, {"start", "etcd"}} {
		s.run(append(append([]string{"dev"}, line...), "--data", dir)...).want(t, exitFailed, "no dev cluster", "Try: runnel dev --detach")
	}
}
