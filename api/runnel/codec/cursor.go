package codec

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// cursor reads protobuf from buffers that the transport received. The first fault sticks; reads after it return zeros, so
// that a decode loop checks once per field.
//
// Invariant: pos <= total, and cur holds the unread bytes of bufs[next-1].
type cursor struct {
	message string
	bufs    mem.BufferSlice
	next    int
	cur     []byte
	curLen  int // length of bufs[next-1]
	pos     int
	total   int
	field   protowire.Number
	err     *DecodeError
}

func (c *cursor) reset(message string, bufs mem.BufferSlice) {
	*c = cursor{message: message, bufs: bufs, total: bufs.Len()}
	c.advance()
}

// advance moves to the next buffer that has bytes.
func (c *cursor) advance() {
	for len(c.cur) == 0 && c.next < len(c.bufs) {
		c.cur = c.bufs[c.next].ReadOnlyData()
		c.curLen = len(c.cur)
		c.next++
	}
}

func (c *cursor) left() int { return c.total - c.pos }

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = &DecodeError{Message: c.message, Field: int(c.field), Offset: c.pos, Detail: fmt.Sprintf(format, args...)}
	}
}

// more reports whether another field follows.
func (c *cursor) more() bool { return c.err == nil && c.pos < c.total }

func (c *cursor) take(n int) {
	c.cur = c.cur[n:]
	c.pos += n
	if len(c.cur) == 0 {
		c.advance()
	}
}

// varint reads one base-128 varint of at most 10 bytes.
func (c *cursor) varint() uint64 {
	if c.err != nil {
		return 0
	}
	if len(c.cur) > 0 && c.cur[0] < 0x80 {
		v := uint64(c.cur[0])
		c.take(1)
		return v
	}
	var v uint64
	for shift := uint(0); shift < 70; shift += 7 {
		if c.pos >= c.total {
			c.fail("truncated: the message ends inside a varint")
			return 0
		}
		b := c.cur[0]
		c.take(1)
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	c.fail("varint overflows 64 bits")
	return 0
}

// tag reads a field's number and wire type.
func (c *cursor) tag() (protowire.Number, protowire.Type) {
	c.field = 0
	v := c.varint()
	num, typ := protowire.DecodeTag(v)
	if c.err == nil && (num < protowire.MinValidNumber || num > protowire.MaxValidNumber) {
		c.fail("field number %d outside 1..%d", v>>3, int64(protowire.MaxValidNumber))
	}
	c.field = num
	return num, typ
}

// length reads the length of a length-delimited field, which never exceeds what is left.
func (c *cursor) length() int {
	v := c.varint()
	if c.err == nil && v > uint64(c.left()) {
		c.fail("declared length %d exceeds the %d bytes that are left", v, c.left())
		return 0
	}
	return int(v)
}

// copyTo fills dst; the caller has checked that so many bytes are left.
func (c *cursor) copyTo(dst []byte) {
	for len(dst) > 0 {
		n := copy(dst, c.cur)
		dst = dst[n:]
		c.take(n)
	}
}

// skipBytes moves over n bytes; the caller has checked that so many are left.
func (c *cursor) skipBytes(n int) {
	for n > 0 {
		k := min(n, len(c.cur))
		n -= k
		c.take(k)
	}
}

// bytes copies a length-delimited field into fresh memory; for cold fields.
func (c *cursor) bytes() []byte {
	n := c.length()
	if c.err != nil {
		return nil
	}
	b := make([]byte, n)
	c.copyTo(b)
	return b
}

// buffer takes a length-delimited field as a reference-counted buffer: a slice of the received bytes when they lie together
// and fill most of the message (so that little else is kept alive), else one copy into the pool.
func (c *cursor) buffer(pool *Pool) (mem.Buffer, []byte) {
	n := c.length()
	if c.err != nil || n == 0 {
		return nil, nil
	}
	if n <= len(c.cur) && n >= c.total/2 {
		at := c.curLen - len(c.cur)
		b := c.bufs[c.next-1].Slice(at, at+n)
		c.take(n)
		return b, b.ReadOnlyData()
	}
	b, data := pool.Buffer(n)
	c.copyTo(data)
	return b, data
}

// skip moves over the value of an unknown field. Groups, which proto3 does not have, are refused.
func (c *cursor) skip(typ protowire.Type) {
	switch typ {
	case protowire.VarintType:
		c.varint()
	case protowire.BytesType:
		n := c.length()
		if c.err == nil {
			c.skipBytes(n)
		}
	case protowire.Fixed32Type:
		c.skipFixed(4)
	case protowire.Fixed64Type:
		c.skipFixed(8)
	case protowire.StartGroupType, protowire.EndGroupType:
		c.fail("groups are not supported")
	default:
		c.fail("unknown wire type %d", typ)
	}
}

func (c *cursor) skipFixed(n int) {
	if c.left() < n {
		c.fail("truncated: %d bytes wanted, %d left", n, c.left())
		return
	}
	c.skipBytes(n)
}

// once notes that a singular field was seen, and refuses a second one or another wire type than want.
func (c *cursor) once(seen *uint32, num protowire.Number, typ, want protowire.Type) bool {
	if typ != want {
		c.fail("wire type %d, want %d", typ, want)
		return false
	}
	bit := uint32(1) << uint(num)
	if *seen&bit != 0 {
		c.fail("field occurs twice")
		return false
	}
	*seen |= bit
	return c.err == nil
}
