package record

import "encoding/binary"

// Murmur2 is the 32-bit MurmurHash2 by Austin Appleby with the seed that Kafka's clients use, so that all
// clients agree where a key belongs.
func Murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(data)) // #nosec G115 -- the hash takes the length modulo 2^32
	for len(data) >= 4 {
		k := binary.LittleEndian.Uint32(data)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

// PartitionForKey returns the partition of a keyed record: the hash without its sign bit, modulo the number
// of partitions, which must be positive.
func PartitionForKey(key []byte, partitions int32) int32 {
	return int32(Murmur2(key)&0x7fffffff) % partitions // #nosec G115 -- masked to 31 bits
}
