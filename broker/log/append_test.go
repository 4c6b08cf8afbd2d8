package log

import (
	"bytes"
	"errors"
	"testing"

	"runnel.dev/runnel/record"
)

func TestAppendReadFlush(t *testing.T) {
	e := newEnv(t, testConfig())
	var want bytes.Buffer
	for i := range 60 {
		a, b := e.mustAppend(3, "value")
		if a.Base != int64(3*i) || a.Last != int64(3*i+2) || a.End != int64(3*i+3) || a.Duplicate || a.AppendTimeMS != -1 {
			t.Fatalf("append %d: %+v", i, a)
		}
		want.Write(b)
	}
	if o := e.l.Offsets(); o.Flushed != 0 || o.End != 180 || o.TieredEnd != -1 || o.HighWatermark != 0 {
		t.Fatalf("before the round: %+v", o)
	}
	var flushed []int64
	e.l.OnFlushed(func(f int64) { flushed = append(flushed, f) })
	must(t, e.host.round(e.l))
	if o := e.l.Offsets(); o.Flushed != 180 || len(flushed) != 1 || flushed[0] != 180 {
		t.Fatalf("after the round: %+v, callbacks %v", o, flushed)
	}
	if n := len(e.l.Segments()); n < 3 {
		t.Fatalf("%d segments, expected rolls", n)
	}
	got, err := readAll(e.l, 0, 180)
	must(t, err)
	if !bytes.Equal(got, want.Bytes()) {
		t.Fatal("read other bytes than appended")
	}
	for _, off := range []int64{-1, 181} {
		_, err := e.l.ReadRange(off, 1, 180)
		var o *OutOfRangeError
		if !errors.As(err, &o) || o.Asked != off || o.Earliest != 0 || o.Latest != 180 || !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
	e.closeAll()
}

func TestAFollowersBatchMustHoldOffsets(t *testing.T) {
	e := newEnv(t, testConfig())
	b := batch(t, 1, 1, noProducer, "x")
	b[23], b[24], b[25], b[26] = 0xff, 0xff, 0xff, 0xff // last offset delta -1
	record.Stamp(b, 0, 1)
	record.SetProducerOn(b, -1, -1, -1) // renews the checksum
	if _, err := e.l.AppendAsFollower(b); !errors.Is(err, record.ErrInvalid) || e.l.Size() > 0 {
		t.Errorf("append: %v, %d bytes", err, e.l.Size())
	}
}

func TestAClosedLogLeavesItsDirectoryAlone(t *testing.T) {
	e := newEnv(t, testConfig())
	e.closeAll()
	if err := e.l.UpdateTopic("other", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if m, err := ReadMeta(e.fs, testDir); err != nil || m.TopicName != "orders" {
		t.Errorf("partition.meta says %q, %v", m.TopicName, err)
	}
}
