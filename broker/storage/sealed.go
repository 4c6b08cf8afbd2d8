package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// A sealed file is a small file that is written whole and replaced atomically: meta, clean, stops. Integers are little-endian.
//
//	 0       8       12      16      20
//	┌───────┬───────┬───────┬───────┬──────────┐
//	│ magic │version│length │ crc   │ body …   │
//	└───────┴───────┴───────┴───────┴──────────┘
//	  8       4       4       4       length
//
// The CRC-32C covers bytes 0 to 16 and the body. This frame is the same in all versions, so that a damaged version is told from a
// future one: the checksum is tested first.
//
// Crash windows of a replacement: before the rename is durable the old content is there, whole, beside NAME.tmp, which the next
// Open removes; afterwards the new content, which was synced before the rename.
const (
	sealedHeaderSize = 20
	sealedMaxSize    = 1 << 20
	tmpSuffix        = ".tmp"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealedKind is one kind of sealed file. Its version is the one that is written, and the newest that is read.
type sealedKind struct {
	name    string
	magic   string // 8 bytes
	version uint32
}

func (k sealedKind) encode(body []byte) []byte {
	b := make([]byte, sealedHeaderSize, sealedHeaderSize+len(body))
	copy(b[:8], k.magic)
	binary.LittleEndian.PutUint32(b[8:], k.version)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(body)))
	crc := crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, body)
	binary.LittleEndian.PutUint32(b[16:], crc)
	return append(b, body...)
}

// decode returns the body, which aliases b. path is for the errors: *CorruptFileError or *FutureFormatError.
func (k sealedKind) decode(path string, b []byte) (body []byte, err error) {
	corrupt := func(offset int64, format string, args ...any) error {
		return &CorruptFileError{File: path, Offset: offset, Detail: fmt.Sprintf(format, args...)}
	}
	if len(b) < sealedHeaderSize {
		return nil, corrupt(int64(len(b)), "%d bytes, a header has %d", len(b), sealedHeaderSize)
	}
	if string(b[:8]) != k.magic {
		return nil, corrupt(0, "begins with %q, want %q", b[:8], k.magic)
	}
	if n := binary.LittleEndian.Uint32(b[12:]); int64(n) != int64(len(b)-sealedHeaderSize) {
		return nil, corrupt(12, "declares a body of %d bytes and has %d", n, len(b)-sealedHeaderSize)
	}
	body = b[sealedHeaderSize:]
	crc := crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, body)
	if want := binary.LittleEndian.Uint32(b[16:]); crc != want {
		return nil, corrupt(0, "checksum is %08x, want %08x", crc, want)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v == 0 || v > k.version {
		return nil, &FutureFormatError{File: path, Version: v, Supported: k.version}
	}
	return body, nil
}

// write replaces the file in dir atomically; durable when it returns nil.
func (k sealedKind) write(fsys vfs.FS, dir string, body []byte) error {
	return replaceDurably(fsys, dir, k.name, k.encode(body))
}

// read returns the body of the file in dir; the error wraps fs.ErrNotExist when there is none.
func (k sealedKind) read(fsys vfs.FS, dir string) (body []byte, err error) {
	path := filepath.Join(dir, k.name)
	b, err := readWhole(fsys, path, sealedMaxSize)
	if err != nil {
		return nil, err
	}
	return k.decode(path, b)
}

// replaceDurably replaces dir/name atomically; durable when it returns nil.
func replaceDurably(fsys vfs.FS, dir, name string, content []byte) error {
	path := filepath.Join(dir, name)
	if err := writeSynced(fsys, path+tmpSuffix, content); err != nil {
		return err
	}
	if err := fsys.Rename(path+tmpSuffix, path); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// writeSynced creates path, replacing a left-over of an earlier attempt, with content that is durable; its name is not yet.
func writeSynced(fsys vfs.FS, path string, content []byte) (err error) {
	if err := removeIfExists(fsys, path); err != nil {
		return err
	}
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}

func removeIfExists(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readWhole reads a file of at most limit bytes; the error wraps fs.ErrNotExist when there is none.
func readWhole(fsys vfs.FS, path string, limit int64) (b []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, &CorruptFileError{File: path, Offset: limit, Detail: fmt.Sprintf("%d bytes, the limit is %d", size, limit)}
	}
	b = make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}
