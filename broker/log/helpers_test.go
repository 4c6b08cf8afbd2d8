package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"sync"
	"testing"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

const (
	dataDir     = "/data"
	testDir     = dataDir + "/topic/0"
	journalPath = dataDir + "/journal"
)

var testStart = time.UnixMilli(1_700_000_000_000)

// testHost is a Host with a real journal file: one checksummed JSON line per entry.
type testHost struct {
	fs vfs.FS
	// during runs between PrepareSync and the syncs, behind between them and CompleteSync.
	during, behind func()

	mu struct {
		sync.Mutex
		f      vfs.File
		size   int64
		dirty  map[*Log]bool
		failed []error
		state  Recovered // as the journal says so far
		onNow  func(JournalEntry) error
	}
}

// openHost opens or creates the journal and replays it.
func openHost(fsys vfs.FS) (*testHost, error) {
	h := &testHost{fs: fsys}
	h.mu.dirty = map[*Log]bool{}
	f, err := fsys.OpenRW(journalPath)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = fsys.Create(journalPath); err == nil {
			err = fsys.SyncDir(dataDir)
		}
	}
	if err != nil {
		return nil, err
	}
	h.mu.f = f
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); int64(n) < size {
		return nil, err
	}
	for len(b) >= 8 {
		n, sum := int(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
		if n == 0 || n > len(b)-8 || crc32.ChecksumIEEE(b[8:8+n]) != sum {
			break
		}
		var e JournalEntry
		if json.Unmarshal(b[8:8+n], &e) != nil {
			break
		}
		h.replay(e)
		h.mu.size += int64(8 + n)
		b = b[8+n:]
	}
	return h, f.Truncate(h.mu.size)
}

func (h *testHost) replay(e JournalEntry) {
	st := &h.mu.state
	if e.Truncated {
		st.Flushed = e.Flushed
		st.Epochs = merge(lineage(st.Epochs).before(e.Flushed), e.NewEpochs)
		st.HighWatermark = min(st.HighWatermark, e.Flushed)
	} else {
		st.Flushed = max(st.Flushed, e.Flushed)
		st.Epochs = merge(st.Epochs, e.NewEpochs)
	}
	st.HighWatermark = max(st.HighWatermark, e.HighWatermark)
	st.LogStart = max(st.LogStart, e.LogStart)
	st.WantedStart = max(st.WantedStart, e.WantedStart)
	st.AdoptedEpoch = max(st.AdoptedEpoch, e.AdoptedEpoch)
	st.Known = true
}

func (h *testHost) writeLocked(e JournalEntry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	rec := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	rec = binary.BigEndian.AppendUint32(rec, crc32.ChecksumIEEE(b))
	rec = append(rec, b...)
	if _, err := h.mu.f.WriteAt(rec, h.mu.size); err != nil {
		return err
	}
	h.mu.size += int64(len(rec))
	h.replay(e)
	return nil
}

func (h *testHost) MarkDirty(l *Log) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.dirty[l] = true
}

func (h *testHost) JournalNow(_ context.Context, e JournalEntry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.onNow != nil {
		if err := h.mu.onNow(e); err != nil {
			return err
		}
	}
	if err := h.writeLocked(e); err != nil {
		return err
	}
	return h.mu.f.Sync()
}

func (h *testHost) Failed(_ *Log, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.failed = append(h.mu.failed, err)
}

func (h *testHost) isDirty(l *Log) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.dirty[l]
}

// round is one sync round: results of the last one and new epochs to the journal, files, journal, done.
func (h *testHost) round(l *Log) error {
	h.mu.Lock()
	delete(h.mu.dirty, l)
	h.mu.Unlock()
	p := l.PrepareSync()
	if h.during != nil {
		h.during()
	}
	err := p.SyncFiles()
	if h.behind != nil {
		h.behind()
	}
	h.mu.Lock()
	if err == nil {
		e := l.JournalEntry()
		e.NewEpochs = p.NewEpochs()
		if err = h.writeLocked(e); err == nil {
			err = h.mu.f.Sync()
		}
	}
	h.mu.Unlock()
	l.CompleteSync(p, err)
	return err
}

// idle journals the last results, as a broker without traffic does after 100 ms.
func (h *testHost) idle(l *Log) error { return h.JournalNow(context.Background(), l.JournalEntry()) }

func (h *testHost) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.mu.f.Close()
}

func (h *testHost) recovered() Recovered {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.state
}

// env is one log with its host, disk and clock.
type env struct {
	t    tester
	fs   vfs.FS
	clk  *clock.Fake
	host *testHost
	cfg  Config
	l    *Log
	rep  Report
}

func testConfig() Config {
	c := DefaultConfig()
	c.SegmentBytes = 2048
	c.IndexInterval = 200
	c.RetentionTime = -1
	return c
}

func newDisk(t testing.TB) *memfs.Mem {
	t.Helper()
	m := memfs.New()
	must(t, m.MkdirAll(dataDir))
	m.SyncAll()
	return m
}

func testMeta() Meta {
	return Meta{
		TopicID: ids.TopicID{1, 2, 3}, Partition: 0, LogID: ids.LogID{4, 5, 6}, TopicName: "orders", TopicConfig: []byte("config"),
	}
}

func newEnv(t testing.TB, cfg Config) *env {
	t.Helper()
	return newEnvOn(t, newDisk(t), cfg, StartState{})
}

func newEnvOn(t testing.TB, fsys vfs.FS, cfg Config, st StartState) *env {
	t.Helper()
	e := &env{t: t, fs: fsys, clk: clock.NewFake(testStart), cfg: cfg}
	var err error
	e.host, err = openHost(fsys)
	must(t, err)
	e.l, err = Create(t.Context(), e.openConfig(), testMeta(), st)
	must(t, err)
	must(t, e.host.round(e.l))
	must(t, e.host.idle(e.l))
	t.Cleanup(func() { e.host.close() })
	return e
}

func (e *env) openConfig() OpenConfig {
	return OpenConfig{
		FS: e.fs, Dir: testDir, Config: e.cfg, Host: e.host, Clock: e.clk,
		Logger: slog.New(slog.DiscardHandler), Cache: segment.NewCache(0, 0), Recovered: e.host.recovered(),
	}
}

// open opens the log on another disk (a crash clone, or the same one), with the journal that is on it.
func openOn(t testing.TB, fsys vfs.FS, cfg Config, clk *clock.Fake) *env {
	t.Helper()
	e := &env{t: t, fs: fsys, clk: clk, cfg: cfg}
	must(t, e.reopen())
	return e
}

func (e *env) reopen() error {
	var err error
	if e.host, err = openHost(e.fs); err != nil {
		return err
	}
	e.l, e.rep, err = Open(context.Background(), e.openConfig())
	return err
}

func (e *env) closeAll() {
	e.t.Helper()
	must(e.t, e.l.Close())
	e.host.close()
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tester is what helpers need of *testing.T, *testing.B and *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

type producerTag struct {
	id    int64
	epoch int16
	seq   int32
}

var noProducer = producerTag{id: -1, epoch: -1, seq: -1}

// batch builds a batch of n records with values made of text.
func batch(t tester, n int, ts int64, p producerTag, text string) []byte {
	t.Helper()
	b := record.NewBuilder(record.CodecNone)
	for i := range n {
		b.Append(ts+int64(i), []byte("k"), fmt.Appendf(nil, "%s-%d", text, i), nil)
	}
	if p.id >= 0 {
		b.SetProducer(p.id, p.epoch, p.seq)
	}
	out, err := b.Build(nil)
	must(t, err)
	return out
}

func header(t tester, b []byte) record.Header {
	t.Helper()
	h, err := record.ParseHeader(b)
	must(t, err)
	return h
}

func (e *env) append(b []byte, epoch int32) (Appended, error) {
	return e.l.Append(b, header(e.t, b), epoch, e.clk.Now())
}

func (e *env) mustAppend(n int, text string) (Appended, []byte) {
	e.t.Helper()
	b := batch(e.t, n, e.clk.Now().UnixMilli(), noProducer, text)
	a, err := e.append(b, max(e.l.LatestEpoch(), 0))
	must(e.t, err)
	return a, b
}

// readAll returns all bytes from offset from to upTo.
func readAll(l *Log, from, upTo int64) ([]byte, error) {
	var out bytes.Buffer
	buf := make([]byte, 64<<10)
	for from < upTo {
		n, next, err := l.Read(from, len(buf), upTo, buf)
		if err != nil {
			return out.Bytes(), err
		}
		if n == 0 {
			return out.Bytes(), fmt.Errorf("nothing at %d below %d", from, upTo)
		}
		out.Write(buf[:n])
		from = next
	}
	return out.Bytes(), nil
}
