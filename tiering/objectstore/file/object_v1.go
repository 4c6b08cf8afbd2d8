package file

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"runnel.dev/runnel/tiering/objectstore"
)

// An object file is a header, the key, and the bytes of the object. Integers
// are big endian.
//
//	byte 0       8         12           14          15   16     24         56    60
//	     +-------+---------+------------+-----------+----+------+----------+-----+-----+------+
//	     | magic | version | key length | algorithm | 0  | size | checksum | crc | key | body |
//	     +-------+---------+------------+-----------+----+------+----------+-----+-----+------+
//	       8       4         2            1           1    8      32         4
//
// crc is the CRC-32C of bytes 0 to 55 and the key. It is tested before the
// version, and header and crc are the same in all versions, so that a damaged
// version is told from a future one. checksum is that of the body, zeros behind
// its length. The file ends with the body.
const (
	objectMagic   = "RNLOBJ\x00\x00"
	objectVersion = 1
	headerSize    = 60
	crcAt         = 56
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bodyAt is the position of an object's bytes in its file.
func bodyAt(key string) int64 { return headerSize + int64(len(key)) }

// encodeHeader returns header and key of an object file.
func encodeHeader(key string, size int64, sum objectstore.Checksum) []byte {
	b := make([]byte, headerSize, headerSize+len(key))
	copy(b, objectMagic)
	binary.BigEndian.PutUint32(b[8:], objectVersion)
	binary.BigEndian.PutUint16(b[12:], uint16(len(key)))
	b[14] = byte(sum.Algorithm())
	binary.BigEndian.PutUint64(b[16:], uint64(size))
	copy(b[24:crcAt], sum.Bytes())
	b = append(b, key...)
	binary.BigEndian.PutUint32(b[crcAt:], headerCRC(b))
	return b
}

func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:crcAt], castagnoli), castagnoli, b[headerSize:])
}

// decodeHeader reads the first bytes of a file that is to hold the object key
// and has fileSize bytes. b is as long as header and key, or shorter if the file
// is. The errors are *CorruptError and *FutureFormatError.
func decodeHeader(file string, b []byte, key string, fileSize int64) (size int64, sum objectstore.Checksum, err error) {
	corrupt := func(offset int64, format string, args ...any) (int64, objectstore.Checksum, error) {
		return 0, objectstore.Checksum{}, &CorruptError{File: file, Offset: offset, Detail: fmt.Sprintf(format, args...)}
	}
	if len(b) < headerSize {
		return corrupt(int64(len(b)), "it has %d bytes, a header has %d", len(b), headerSize)
	}
	if string(b[:8]) != objectMagic {
		return corrupt(0, "it begins with %q, want %q", b[:8], objectMagic)
	}
	// A file system that takes two names for one (case, normal forms) leads to
	// the object of another key.
	if n := int(binary.BigEndian.Uint16(b[12:])); n != len(key) || string(b[headerSize:]) != key {
		return corrupt(headerSize, "it holds another key than %q", key)
	}
	if got, want := headerCRC(b), binary.BigEndian.Uint32(b[crcAt:]); got != want {
		return corrupt(crcAt, "checksum of the header is %08x, want %08x", got, want)
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != objectVersion {
		return 0, objectstore.Checksum{}, &FutureFormatError{File: file, Version: v, Supported: objectVersion}
	}
	algorithm := objectstore.Algorithm(b[14])
	sum, err = objectstore.NewChecksum(algorithm, b[24:24+algorithm.Size()])
	if err != nil {
		return corrupt(14, "%v", err)
	}
	size = int64(binary.BigEndian.Uint64(b[16:]))
	if size < 0 || size != fileSize-bodyAt(key) {
		return corrupt(16, "it declares %d bytes and has %d", size, fileSize-bodyAt(key))
	}
	return size, sum, nil
}
