package file

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/tiering/objectstore"
)

// The format as it was first released.
func TestHeaderGolden(t *testing.T) {
	const want = "524e4c4f424a0000" + "00000001" + "0003" + "01" + "00" + "0000000000000009" +
		"e306928300000000000000000000000000000000000000000000000000000000" + "c8cc23e2" + "612f62"
	got := hex.EncodeToString(encodeHeader("a/b", 9, objectstore.ChecksumOf(objectstore.CRC32C, []byte("123456789"))))
	if got != want {
		t.Fatalf("header is\n%s, want\n%s", got, want)
	}
}

// Every flipped bit of an object file is found by a whole read; those of the
// header also by Head.
func TestFlippedBits(t *testing.T) {
	disk := memfs.New()
	s, err := Open(t.Context(), Config{FS: disk, Root: "/data", Clock: clock.System()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := []byte("some bytes of an object")
	for _, algorithm := range []objectstore.Algorithm{objectstore.CRC32C, objectstore.SHA256} {
		_, err = s.Put(t.Context(), objectstore.PutRequest{
			Key: "a/key", Body: bytes.NewReader(data), Size: int64(len(data)), Checksum: objectstore.ChecksumOf(algorithm, data),
		})
		if err != nil {
			t.Fatal(err)
		}
		_, path := s.objectPath("a/key")
		f, err := disk.OpenRW(path)
		if err != nil {
			t.Fatal(err)
		}
		size, err := f.Size()
		if err != nil || size != bodyAt("a/key")+int64(len(data)) {
			t.Fatalf("file has %d bytes, %v", size, err)
		}
		var b [1]byte
		for at := range size {
			for bit := range 8 {
				flip := func() {
					_, err := f.ReadAt(b[:], at)
					b[0] ^= 1 << bit
					_, writeErr := f.WriteAt(b[:], at)
					if err != nil || writeErr != nil {
						t.Fatal(err, writeErr)
					}
				}
				flip()
				if err := readWhole(t, s, "a/key"); !errors.Is(err, objectstore.ErrChecksum) {
					t.Fatalf("bit %d of byte %d: %v", bit, at, err)
				}
				_, err := s.Head(t.Context(), "a/key")
				if at < bodyAt("a/key") != errors.Is(err, objectstore.ErrChecksum) {
					t.Fatalf("bit %d of byte %d: head: %v", bit, at, err)
				}
				flip()
			}
		}
		for cut := range size {
			if err := f.Truncate(size - 1 - cut); err != nil {
				t.Fatal(err)
			}
			if err := readWhole(t, s, "a/key"); !errors.Is(err, objectstore.ErrChecksum) {
				t.Fatalf("cut to %d: %v", size-1-cut, err)
			}
		}
		// A damaged object is listed, so that it can be found and deleted.
		page, err := s.List(t.Context(), objectstore.ListRequest{})
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Size != 0 {
			t.Fatalf("%+v, %v", page, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func readWhole(t *testing.T, s *Store, key string) error {
	t.Helper()
	body, _, err := s.Get(t.Context(), key, 0, objectstore.ToEnd)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(body)
	return errors.Join(err, body.Close())
}

func TestFutureVersion(t *testing.T) {
	b := encodeHeader("key", 0, objectstore.ChecksumOf(objectstore.CRC32C, nil))
	binary.BigEndian.PutUint32(b[8:], 2)
	binary.BigEndian.PutUint32(b[crcAt:], headerCRC(b))
	_, _, err := decodeHeader("file", b, "key", int64(len(b)))
	var e *FutureFormatError
	if !errors.As(err, &e) || e.Version != 2 || e.Supported != 1 || errors.Is(err, objectstore.ErrChecksum) {
		t.Fatal(err)
	}
}

// A name that leads to the file of another key is an error, and never its data.
func TestOtherKey(t *testing.T) {
	b := encodeHeader("KEY", 0, objectstore.ChecksumOf(objectstore.CRC32C, nil))
	if _, _, err := decodeHeader("file", b, "key", int64(len(b))); !errors.Is(err, objectstore.ErrChecksum) {
		t.Fatal(err)
	}
}

// Whatever a file holds, decoding ends with what was encoded or an error.
func FuzzDecodeHeader(f *testing.F) {
	sum := objectstore.ChecksumOf(objectstore.SHA256, nil)
	f.Add(encodeHeader("key", 0, sum), int64(63))
	f.Add(encodeHeader("key", -5, sum), int64(58))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, b []byte, fileSize int64) {
		b = b[:min(len(b), int(bodyAt("key")))] // what describe reads
		if len(b) > crcAt+4 {                   // past the checksum, so that the fields behind it are reached
			binary.BigEndian.PutUint32(b[crcAt:], headerCRC(b))
		}
		size, sum, err := decodeHeader("file", b, "key", fileSize)
		if err != nil {
			var future *FutureFormatError
			if !errors.Is(err, objectstore.ErrChecksum) && !errors.As(err, &future) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		if size < 0 || size+bodyAt("key") != fileSize || sum.IsZero() {
			t.Fatalf("size %d of a file of %d, checksum %v", size, fileSize, sum)
		}
	})
}
