package mem_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/tiering/objectstore"
	"runnel.dev/runnel/tiering/objectstore/mem"
	"runnel.dev/runnel/tiering/objectstore/storetest"
)

func newStore(t testing.TB, change func(*mem.Config)) *mem.Store {
	t.Helper()
	cfg := mem.Config{Clock: clock.System()}
	if change != nil {
		change(&cfg)
	}
	s, err := mem.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) objectstore.Store { return newStore(t, nil) })
}

func TestModel(t *testing.T) {
	storetest.RunModel(t, func(t testing.TB) objectstore.Store { return newStore(t, nil) })
}

func put(ctx context.Context, s objectstore.Store, key string, data []byte) error {
	_, err := s.Put(ctx, objectstore.PutRequest{
		Key: key, Body: bytes.NewReader(data), Size: int64(len(data)),
		Checksum: objectstore.ChecksumOf(objectstore.SHA256, data),
	})
	return err
}

func get(ctx context.Context, s objectstore.Store, key string, offset, length int64) ([]byte, error) {
	body, _, err := s.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

func keys(t *testing.T, s objectstore.Store) (keys []string) {
	t.Helper()
	for info, err := range objectstore.All(t.Context(), s, "", 0) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// calls are all methods on one key.
var calls = map[objectstore.Op]func(ctx context.Context, s objectstore.Store) error{
	objectstore.OpPut: func(ctx context.Context, s objectstore.Store) error { return put(ctx, s, "key", []byte("new")) },
	objectstore.OpGet: func(ctx context.Context, s objectstore.Store) error {
		_, err := get(ctx, s, "key", 0, objectstore.ToEnd)
		return err
	},
	objectstore.OpHead: func(ctx context.Context, s objectstore.Store) error {
		_, err := s.Head(ctx, "key")
		return err
	},
	objectstore.OpDelete: func(ctx context.Context, s objectstore.Store) error {
		_, err := s.Delete(ctx, []string{"key"})
		return err
	},
	objectstore.OpList: func(ctx context.Context, s objectstore.Store) error {
		_, err := s.List(ctx, objectstore.ListRequest{Prefix: "key"})
		return err
	},
}

func TestErrorsBefore(t *testing.T) {
	for fault, kind := range map[*mem.Fault]error{
		new(mem.Unavailable()):                        objectstore.ErrUnavailable,
		new(mem.Throttled()):                          objectstore.ErrThrottled,
		new(mem.Fault{Before: objectstore.ErrDenied}): objectstore.ErrDenied,
	} {
		s := newStore(t, nil)
		if err := put(t.Context(), s, "key", []byte("old")); err != nil {
			t.Fatal(err)
		}
		for op, call := range calls {
			s.SetInjector(mem.Nth(op, 1, *fault))
			err := call(t.Context(), s)
			if !errors.Is(err, kind) || objectstore.Retriable(err) == errors.Is(kind, objectstore.ErrDenied) {
				t.Fatalf("%s: %v, retriable: %v", op, err, objectstore.Retriable(err))
			}
			if data, err := get(t.Context(), s, "key", 0, objectstore.ToEnd); op != objectstore.OpGet && (err != nil || string(data) != "old") {
				t.Fatalf("after a failed %s: %q, %v", op, data, err)
			}
		}
	}
}

// Case 8 of tiering: a call that hangs ends with the deadline of its caller.
func TestHangEndsWithDeadline(t *testing.T) {
	for op, call := range calls {
		for name, fault := range map[string]mem.Fault{"before": {Hang: true}, "after": {HangAfter: true}} {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, nil)
				if err := put(t.Context(), s, "key", []byte("old")); err != nil {
					t.Fatal(err)
				}
				s.SetInjector(mem.Always(fault, op))
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := call(ctx, s); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 10*time.Second {
					t.Fatalf("%s, %s: %v after %v", op, name, err, time.Since(begin))
				}
				s.SetInjector(nil)
				data, err := get(t.Context(), s, "key", 0, objectstore.ToEnd)
				want, gone := "old", false
				if name == "after" { // it took effect
					gone = op == objectstore.OpDelete
					if op == objectstore.OpPut {
						want = "new"
					}
				}
				if gone != errors.Is(err, objectstore.ErrNotFound) || !gone && string(data) != want {
					t.Fatalf("%s, %s: object is %q, %v", op, name, data, err)
				}
			})
		}
	}
}

// The answer to a conditional put is lost; the retry meets its own object and
// finds that out with Head.
func TestSuccessThenError(t *testing.T) {
	s := newStore(t, func(c *mem.Config) {
		c.Injector = mem.Nth(objectstore.OpPut, 1, mem.Fault{After: objectstore.ErrUnavailable})
	})
	data := []byte("data")
	req := objectstore.PutRequest{
		Key: "key", Body: bytes.NewReader(data), Size: 4, Precondition: objectstore.IfNoneMatch,
		Checksum: objectstore.ChecksumOf(objectstore.CRC32C, data),
	}
	if _, err := s.Put(t.Context(), req); !objectstore.Retriable(err) {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), req); !errors.Is(err, objectstore.ErrPreconditionFailed) {
		t.Fatal(err)
	}
	if info, err := s.Head(t.Context(), "key"); err != nil || info.Checksum != req.Checksum || info.Size != 4 {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestSlow(t *testing.T) {
	fake := clock.NewFake(time.Unix(1000, 0))
	s := newStore(t, func(c *mem.Config) {
		c.Clock = fake
		c.Injector = mem.Always(mem.Fault{Slow: time.Minute}, objectstore.OpPut)
	})
	done := make(chan error, 1)
	go func() { done <- put(t.Context(), s, "key", nil) }()
	if err := fake.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	fake.Advance(59 * time.Second)
	if _, err := s.Head(t.Context(), "key"); !errors.Is(err, objectstore.ErrNotFound) {
		t.Fatal(err)
	}
	fake.Advance(time.Second)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if info, err := s.Head(t.Context(), "key"); err != nil || !info.Modified.Equal(time.Unix(1060, 0)) {
		t.Fatalf("%+v, %v", info, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- put(ctx, s, "other", nil) }()
	if err := fake.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestBodyOfPut(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	for fault, kind := range map[mem.BodyFault]error{mem.Truncate: io.ErrUnexpectedEOF, mem.Flip: objectstore.ErrChecksum} {
		for _, at := range []int64{0, 500_000, 999_999} {
			s := newStore(t, func(c *mem.Config) { c.Injector = mem.Always(mem.Fault{Body: fault, BodyAt: at}) })
			if err := put(t.Context(), s, "key", data); !errors.Is(err, kind) {
				t.Fatalf("fault %d at %d: %v", fault, at, err)
			}
			if got := keys(t, s); len(got) != 0 || s.Used() != 0 {
				t.Fatalf("stored: %q, %d bytes", got, s.Used())
			}
		}
	}
}

func TestBodyOfGet(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 1000)
	s := newStore(t, nil)
	if err := put(t.Context(), s, "key", data); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 5000, 9999} {
		s.SetInjector(mem.Always(mem.Fault{Body: mem.Truncate, BodyAt: at}))
		got, err := get(t.Context(), s, "key", 0, objectstore.ToEnd)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !objectstore.Retriable(err) || int64(len(got)) != at {
			t.Fatalf("cut at %d: %d bytes, %v", at, len(got), err)
		}
		s.SetInjector(mem.Always(mem.Fault{Body: mem.Flip, BodyAt: at}))
		if got, err = get(t.Context(), s, "key", 0, objectstore.ToEnd); !errors.Is(err, objectstore.ErrChecksum) || len(got) == len(data) {
			t.Fatalf("flipped at %d: %d bytes, %v", at, len(got), err)
		}
		// A part has no checksum: wrong bytes get through, and only the caller can tell.
		got, err = get(t.Context(), s, "key", 0, 9999)
		if at < 9999 == bytes.Equal(got, data[:9999]) || err != nil {
			t.Fatalf("part, flipped at %d: %v", at, err)
		}
	}
	s.SetInjector(nil)
	if err := s.Damage("key", 3); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t.Context(), s, "key", 0, objectstore.ToEnd); !errors.Is(err, objectstore.ErrChecksum) {
		t.Fatal(err)
	}
	if err := s.Damage("key", 10_000); err == nil {
		t.Fatal("damaged a byte behind the end")
	}
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 1000)
		s := newStore(t, nil)
		if err := put(t.Context(), s, "key", data); err != nil {
			t.Fatal(err)
		}
		s.SetInjector(mem.Always(mem.Fault{Body: mem.Stall, BodyAt: 400}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := get(ctx, s, "key", 0, objectstore.ToEnd)
		if !errors.Is(err, context.DeadlineExceeded) || len(got) != 400 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := put(ctx, s, "other", data); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

func TestStaleList(t *testing.T) {
	s := newStore(t, nil)
	for _, key := range []string{"a", "b", "c"} {
		if err := put(t.Context(), s, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Delete(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	for stale, want := range [][]string{{"b", "c"}, {"a", "b", "c"}, {"a", "b"}, {"a"}, nil, nil} {
		s.SetInjector(mem.Always(mem.Fault{Stale: stale}, objectstore.OpList))
		if got := keys(t, s); !slices.Equal(got, want) {
			t.Fatalf("without the last %d changes: %q, want %q", stale, got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	s := newStore(t, func(c *mem.Config) { c.Capacity, c.MaxObjects = 100, 2 })
	ten := make([]byte, 10)
	for _, key := range []string{"a", "b", "a"} {
		if err := put(t.Context(), s, key, ten); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(t.Context(), s, "c", nil); !errors.Is(err, objectstore.ErrUnavailable) {
		t.Fatalf("third of two objects: %v", err)
	}
	if err := put(t.Context(), s, "a", make([]byte, 91)); !errors.Is(err, objectstore.ErrUnavailable) {
		t.Fatalf("101 of 100 bytes: %v", err)
	}
	if err := put(t.Context(), s, "a", make([]byte, 90)); err != nil || s.Used() != 100 {
		t.Fatalf("100 of 100 bytes: %v, used %d", err, s.Used())
	}
	if got := s.Calls()[objectstore.OpPut]; got != 6 {
		t.Fatalf("%d puts were counted, want 6", got)
	}
	_, err := mem.New(mem.Config{Capacity: -1, MaxObjects: -1})
	if n := len(err.(interface{ Unwrap() []error }).Unwrap()); n != 3 {
		t.Fatalf("%d faults are reported, want 3: %v", n, err)
	}
}
