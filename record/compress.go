package record

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// What is written, chosen so that Java's clients, librdkafka and franz-go all read it:
//
//	gzip    one member, default level
//	snappy  the framing of xerial's SnappyOutputStream, blocks of 32 KiB before compression:
//	        | 82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | version 1, 4 bytes | compatible 1, 4 bytes |
//	        then per block | length, 4 bytes | raw snappy block |, integers big endian
//	lz4     one frame, independent blocks of 64 KiB, no checksums (the batch has one)
//	zstd    one frame, default level, no checksum

const (
	xerialMagic     = "\x82SNAPPY\x00"
	xerialHeaderLen = 16
	xerialBlockSize = 32 << 10
	// zstdWindow bounds what an encoder allocates and what a reader of our batches needs.
	zstdWindow = 1 << 20
)

// gzipCoder and lz4Coder pair an encoder with the buffer that it appends to, so that both are pooled as one.
type gzipCoder struct {
	out appender
	w   *gzip.Writer
}

type lz4Coder struct {
	out appender
	w   *lz4.Writer
}

var (
	gzipWriters = sync.Pool{New: func() any { return &gzipCoder{w: gzip.NewWriter(io.Discard)} }}
	lz4Writers  = sync.Pool{New: newLZ4Coder}
	zstdWriters = sync.Pool{New: newZstdEncoder}
)

func newLZ4Coder() any {
	c := &lz4Coder{}
	c.w = lz4.NewWriter(&c.out)
	if err := c.w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false), lz4.ConcurrencyOption(1)); err != nil {
		panic(fmt.Sprintf("record: constant lz4 options refused: %v", err))
	}
	return c
}

func newZstdEncoder() any {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow),
		zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(fmt.Sprintf("record: constant zstd options refused: %v", err))
	}
	return e
}

// appender is an io.Writer over a slice.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

// compress appends src, compressed, to dst.
func compress(dst []byte, codec Codec, src []byte) ([]byte, error) {
	switch codec {
	case CodecNone:
		return append(dst, src...), nil
	case CodecGzip:
		return compressGzip(dst, src)
	case CodecSnappy:
		return compressXerial(dst, src), nil
	case CodecLZ4:
		return compressLZ4(dst, src)
	case CodecZstd:
		e := zstdWriters.Get().(*zstd.Encoder)
		dst = e.EncodeAll(src, dst)
		zstdWriters.Put(e)
		return dst, nil
	}
	return dst, fmt.Errorf("record: unknown compression %s", codec)
}

func compressGzip(dst, src []byte) ([]byte, error) {
	c := gzipWriters.Get().(*gzipCoder)
	c.out.b = dst
	c.w.Reset(&c.out)
	_, err := c.w.Write(src)
	if cerr := c.w.Close(); err == nil {
		err = cerr
	}
	dst, c.out.b = c.out.b, nil
	gzipWriters.Put(c)
	return dst, err
}

func compressLZ4(dst, src []byte) ([]byte, error) {
	c := lz4Writers.Get().(*lz4Coder)
	c.out.b = dst
	c.w.Reset(&c.out)
	_, err := c.w.Write(src)
	if cerr := c.w.Close(); err == nil {
		err = cerr
	}
	dst, c.out.b = c.out.b, nil
	lz4Writers.Put(c)
	return dst, err
}

func compressXerial(dst, src []byte) []byte {
	dst = append(dst, xerialMagic...)
	dst = binary.BigEndian.AppendUint32(dst, 1) // version
	dst = binary.BigEndian.AppendUint32(dst, 1) // oldest compatible version
	for len(src) > 0 {
		block := src[:min(len(src), xerialBlockSize)]
		src = src[len(block):]
		at := len(dst) + 4
		room := s2.MaxEncodedLen(len(block))
		dst = slices.Grow(dst, 4+room)[:at+room]
		n := len(s2.EncodeSnappy(dst[at:], block))
		binary.BigEndian.PutUint32(dst[at-4:], uint32(n)) // #nosec G115 -- at most a block
		dst = dst[:at+n]
	}
	return dst
}
