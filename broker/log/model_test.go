package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// simpleLog is the log as a slice.
type simpleLog struct {
	batches   []modelBatch
	ts        []int64 // base timestamp per batch
	start     int64
	end       int64
	flushed   int64
	journaled int64 // flushed as a crash would find it
	epoch     int32
	wanted    int64 // journaled log start
	adopted   int32
	durable   int32 // adopted, as a crash finds it at least
}

type machine struct {
	e      *env
	disk   *memfs.Mem
	m      simpleLog
	serial int
}

func (s *machine) cfg() Config {
	c := testConfig()
	c.SegmentBytes = 700
	c.IndexInterval = 150
	c.SnapshotInterval = 500
	return c
}

func newMachine(t *rapid.T) *machine {
	tb := t
	s := &machine{disk: memfs.New()}
	must(tb, s.disk.MkdirAll(dataDir))
	s.disk.SyncAll()
	e := &env{t: tb, fs: s.disk, clk: clock.NewFake(testStart), cfg: s.cfg()}
	var err error
	e.host, err = openHost(s.disk)
	must(tb, err)
	e.l, err = Create(context.Background(), e.openConfig(), testMeta(), StartState{})
	must(tb, err)
	s.e = e
	must(tb, e.host.round(e.l))
	return s
}

func (s *machine) Append(t *rapid.T) {
	s.e.t = t
	n := rapid.IntRange(1, 6).Draw(t, "records")
	p := producerTag{id: int64(rapid.IntRange(-1, 2).Draw(t, "producer"))}
	if p.id >= 0 {
		p.seq = s.nextSeq(p.id)
	} else {
		p = noProducer
	}
	s.serial++
	ts := s.e.clk.Now().UnixMilli() + int64(rapid.IntRange(-5000, 5000).Draw(t, "skew"))
	b := batch(t, n, ts, p, fmt.Sprint("v", s.serial))
	a, err := s.e.append(b, s.m.epoch)
	must(t, err)
	if a.Base != s.m.end || a.End != s.m.end+int64(n) || a.Duplicate {
		t.Fatalf("append of %d at %d: %+v", n, s.m.end, a)
	}
	s.m.batches = append(s.m.batches, modelBatch{base: a.Base, next: a.End, bytes: b})
	s.m.ts = append(s.m.ts, ts)
	s.m.end = a.End
	s.e.clk.Advance(time.Second)
}

// nextSeq derives what the log must expect from the batches that are in it.
func (s *machine) nextSeq(id int64) int32 {
	for _, b := range slices.Backward(s.m.batches) {
		h, _ := record.ParseHeader(b.bytes)
		if h.ProducerID == id {
			return h.LastSequence() + 1
		}
	}
	return 0
}

func (s *machine) Duplicate(t *rapid.T) {
	s.e.t = t
	if len(s.m.batches) == 0 {
		t.Skip("empty")
	}
	i := rapid.IntRange(0, len(s.m.batches)-1).Draw(t, "batch")
	b := bytes.Clone(s.m.batches[i].bytes)
	h := header(t, b)
	if h.ProducerID < 0 {
		t.Skip("not idempotent")
	}
	later := 0
	for _, o := range s.m.batches[i+1:] {
		if oh := header(t, o.bytes); oh.ProducerID == h.ProducerID {
			later++
		}
	}
	a, err := s.e.append(b, s.m.epoch)
	if later < rememberedBatches {
		if err != nil || !a.Duplicate || a.Base != s.m.batches[i].base || a.End != s.m.batches[i].next {
			t.Fatalf("duplicate of %d with %d later: %+v, %v", s.m.batches[i].base, later, a, err)
		}
		return
	}
	if _, ok := errors.AsType[*SequenceError](err); !ok {
		t.Fatalf("batch with %d later: %+v, %v", later, a, err)
	}
}

func (s *machine) Round(t *rapid.T) {
	s.e.t = t
	must(t, s.e.host.round(s.e.l))
	s.m.flushed, s.m.journaled = s.m.end, s.m.end
	s.m.durable = s.m.adopted
	if f := s.e.l.Flushed(); f != s.m.flushed {
		t.Fatalf("flushed %d, want %d", f, s.m.flushed)
	}
	s.e.l.SetHighWatermark(s.m.flushed)
}

func (s *machine) Roll(t *rapid.T) { must(t, s.e.l.Roll()) }

func (s *machine) NewEpoch(t *rapid.T) {
	s.m.epoch++
	must(t, s.e.l.AssignEpoch(s.m.epoch))
}

func (s *machine) Truncate(t *rapid.T) {
	to := rapid.Int64Range(s.m.start, s.m.end).Draw(t, "to")
	err := s.e.l.Truncate(context.Background(), to)
	for _, b := range s.m.batches {
		if b.base < s.m.start && b.next > to { // the log begins within the batch that would have to go
			if _, ok := errors.AsType[*OutOfRangeError](err); !ok {
				t.Fatalf("truncate to %d below the start %d: %v", b.base, s.m.start, err)
			}
			return
		}
	}
	must(t, err)
	if to < s.m.end {
		s.m.cut(to)
		s.m.epoch++
	}
}

// cut drops every batch that reaches beyond to, and never goes below the log start.
func (m *simpleLog) cut(to int64) {
	n := len(m.batches)
	for n > 0 && m.batches[n-1].next > to {
		n--
	}
	m.end = 0
	if n > 0 {
		m.end = m.batches[n-1].next
	}
	m.batches, m.ts = m.batches[:n], m.ts[:n]
	m.flushed, m.journaled = min(m.flushed, m.end), min(m.journaled, m.end)
}

func (s *machine) DeleteRecords(t *rapid.T) {
	hw := s.e.l.HighWatermark()
	if hw < s.m.start {
		t.Skip("high watermark below the start")
	}
	to := rapid.Int64Range(s.m.start, hw).Draw(t, "before")
	start, err := s.e.l.DeleteRecords(context.Background(), to)
	must(t, err)
	if start != to {
		t.Fatalf("log start %d, want %d", start, to)
	}
	s.m.start = to
}

func (s *machine) RetainBytes(t *rapid.T) {
	c := s.e.l.Config()
	c.RetentionBytes = int64(rapid.IntRange(300, 3000).Draw(t, "bytes"))
	must(t, s.e.l.SetConfig(c))
	segs, hw := s.e.l.Segments(), min(s.e.l.HighWatermark(), s.m.flushed)
	want, total := s.m.start, s.e.l.Size()
	for _, g := range segs[:len(segs)-1] {
		if g.End > hw || total-g.Size < c.RetentionBytes {
			break
		}
		want, total = max(want, g.End), total-g.Size
	}
	_, err := s.e.l.ApplyRetention(context.Background(), s.e.clk.Now())
	must(t, err)
	if got := s.e.l.LogStart(); got != want {
		t.Fatalf("log start %d, want %d: %+v", got, want, segs)
	}
	s.m.start = want
	c.RetentionBytes = -1
	must(t, s.e.l.SetConfig(c))
}

func (s *machine) CloseAndOpen(t *rapid.T) {
	s.Round(t)
	must(t, s.e.l.Close())
	s.e.host.close()
	must(t, s.e.reopen())
	if !s.e.rep.Clean {
		t.Fatalf("after a clean close: %+v", s.e.rep)
	}
}

func (s *machine) Crash(t *rapid.T) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	_ = s.e.l.Close()
	s.e.host.close()
	disk := s.disk.CrashClone(rng)
	if rapid.Bool().Draw(t, "strict") {
		disk = s.disk.StrictCrashClone()
	}
	s.disk, s.e.fs = disk, disk
	must(t, s.e.reopen())
	if s.e.rep.Quarantined != nil {
		t.Fatal(s.e.rep.Quarantined)
	}
	end := s.e.l.End()
	if end < s.m.flushed || end > s.m.end {
		t.Fatalf("recovered end %d, flushed %d, was %d", end, s.m.flushed, s.m.end)
	}
	s.m.cut(end)
	if s.m.end != end {
		t.Fatalf("recovered end %d lies within a batch", end)
	}
	s.m.flushed = end
	s.m.epoch++ // a restarted broker leads in a new epoch
	if a := s.e.l.Adopted(); a < s.m.durable || a > s.m.adopted {
		t.Fatalf("adopted epoch %d, durable was %d, in memory %d", a, s.m.durable, s.m.adopted)
	}
	s.m.adopted, s.m.durable = s.e.l.Adopted(), s.e.l.Adopted()
}

// base returns the base of the batch that holds offset, or offset.
func (m *simpleLog) base(offset int64) int64 {
	for _, b := range m.batches {
		if b.base <= offset && offset < b.next {
			return b.base
		}
	}
	return offset
}

func (s *machine) JournalStart(t *rapid.T) {
	limit := min(s.e.l.HighWatermark(), s.m.flushed)
	if limit < s.m.start {
		t.Skip("nothing is committed")
	}
	to := rapid.Int64Range(s.m.start, limit).Draw(t, "to")
	must(t, s.e.l.JournalLogStart(context.Background(), to))
	s.m.wanted = max(s.m.wanted, to)
}

func (s *machine) PublishStart(t *rapid.T) {
	to := rapid.Int64Range(s.m.start, s.e.l.HighWatermark()).Draw(t, "to")
	must(t, s.e.l.PublishLogStart(context.Background(), to))
	s.m.start = to
}

func (s *machine) Adopt(t *rapid.T) {
	s.m.adopted += rapid.Int32Range(1, 3).Draw(t, "epochs")
	s.e.l.AdoptEpoch(s.m.adopted)
}

// Follow appends several batches of another leader at once.
func (s *machine) Follow(t *rapid.T) {
	s.e.t = t
	var all []byte
	for range rapid.IntRange(1, 6).Draw(t, "batches") {
		n := rapid.IntRange(1, 4).Draw(t, "records")
		p := noProducer
		if id := int64(rapid.IntRange(-1, 2).Draw(t, "producer")); id >= 0 {
			p = producerTag{id: id, seq: s.nextSeq(id)}
		}
		s.m.epoch += int32(rapid.IntRange(0, 1).Draw(t, "epoch"))
		s.serial++
		ts := s.e.clk.Now().UnixMilli()
		b := batch(t, n, ts, p, fmt.Sprint("v", s.serial))
		record.Stamp(b, s.m.end, s.m.epoch)
		s.m.batches = append(s.m.batches, modelBatch{base: s.m.end, next: s.m.end + int64(n), bytes: b})
		s.m.ts = append(s.m.ts, ts)
		s.m.end += int64(n)
		all = append(all, b...)
	}
	if n, err := s.e.l.AppendAsFollower(all); err != nil || n != len(all) {
		t.Fatalf("%d of %d bytes: %v", n, len(all), err)
	}
	s.e.clk.Advance(time.Second)
}

// StartState compares what a new replica would get with the batches that are left.
func (s *machine) StartState(t *rapid.T) {
	limit := min(s.e.l.HighWatermark(), s.m.flushed)
	if limit < s.m.start {
		t.Skip("nothing is committed")
	}
	at := rapid.Int64Range(s.m.start, limit).Draw(t, "at")
	st, err := s.e.l.StartStateAt(at)
	must(t, err)
	if st.Offset != s.m.base(at) {
		t.Fatalf("state at %d for %d, want %d", st.Offset, at, s.m.base(at))
	}
	last := map[int64]record.Header{}
	epoch := int32(-1)
	for _, b := range s.m.batches {
		if b.base < st.Offset {
			h := header(t, b.bytes)
			last[h.ProducerID], epoch = h, h.LeaderEpoch
		}
	}
	for id := range int64(3) {
		i := slices.IndexFunc(st.Producers, func(p ProducerState) bool { return p.ProducerID == id })
		h, want := last[id]
		if want && (i < 0 || st.Producers[i].Batches[len(st.Producers[i].Batches)-1].Base != h.BaseOffset) {
			t.Fatalf("state at %d: producer %d wrote at %d: %+v", st.Offset, id, h.BaseOffset, st.Producers)
		}
		if !want && i >= 0 && st.Producers[i].Batches[0].Base >= s.m.start {
			t.Fatalf("state at %d: producer %d has not written: %+v", st.Offset, id, st.Producers)
		}
	}
	if got, known := lineage(st.Epochs).at(st.Offset - 1); epoch >= 0 && (!known || got != epoch) {
		t.Fatalf("state at %d: the epoch below is %d (%v), want %d", st.Offset, got, st.Epochs, epoch)
	}
}

// Check compares everything that can be seen.
func (s *machine) Check(t *rapid.T) {
	o := s.e.l.Offsets()
	if o.End != s.m.end || o.LogStart != s.m.start || o.Flushed != s.m.flushed {
		t.Fatalf("offsets %+v, model start %d flushed %d end %d", o, s.m.start, s.m.flushed, s.m.end)
	}
	if w := max(s.m.wanted, s.m.start); s.e.l.JournaledLogStart() != w {
		t.Fatalf("journaled log start %d, want %d", s.e.l.JournaledLogStart(), w)
	}
	if s.e.l.Adopted() != s.m.adopted || s.e.l.AdoptedDurable() != s.m.durable {
		t.Fatalf("adopted %d, durable %d, want %d, %d", s.e.l.Adopted(), s.e.l.AdoptedDurable(), s.m.adopted, s.m.durable)
	}
	if got, want := s.e.l.ReplicaStart(), s.m.base(s.m.start); got != want {
		t.Fatalf("replicas begin at %d, want %d: the log start is %d", got, want, s.m.start)
	}
	if o.HighWatermark > o.Flushed || o.HighWatermark < o.LogStart {
		t.Fatalf("high watermark: %+v", o)
	}
	var want []byte
	var newest int64 = -1
	for i, b := range s.m.batches {
		if b.next > s.m.start {
			want = append(want, b.bytes...)
			newest = max(newest, s.m.ts[i])
		}
	}
	if o.LogStart < o.End {
		got, err := readAll(s.e.l, o.LogStart, o.End)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatal("other bytes")
		}
	}
	s.checkOneRead(t)
	s.checkTime(t, newest)
}

func (s *machine) checkOneRead(t *rapid.T) {
	if s.m.start == s.m.end {
		return
	}
	off := rapid.Int64Range(s.m.start, s.m.end-1).Draw(t, "read at")
	upTo := s.m.end
	r, err := s.e.l.ReadRange(off, rapid.IntRange(1, 800).Draw(t, "read bytes"), upTo)
	must(t, err)
	defer r.Release()
	buf := make([]byte, r.Len)
	must(t, r.ReadInto(buf))
	var want []byte
	for _, b := range s.m.batches {
		if b.next > off && b.next <= r.Next {
			want = append(want, b.bytes...)
		}
	}
	if len(buf) == 0 || !bytes.Equal(buf, want) {
		t.Fatalf("read at %d: %d bytes up to %d, want %d", off, len(buf), r.Next, len(want))
	}
}

func (s *machine) checkTime(t *rapid.T, newest int64) {
	if newest < 0 {
		return
	}
	ms := newest - int64(rapid.IntRange(-10, 20000).Draw(t, "time"))
	off, ts, ok, err := s.e.l.OffsetForTime(ms)
	must(t, err)
	hw := s.e.l.HighWatermark()
	for i, b := range s.m.batches {
		if b.next > hw {
			break
		}
		for r := range b.next - b.base { // record r of a batch has its base timestamp + r
			if b.base+r < s.m.start || s.m.ts[i]+r < ms {
				continue
			}
			if !ok || off != b.base+r || ts != s.m.ts[i]+r {
				t.Fatalf("time %d: offset %d timestamp %d found %t, want %d", ms, off, ts, ok, b.base+r)
			}
			return
		}
	}
	if ok {
		t.Fatalf("time %d: offset %d timestamp %d, want none", ms, off, ts)
	}
}

func TestLogAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newMachine(t)
		defer func() {
			_ = s.e.l.Close()
			s.e.host.close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"append": s.Append, "append again": s.Append, "append more": s.Append, "duplicate": s.Duplicate, "round": s.Round, "roll": s.Roll,
			"epoch": s.NewEpoch, "truncate": s.Truncate, "delete records": s.DeleteRecords,
			"journal start": s.JournalStart, "publish start": s.PublishStart, "adopt": s.Adopt, "follow": s.Follow, "start state": s.StartState, "retain": s.RetainBytes,
			"close": s.CloseAndOpen, "crash": s.Crash, "": s.Check,
		})
	})
}
