package objectstore_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"runnel.dev/runnel/tiering/objectstore"
)

func TestChecksum(t *testing.T) {
	// The check value of CRC-32C, and the SHA-256 of FIPS 180-2.
	for a, want := range map[objectstore.Algorithm]string{
		objectstore.CRC32C: "crc32c:e3069283",
		objectstore.SHA256: "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
	} {
		c := objectstore.ChecksumOf(a, []byte("123456789"))
		if c.String() != want || c.Algorithm() != a || len(c.Bytes()) != a.Size() {
			t.Errorf("checksum is %v, want %s", c, want)
		}
		again, err := objectstore.NewChecksum(a, c.Bytes())
		if err != nil || again != c {
			t.Errorf("%v from its bytes: %v, %v", c, again, err)
		}
		if _, err := objectstore.NewChecksum(a, c.Bytes()[1:]); !errors.Is(err, objectstore.ErrInvalidArgument) {
			t.Errorf("short sum: %v", err)
		}
	}
	if _, err := objectstore.NewChecksum(3, make([]byte, 4)); !errors.Is(err, objectstore.ErrInvalidArgument) {
		t.Error(err)
	}
	if c := (objectstore.Checksum{}); !c.IsZero() || c.String() != "none" || len(c.Bytes()) != 0 {
		t.Errorf("zero checksum: %v", c)
	}
}

func TestPutRequestReportsAllFaults(t *testing.T) {
	err := objectstore.PutRequest{Key: "../x", Size: -1, Precondition: 9}.Validate()
	for _, want := range []string{`"../x"`, "body", "size is -1", "checksum", "precondition is 9"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
}

// Everybody who reads a body of exactly the right length has to learn that it
// is wrong, io.ReadFull included, whatever pieces the bytes come in.
func TestBodyWithWrongBytes(t *testing.T) {
	data := []byte("some bytes of an object")
	sum := objectstore.ChecksumOf(objectstore.CRC32C, data)
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "one byte": iotest.OneByteReader, "half": iotest.HalfReader, "data with EOF": iotest.DataErrReader,
	} {
		for at := range data {
			wrong := bytes.Clone(data)
			wrong[at] ^= 0x10
			body := objectstore.NewBody(t.Context(), "key", io.NopCloser(pieces(bytes.NewReader(wrong))), int64(len(data)), sum)
			n, err := io.ReadFull(body, make([]byte, len(data)))
			if n == len(data) || !errors.Is(err, objectstore.ErrChecksum) {
				t.Fatalf("%s, byte %d: read %d, %v", name, at, n, err)
			}
			if _, err := body.Read(make([]byte, 1)); !errors.Is(err, objectstore.ErrChecksum) {
				t.Fatalf("the error does not stay: %v", err)
			}
		}
		body := objectstore.NewBody(t.Context(), "key", io.NopCloser(pieces(bytes.NewReader(data))), int64(len(data)), sum)
		if err := iotest.TestReader(body, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBodyLength(t *testing.T) {
	src := func() io.ReadCloser { return io.NopCloser(strings.NewReader("0123456789")) }
	got, err := io.ReadAll(objectstore.NewBody(t.Context(), "key", src(), 4, objectstore.Checksum{}))
	if err != nil || string(got) != "0123" {
		t.Errorf("a body of 4 bytes: %q, %v", got, err)
	}
	got, err = io.ReadAll(objectstore.NewBody(t.Context(), "key", src(), 11, objectstore.Checksum{}))
	if !errors.Is(err, io.ErrUnexpectedEOF) || !objectstore.Retriable(err) || len(got) != 10 {
		t.Errorf("10 of 11 bytes: %q, %v", got, err)
	}
	_, err = io.ReadAll(objectstore.NewBody(t.Context(), "key", src(), 0, objectstore.ChecksumOf(objectstore.CRC32C, []byte("x"))))
	if !errors.Is(err, objectstore.ErrChecksum) {
		t.Errorf("an empty body that should not be: %v", err)
	}
}

// FuzzCheckKey: a valid key is one that nobody cleans into another.
func FuzzCheckKey(f *testing.F) {
	for _, key := range []string{"a/b", "", "/", "..", "a/../b", "\xff", strings.Repeat("a", 251), "a\u0085"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		err := objectstore.CheckKey(key)
		if err != nil {
			var e *objectstore.KeyError
			if !errors.As(err, &e) || e.Limit == "" || !errors.Is(err, objectstore.ErrInvalidKey) {
				t.Fatalf("%q: %v", key, err)
			}
			return
		}
		if len(key) > objectstore.MaxKeySize || strings.Contains("/"+key+"/", "/../") || strings.Contains("/"+key+"/", "//") || strings.ContainsAny(key, "\x00\n\\") {
			t.Fatalf("%q is valid", key)
		}
		for cut := range key { // at each rune
			if err := objectstore.CheckPrefix(key[:cut]); err != nil {
				t.Fatalf("%q is valid and its prefix is not: %v", key, err)
			}
		}
	})
}
