package record

import "math/bits"

// Variable-length integers are those of Protocol Buffers: 7 bits per byte, low bits first, signed values
// zig-zag coded. A reader takes the index to read at and returns the index behind what it read, or -1. A
// negative index in gives -1 out, so that a caller may chain reads and check once.

// varint32 reads a zig-zag coded 32-bit integer.
func varint32(b []byte, i int) (v int32, next int) {
	if uint(i) < uint(len(b)) && b[i] < 0x80 { // #nosec G115 -- a negative i becomes huge
		return int32(b[i]>>1) ^ -int32(b[i]&1), i + 1
	}
	return varint32Slow(b, i)
}

func varint32Slow(b []byte, i int) (v int32, next int) {
	if i < 0 {
		return 0, -1
	}
	var u uint32
	for shift := uint(0); shift < 35 && i < len(b); shift += 7 {
		c := b[i]
		i++
		if c < 0x80 {
			if shift == 28 && c > 0x0f {
				return 0, -1 // does not fit into 32 bits
			}
			u |= uint32(c) << shift
			return int32(u>>1) ^ -int32(u&1), i // #nosec G115 -- zig-zag
		}
		u |= uint32(c&0x7f) << shift
	}
	return 0, -1
}

// varint64 reads a zig-zag coded 64-bit integer.
func varint64(b []byte, i int) (v int64, next int) {
	if uint(i) < uint(len(b)) && b[i] < 0x80 { // #nosec G115 -- a negative i becomes huge
		return int64(b[i]>>1) ^ -int64(b[i]&1), i + 1
	}
	return varint64Slow(b, i)
}

func varint64Slow(b []byte, i int) (v int64, next int) {
	if i < 0 {
		return 0, -1
	}
	var u uint64
	for shift := uint(0); shift < 70 && i < len(b); shift += 7 {
		c := b[i]
		i++
		if c < 0x80 {
			if shift == 63 && c > 1 {
				return 0, -1 // does not fit into 64 bits
			}
			u |= uint64(c) << shift
			return int64(u>>1) ^ -int64(u&1), i // #nosec G115 -- zig-zag
		}
		u |= uint64(c&0x7f) << shift
	}
	return 0, -1
}

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) } // #nosec G115 -- zig-zag

// uvarintSize returns the number of bytes that putUvarint writes.
func uvarintSize(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// putUvarint writes u at b[i:] and returns the index behind it.
func putUvarint(b []byte, i int, u uint64) int {
	for u >= 0x80 {
		b[i] = byte(u) | 0x80
		u >>= 7
		i++
	}
	b[i] = byte(u)
	return i + 1
}
