package metadata

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	metadatav1 "runnel.dev/runnel/api/runnel/metadata/v1"
)

const (
	// ProducerBlock is how many producer ids a broker reserves at a time.
	ProducerBlock = 1000
	maxBlock      = 1_000_000
)

// Block is a range of producer ids that nobody else will ever be given.
type Block struct {
	First int64
	Count int64
}

// NextProducers makes next the first producer id that nobody has reserved, if the key is still the one of a revision.
func (b Builder) NextProducers(revision, next int64) (Tx, error) {
	key := b.keys.producers()
	value, err := encode(&metadatav1.ProducerIds{Next: next})
	return Tx{Op: "next_producer_block", Compares: []Compare{unchanged(key, revision)}, Then: []Put{{Key: key, Value: value}}}, err
}

// NextProducerBlock reserves n producer ids, 1 to 1,000,000. Ids start at 1. A reservation whose answer was lost is given up, never
// reused: the next one is taken on top of it, or in its place when it can be seen to have died.
func (c *Client) NextProducerBlock(ctx context.Context, n int64) (Block, error) {
	if n < 1 || n > maxBlock {
		return Block{}, invalid("producer ids", n, "1 to 1000000")
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	key := c.keys.producers()
	for {
		resp, err := c.get(ctx, "get_producers", key)
		if err != nil {
			return Block{}, err
		}
		next := &metadatav1.ProducerIds{Next: 1}
		var revision int64
		if len(resp.Kvs) == 1 {
			revision = resp.Kvs[0].ModRevision
			err := decode(resp.Kvs[0], next, func(m *metadatav1.ProducerIds) error {
				if m.GetNext() < 1 || m.GetNext() > math.MaxInt64-maxBlock {
					return fmt.Errorf("next producer id is %d, want 1 to %d", m.GetNext(), int64(math.MaxInt64-maxBlock))
				}
				return nil
			})
			if err != nil {
				return Block{}, err
			}
		}
		block := Block{First: next.GetNext(), Count: n}
		// Without recognition: another broker may have written the very same value, so only an answered success is ours. When an attempt
		// stays unanswered, commit repeats it, and a failed repetition leads to a fresh look, with the block burnt.
		tx, err := c.build.NextProducers(revision, block.First+n)
		if err != nil {
			return Block{}, err
		}
		out, err := c.commit(ctx, tx)
		if err != nil {
			return Block{}, err
		}
		if out.Applied {
			return block, nil
		}
	}
}

// ProducerIDs hands out producer ids one by one from blocks reserved ahead. It is safe for concurrent use.
type ProducerIDs struct {
	client *Client

	// reserve lets one caller at a time go to etcd, without holding up those whom the current block still serves.
	reserve chan struct{}
	low     chan struct{} // holds a token when a block has been begun and none is behind it
	mu      struct {
		sync.Mutex
		block, next Block
	}
}

// NewProducerIDs returns an allocator that has reserved nothing yet.
func NewProducerIDs(c *Client) *ProducerIDs {
	return &ProducerIDs{client: c, reserve: make(chan struct{}, 1), low: make(chan struct{}, 1)}
}

// Run keeps a block in reserve until ctx ends, so that new producers are served while etcd is away. It returns nil.
func (p *ProducerIDs) Run(ctx context.Context) error {
	for {
		retry := p.client.clk.NewTimer(producerRetry)
		wait := retry.C()
		if p.refill(ctx) == nil {
			retry.Stop()
			wait = nil
		}
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil
		case <-p.low:
		case <-wait:
		}
		retry.Stop()
	}
}

// producerRetry is the pause after a reservation that failed.
const producerRetry = time.Second

// Next returns an id that was never returned before, by any broker. It asks etcd once per ProducerBlock ids, and fails with
// ErrUnavailable when it has to and etcd does not answer.
func (p *ProducerIDs) Next(ctx context.Context) (int64, error) {
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		if err := p.refill(ctx); err != nil {
			return 0, err
		}
	}
}

// refill reserves a block unless there is one that nobody has begun.
func (p *ProducerIDs) refill(ctx context.Context) error {
	select {
	case p.reserve <- struct{}{}:
		defer func() { <-p.reserve }()
	case <-ctx.Done():
		return &UnavailableError{Op: "next_producer_id", Err: ctx.Err()}
	}
	p.mu.Lock()
	enough := p.mu.next.Count > 0
	p.mu.Unlock()
	if enough {
		return nil // somebody reserved while this caller waited
	}
	block, err := p.client.NextProducerBlock(ctx, ProducerBlock)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.next = block
	return nil
}

func (p *ProducerIDs) take() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.block.Count == 0 {
		if p.mu.next.Count == 0 {
			return 0, false
		}
		p.mu.block, p.mu.next = p.mu.next, Block{}
		select {
		case p.low <- struct{}{}:
		default:
		}
	}
	id := p.mu.block.First
	p.mu.block.First++
	p.mu.block.Count--
	return id, true
}
