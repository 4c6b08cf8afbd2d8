package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// NewBody makes what a store received into the body that Get promises: it has
// exactly length bytes or ends with an error, it ends with ctx, and unless want
// is zero it has that checksum. Closing it closes src. The errors of src are
// passed on within an *Error; a store that has its own kinds classifies them
// before.
func NewBody(ctx context.Context, key string, src io.ReadCloser, length int64, want Checksum) io.ReadCloser {
	b := &body{ctx: ctx, key: key, src: src, left: length, length: length, want: want}
	if !want.IsZero() {
		b.hasher = NewHasher(want.Algorithm())
	}
	return b
}

type body struct {
	ctx    context.Context // of the Get, which the body is a part of
	key    string
	src    io.ReadCloser
	length int64
	left   int64 // bytes that were not read yet
	want   Checksum
	hasher *Hasher // nil: bytes are not checked
	err    error   // what every later Read returns
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = Wrap(OpGet, b.key, err)
	}
	b.err = err
	return n, err
}

func (b *body) read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left == 0 {
		return 0, b.end()
	}
	if len(p) == 0 {
		return 0, nil // sources differ in what they make of it
	}
	n, err := b.src.Read(p[:min(int64(len(p)), b.left)])
	if b.hasher != nil {
		b.hasher.Write(p[:n])
	}
	b.left -= int64(n)
	if b.left > 0 {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: body ends %d bytes before its %d: %w", ErrUnavailable, b.left, b.length, io.ErrUnexpectedEOF)
		}
		return n, err
	}
	// Nobody needs to read on when all bytes are there, and io.ReadFull drops
	// an error that comes with the last of them. So bytes that complete a wrong
	// object are withheld.
	if err := b.end(); !errors.Is(err, io.EOF) {
		return 0, err
	}
	return n, nil
}

// end is io.EOF, unless the bytes were wrong.
func (b *body) end() error {
	if b.hasher != nil {
		if got := b.hasher.Sum(); got != b.want {
			return &ChecksumError{Want: b.want, Got: got}
		}
	}
	return io.EOF
}

// Close implements io.Closer. Reads after it fail.
func (b *body) Close() error {
	if b.err == nil {
		b.err = Wrap(OpGet, b.key, errors.New("body is closed"))
	}
	return b.src.Close()
}
