package codec

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// minTierBits: buffers of at most 1 KiB are never pooled by grpc/mem, so the smallest tier lies above.
	minTierBits = 11
	// maxTierBits covers the largest message (16 MiB and its header) with one power of two to spare.
	maxTierBits = 25
)

// Pool hands out byte slices by powers of two, from 2 KiB to 32 MiB; larger ones are allocated and dropped. Unlike
// grpc's default pool it does not clear what it hands out: its users overwrite every byte of the length they asked for.
// Safe for concurrent use. It implements mem.BufferPool.
type Pool struct {
	tiers [maxTierBits - minTierBits + 1]sync.Pool
}

var _ mem.BufferPool = (*Pool)(nil)

// NewPool returns an empty pool.
func NewPool() *Pool { return &Pool{} }

func tierOf(n int) int {
	if n <= 1<<minTierBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minTierBits
}

// Get returns a slice of length n whose content is undefined.
func (p *Pool) Get(n int) *[]byte {
	t := tierOf(n)
	if t >= len(p.tiers) {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.tiers[t].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(t+minTierBits))
	return &b
}

// Put gives a slice back. Slices whose capacity is no tier's are dropped.
func (p *Pool) Put(b *[]byte) {
	c := cap(*b)
	t := tierOf(c)
	if t >= len(p.tiers) || c != 1<<(t+minTierBits) {
		return
	}
	p.tiers[t].Put(b)
}

// Buffer returns a reference-counted buffer of n undefined bytes and those bytes, to be filled before the buffer is shared.
// The bytes return to the pool with the last Free.
func (p *Pool) Buffer(n int) (mem.Buffer, []byte) {
	b := p.Get(n)
	return mem.NewBuffer(b, p), *b
}
