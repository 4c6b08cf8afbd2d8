package log

import (
	"bytes"
	"errors"
	"testing"
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
