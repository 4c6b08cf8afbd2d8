package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/tiering/objectstore"
)

func testRanges(t *testing.T, s objectstore.Store) {
	data := pattern(10_000, 6)
	put(t, s, "key", data)
	put(t, s, "empty", nil)
	size := int64(len(data))
	for _, r := range []struct {
		key            string
		offset, length int64
		want           []byte // nil: ErrInvalidRange
	}{
		{"key", 0, objectstore.ToEnd, data},
		{"key", 0, size, data},
		{"key", 0, size + 1, data},
		{"key", 0, math.MaxInt64, data},
		{"key", 0, 1, data[:1]},
		{"key", 1, 4096, data[1:4097]},
		{"key", 9_999, 1, data[9_999:]},
		{"key", 9_999, math.MaxInt64, data[9_999:]},
		{"key", 5_000, objectstore.ToEnd, data[5_000:]},
		{"key", size, 1, nil},
		{"key", size, objectstore.ToEnd, nil},
		{"key", math.MaxInt64, math.MaxInt64, nil},
		{"key", -1, 10, nil},
		{"key", -1, objectstore.ToEnd, nil},
		{"key", 0, 0, nil},
		{"key", 0, -2, nil},
		{"key", 0, math.MinInt64, nil},
		{"empty", 0, objectstore.ToEnd, []byte{}},
		{"empty", 0, 1, nil},
		{"empty", 1, objectstore.ToEnd, nil},
	} {
		got, err := get(t, s, r.key, r.offset, r.length)
		if r.want == nil {
			wantErr(t, err, objectstore.OpGet, objectstore.ErrInvalidRange)
			continue
		}
		if err != nil || !bytes.Equal(got, r.want) {
			t.Fatalf("%q from %d, length %d: %d bytes, error %v", r.key, r.offset, r.length, len(got), err)
		}
	}
	_, info, err := s.Get(t.Context(), "key", 5, 10)
	if err != nil || info.Size != size {
		t.Fatalf("info of a range is %+v, error %v; want that of the whole object", info, err)
	}
}

func testMissing(t *testing.T, s objectstore.Store) {
	put(t, s, "a/b", []byte("data"))
	for _, key := range []string{"a", "a/b/c", "a/c", "b", "A/B"} {
		wantMissing(t, s, key)
		_, err := get(t, s, key, 0, objectstore.ToEnd)
		wantErr(t, err, objectstore.OpGet, objectstore.ErrNotFound)
	}
}

// A body belongs to the object as it was when Get was called.
func testReaderKeepsState(t *testing.T, s objectstore.Store) {
	old := pattern(1<<20, 7)
	put(t, s, "key", old)
	replaced, _, err := s.Get(t.Context(), "key", 0, objectstore.ToEnd)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1000)
	if _, err := io.ReadFull(replaced, first); err != nil {
		t.Fatal(err)
	}
	put(t, s, "key", pattern(1<<20, 8))
	if _, err := s.Delete(t.Context(), []string{"key"}); err != nil {
		t.Fatal(err)
	}
	// A service may break the transfer off; it may not mix two objects.
	rest, err := io.ReadAll(replaced)
	if err == nil && !bytes.Equal(slices.Concat(first, rest), old) {
		t.Fatal("the body changed with the object")
	}
	if err := replaced.Close(); err != nil {
		t.Fatal(err)
	}
}

func testEndedContext(t *testing.T, s objectstore.Store) {
	put(t, s, "key", []byte("data"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for ctx, kind := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		_, err := s.Put(ctx, request("key", []byte("new")))
		wantErr(t, err, objectstore.OpPut, kind)
		_, _, err = s.Get(ctx, "key", 0, objectstore.ToEnd)
		wantErr(t, err, objectstore.OpGet, kind)
		_, err = s.Head(ctx, "key")
		wantErr(t, err, objectstore.OpHead, kind)
		_, err = s.Delete(ctx, []string{"key"})
		wantErr(t, err, objectstore.OpDelete, kind)
		_, err = s.List(ctx, objectstore.ListRequest{})
		wantErr(t, err, objectstore.OpList, kind)
	}
	want(t, s, "key", []byte("data"))
}

func testBodyContext(t *testing.T, s objectstore.Store) {
	put(t, s, "key", pattern(1<<20, 9))
	ctx, cancel := context.WithCancel(t.Context())
	body, _, err := s.Get(ctx, "key", 0, objectstore.ToEnd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.ReadAll(body)
	wantErr(t, err, objectstore.OpGet, context.Canceled)
	if err := body.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := body.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("read of a closed body: %d bytes, error %v", n, err)
	}
}
