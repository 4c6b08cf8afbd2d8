package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"runnel.dev/runnel/tiering/objectstore"
)

func testRoundTrip(t *testing.T, s objectstore.Store) {
	for _, size := range []int{0, 1, 511, 4096, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20} {
		for _, algorithm := range []objectstore.Algorithm{objectstore.CRC32C, objectstore.SHA256} {
			key, data := fmt.Sprintf("sizes/%d/%v", size, algorithm), pattern(size, 1)
			req := request(key, data)
			req.Checksum = objectstore.ChecksumOf(algorithm, data)
			info, err := s.Put(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			head, err := s.Head(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if head.Key != key || head.Size != int64(size) || head.Checksum != req.Checksum || head.Modified.IsZero() {
				t.Fatalf("head of %q: %+v", key, head)
			}
			if info.Key != head.Key || info.Size != head.Size || info.Checksum != head.Checksum {
				t.Fatalf("put says %+v, head %+v", info, head)
			}
			body, got, err := s.Get(t.Context(), key, 0, objectstore.ToEnd)
			if err != nil {
				t.Fatal(err)
			}
			read, err := io.ReadAll(body)
			if err := errors.Join(err, body.Close()); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(read, data) || got.Size != head.Size || got.Checksum != head.Checksum || got.Key != key {
				t.Fatalf("get of %q: %d bytes, %+v", key, len(read), got)
			}
		}
	}
}

func testPutWrongBytes(t *testing.T, s objectstore.Store) {
	data := pattern(300<<10, 2)
	for _, algorithm := range []objectstore.Algorithm{objectstore.CRC32C, objectstore.SHA256} {
		req := request("wrong", data)
		req.Checksum = objectstore.ChecksumOf(algorithm, data[1:])
		_, err := s.Put(t.Context(), req)
		wantErr(t, err, objectstore.OpPut, objectstore.ErrChecksum)
	}
	short := request("wrong", data)
	short.Size++
	_, err := s.Put(t.Context(), short)
	wantErr(t, err, objectstore.OpPut, io.ErrUnexpectedEOF)

	broken := request("wrong", data)
	broken.Body = brokenBody{}
	_, err = s.Put(t.Context(), broken)
	wantErr(t, err, objectstore.OpPut, errBody)
	wantMissing(t, s, "wrong")

	// Nor is anything lost that was there.
	put(t, s, "wrong", []byte("right"))
	_, err = s.Put(t.Context(), short)
	wantErr(t, err, objectstore.OpPut, io.ErrUnexpectedEOF)
	want(t, s, "wrong", []byte("right"))

	// What a body has beyond its size does not count.
	long := request("long", data)
	long.Body = bytes.NewReader(append(bytes.Clone(data), "more"...))
	if _, err := s.Put(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	want(t, s, "long", data)
}

var errBody = errors.New("body is broken")

type brokenBody struct{}

func (brokenBody) ReadAt([]byte, int64) (int, error) { return 0, errBody }

func testPutInvalid(t *testing.T, s objectstore.Store) {
	for name, change := range map[string]func(*objectstore.PutRequest){
		"no body":      func(r *objectstore.PutRequest) { r.Body = nil },
		"no checksum":  func(r *objectstore.PutRequest) { r.Checksum = objectstore.Checksum{} },
		"negative":     func(r *objectstore.PutRequest) { r.Size = -1 },
		"too large":    func(r *objectstore.PutRequest) { r.Size = objectstore.MaxObjectSize + 1 },
		"precondition": func(r *objectstore.PutRequest) { r.Precondition = 7 },
	} {
		req := request("key", []byte("data"))
		change(&req)
		_, err := s.Put(t.Context(), req)
		var e *objectstore.ArgumentError
		if !errors.As(err, &e) || e.Value == "" || e.Limit == "" {
			t.Errorf("%s: %v, want an ArgumentError with value and limit", name, err)
		}
	}
	wantMissing(t, s, "key")
}

func testReplace(t *testing.T, s objectstore.Store) {
	put(t, s, "dir/key", pattern(5000, 3))
	put(t, s, "dir/key", []byte("short"))
	want(t, s, "dir/key", []byte("short"))
	put(t, s, "dir/key", nil)
	want(t, s, "dir/key", nil)
	if keys := list(t, s, "", 0); len(keys) != 1 {
		t.Fatalf("one object was put, listed are %q", keys)
	}
}

func testBuffers(t *testing.T, s objectstore.Store) {
	data := pattern(1000, 4)
	kept := bytes.Clone(data)
	put(t, s, "key", data)
	clear(data)
	want(t, s, "key", kept)

	read, err := get(t, s, "key", 0, objectstore.ToEnd)
	if err != nil {
		t.Fatal(err)
	}
	clear(read)
	want(t, s, "key", kept)
}

func testIfNoneMatch(t *testing.T, s objectstore.Store) {
	req := request("dir/key", []byte("first"))
	req.Precondition = objectstore.IfNoneMatch
	if _, err := s.Put(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	again := request("dir/key", []byte("second"))
	again.Precondition = objectstore.IfNoneMatch
	_, err := s.Put(t.Context(), again)
	wantErr(t, err, objectstore.OpPut, objectstore.ErrPreconditionFailed)
	want(t, s, "dir/key", []byte("first"))

	if _, err := s.Delete(t.Context(), []string{"dir/key"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	want(t, s, "dir/key", []byte("second"))
}

func testRace(t *testing.T, s objectstore.Store) {
	const writers = 8
	for round := range 5 {
		key := fmt.Sprintf("race/%d", round)
		var winner atomic.Int64
		var wins atomic.Int64
		var group sync.WaitGroup
		for w := range writers {
			group.Go(func() {
				req := request(key, pattern(2000+w, byte(w)))
				req.Precondition = objectstore.IfNoneMatch
				switch _, err := s.Put(t.Context(), req); {
				case err == nil:
					winner.Store(int64(w))
					wins.Add(1)
				case !errors.Is(err, objectstore.ErrPreconditionFailed):
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := wins.Load(); n != 1 {
			t.Fatalf("%d writers created %q, want 1", n, key)
		}
		w := int(winner.Load())
		want(t, s, key, pattern(2000+w, byte(w)))
	}
}

// Readers of an object that is being replaced see one version or the other.
func testWholeObjects(t *testing.T, s objectstore.Store) {
	versions := [][]byte{pattern(300<<10, 1), pattern(10<<10, 2)}
	put(t, s, "key", versions[0])
	var group sync.WaitGroup
	group.Go(func() {
		for i := range 20 {
			put(t, s, "key", versions[i%2])
		}
	})
	for range 3 {
		group.Go(func() {
			for range 20 {
				got, err := get(t, s, "key", 0, objectstore.ToEnd)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(got, versions[0]) && !bytes.Equal(got, versions[1]) {
					t.Errorf("read %d bytes of neither version", len(got))
				}
			}
		})
	}
	group.Wait()
}

// A put whose context ends while the body is read stores nothing.
func testPutContext(t *testing.T, s objectstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	data := pattern(1<<20, 5)
	req := request("key", data)
	req.Body = cancelling{ReaderAt: bytes.NewReader(data), at: 600 << 10, cancel: cancel}
	_, err := s.Put(ctx, req)
	wantErr(t, err, objectstore.OpPut, context.Canceled)
	wantMissing(t, s, "key")
}

// cancelling ends a context when a byte is read.
type cancelling struct {
	io.ReaderAt
	at     int64
	cancel context.CancelFunc
}

func (r cancelling) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.at {
		r.cancel()
	}
	return r.ReaderAt.ReadAt(p, off)
}
