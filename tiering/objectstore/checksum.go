package objectstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// Algorithm is a kind of checksum. The numbers are part of the format of the
// file store and never change.
type Algorithm uint8

// The algorithms. CRC-32C finds damage at the speed of memory and is what
// services compute over objects that were uploaded in parts. SHA-256 is for
// objects whose content has to be told from a forged one.
const (
	CRC32C Algorithm = 1 // Castagnoli, big endian, 4 bytes
	SHA256 Algorithm = 2 // 32 bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (a Algorithm) String() string {
	switch a {
	case CRC32C:
		return "crc32c"
	case SHA256:
		return "sha256"
	default:
		return fmt.Sprintf("algorithm %d", uint8(a))
	}
}

// Size is the length of a sum in bytes; 0 for an unknown algorithm.
func (a Algorithm) Size() int {
	switch a {
	case CRC32C:
		return crc32.Size
	case SHA256:
		return sha256.Size
	default:
		return 0
	}
}

// Checksum is a sum with its algorithm. The zero value is no checksum; others
// are equal (==) if they are the same sum by the same algorithm.
type Checksum struct {
	algorithm Algorithm
	sum       [sha256.Size]byte // the first Size bytes; the rest is zero
}

// NewChecksum takes a sum that somebody else has computed. ErrInvalidArgument:
// the algorithm is unknown or the length is not its own.
func NewChecksum(a Algorithm, sum []byte) (Checksum, error) {
	if a.Size() == 0 {
		return Checksum{}, argument("checksum algorithm", uint8(a), "%d (CRC-32C) and %d (SHA-256)", CRC32C, SHA256)
	}
	if len(sum) != a.Size() {
		return Checksum{}, argument("length of the checksum", len(sum), "%d bytes for %v", a.Size(), a)
	}
	c := Checksum{algorithm: a}
	copy(c.sum[:], sum)
	return c, nil
}

// ChecksumOf computes the checksum of bytes in memory. The algorithm has to be
// one of those above.
func ChecksumOf(a Algorithm, b []byte) Checksum {
	h := NewHasher(a)
	h.Write(b)
	return h.Sum()
}

// Algorithm is the algorithm; 0 for no checksum.
func (c Checksum) Algorithm() Algorithm { return c.algorithm }

// IsZero tells whether there is no checksum.
func (c Checksum) IsZero() bool { return c.algorithm == 0 }

// Bytes returns a copy of the sum.
func (c Checksum) Bytes() []byte { return append([]byte(nil), c.sum[:c.algorithm.Size()]...) }

// String is the algorithm with the sum in hexadecimal, "crc32c:e3069283".
func (c Checksum) String() string {
	if c.IsZero() {
		return "none"
	}
	return c.algorithm.String() + ":" + hex.EncodeToString(c.sum[:c.algorithm.Size()])
}

// Hasher computes a checksum piece by piece, for one goroutine.
type Hasher struct {
	algorithm Algorithm
	hash      hash.Hash
}

// NewHasher begins a checksum. The algorithm has to be one of those above.
func NewHasher(a Algorithm) *Hasher {
	switch a {
	case CRC32C:
		return &Hasher{algorithm: a, hash: crc32.New(castagnoli)}
	case SHA256:
		return &Hasher{algorithm: a, hash: sha256.New()}
	default:
		panic(fmt.Sprintf("objectstore: hasher of %v", a))
	}
}

// Write adds bytes.
func (h *Hasher) Write(b []byte) {
	// hash.Hash never returns an error.
	_, _ = h.hash.Write(b)
}

// Sum is the checksum of what was written so far.
func (h *Hasher) Sum() Checksum {
	c := Checksum{algorithm: h.algorithm}
	h.hash.Sum(c.sum[:0])
	return c
}

// copyBuffer is the piece in which bodies are read, in bytes.
const copyBuffer = 256 << 10

// ReadBody hands the body of a request to write, in order, in pieces that are
// valid during the call only, and looks at ctx between them. In the end it
// compares the checksum: ErrChecksum if it differs, so a store must not let
// anybody see the bytes before ReadBody has returned nil. A body with less than
// Size bytes gives io.ErrUnexpectedEOF.
func ReadBody(ctx context.Context, req PutRequest, write func(piece []byte) error) error {
	hasher := NewHasher(req.Checksum.Algorithm())
	buf := make([]byte, min(req.Size, copyBuffer))
	for at := int64(0); at < req.Size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := buf[:min(int64(len(buf)), req.Size-at)]
		n, err := req.Body.ReadAt(piece, at)
		if n < len(piece) {
			if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("body ends at byte %d of %d: %w", at+int64(n), req.Size, io.ErrUnexpectedEOF)
			}
			return err
		}
		hasher.Write(piece)
		if err := write(piece); err != nil {
			return err
		}
		at += int64(n)
	}
	if got := hasher.Sum(); got != req.Checksum {
		return &ChecksumError{Want: req.Checksum, Got: got}
	}
	return ctx.Err()
}
