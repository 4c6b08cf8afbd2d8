package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// resealHeader makes the checksum of a changed journal header right again.
func resealHeader(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
	return b
}

// listing returns the files below dir with their content.
func listing(t testing.TB, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(at, prefix string)
	walk = func(at, prefix string) {
		entries, err := fsys.ReadDir(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir {
				walk(at+"/"+e.Name, prefix+e.Name+"/")
				continue
			}
			b, err := readWhole(fsys, at+"/"+e.Name, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			out[prefix+e.Name] = string(b)
		}
	}
	walk(dir, "")
	return out
}

// crashAtEveryOp runs f on a new disk again and again, crashing at its first change, its second, and so on until f gets through,
// and lets check look at what each crash left.
func crashAtEveryOp(t *testing.T, f func(fsys vfs.FS) error, check func(t *testing.T, disk *memfs.Mem)) {
	t.Helper()
	for k := int64(1); ; k++ {
		disk := memfs.New()
		fsys := errorfs.Wrap(disk, nil)
		fsys.CrashAt(k)
		err := f(fsys)
		if fsys.Crashed() != errors.Is(err, errorfs.ErrCrashed) {
			t.Fatalf("crash at change %d: %v", k, err)
		}
		if !fsys.Crashed() && err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprint("change ", k), func(t *testing.T) { check(t, disk) })
		if !fsys.Crashed() {
			return
		}
	}
}

// storeEnv is an open store in a test.
type storeEnv struct {
	t   testing.TB
	fs  vfs.FS
	clk *clock.Fake
	*Store
}

func openStore(fsys vfs.FS, cfg Config) (*Store, error) {
	return Open(context.Background(), cfg, fsys, testClock(), slog.New(slog.DiscardHandler), nil)
}

// newStore opens a store on fsys that the test closes, or is closed at its end.
func newStore(t testing.TB, fsys vfs.FS, change ...func(*Config)) *storeEnv {
	t.Helper()
	cfg := testConfig()
	for _, c := range change {
		c(&cfg)
	}
	clk := testClock()
	s, err := Open(t.Context(), cfg, fsys, clk, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &storeEnv{t: t, fs: fsys, clk: clk, Store: s}
}

// start runs the store until stop is called (or the test ends), which returns what Run returned.
func (e *storeEnv) start() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stopped := false
	var err error
	stop = func() error {
		cancel()
		if !stopped {
			err, stopped = <-done, true
		}
		return err
	}
	e.t.Cleanup(func() { _ = stop() })
	return stop
}

var testTopic = ids.TopicID{0xaa, 1}

func (e *storeEnv) create(n int32) *log.Log {
	e.t.Helper()
	l, err := e.CreateLog(context.Background(), testTopic, n, TopicInfo{Name: "orders", Config: []byte("config")}, log.StartState{})
	if err != nil {
		e.t.Fatal(err)
	}
	return l
}

// appendOne appends a batch with one record that says text, and returns the offset behind it.
func appendOne(l *log.Log, epoch int32, text string) (int64, error) {
	return appendBatch(l, epoch, text, testStart)
}

// appendAt appends at another time.
func appendAt(l *log.Log, text string, now time.Time) (int64, error) {
	return appendBatch(l, max(l.LatestEpoch(), 0), text, now)
}

func appendBatch(l *log.Log, epoch int32, text string, now time.Time) (int64, error) {
	b := record.NewBuilder(record.CodecNone)
	b.Append(testStart.UnixMilli(), []byte("k"), []byte(text), nil)
	raw, err := b.Build(nil)
	if err != nil {
		return 0, err
	}
	h, err := record.ParseHeader(raw)
	if err != nil {
		return 0, err
	}
	a, err := l.Append(raw, h, epoch, now)
	return a.End, err
}

func mustAppend(t testing.TB, l *log.Log, text string) int64 {
	t.Helper()
	end, err := appendOne(l, max(l.LatestEpoch(), 0), text)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// texts reads the values of all records from the log's start to its end.
func texts(t testing.TB, l *log.Log) []string {
	t.Helper()
	out, err := readTexts(l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readTexts(l *log.Log) ([]string, error) {
	var out []string
	buf := make([]byte, 1<<20)
	for at, end := l.LogStart(), l.End(); at < end; {
		n, next, err := l.Read(at, len(buf), end, buf)
		if err != nil {
			return out, fmt.Errorf("reading offset %d: %w", at, err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			h, err := record.ParseHeader(rest)
			if err != nil {
				return out, err
			}
			if out, err = appendValues(out, rest[:h.Size()]); err != nil {
				return out, err
			}
			rest = rest[h.Size():]
		}
		at = next
	}
	return out, nil
}

func appendValues(out []string, batch []byte) ([]string, error) {
	var r record.Reader
	if err := r.Reset(batch); err != nil {
		return out, err
	}
	var rec record.Record
	for r.Next(&rec) {
		out = append(out, string(rec.Value))
	}
	return out, r.Err()
}
