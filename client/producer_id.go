package client

import (
	"context"
	"fmt"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
)

// producerIDs is the producer id that partitions take when they need one, and who waits for it. Guarded by the producer's mu.
//
// A partition keeps the id that it has taken, so one whose id has become useless, and who waits for another, holds up nobody else:
// ids are acquired beside the senders, and only while somebody waits.
type producerIDs struct {
	id        int64 // -1: none
	epoch     int16
	waiting   []*producerPartition
	acquiring bool
}

// takeID returns the producer id for a partition that has none. Without one it has an id acquired, through the broker at address
// first, and then offers pt to its sender again. Called with the partition's mu held.
func (p *Producer) takeID(pt *producerPartition, address string) (id int64, epoch int16, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := &p.mu.ids
	if ids.id >= 0 {
		return ids.id, ids.epoch, true
	}
	if p.mu.ended {
		return -1, 0, false
	}
	pt.mu.awaitsID = true
	ids.waiting = append(ids.waiting, pt)
	if !ids.acquiring {
		ids.acquiring = true
		p.wg.Go(func() { p.acquireID(p.ctx, address) })
	}
	return -1, 0, false
}

// discardID makes the next partition that needs an id get a new one.
func (p *Producer) discardID(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.ids.id == id {
		p.mu.ids.id = -1
	}
}

// acquireID asks one broker after the other for an id until one gives it or ctx ends, and lets those who wait for it go on.
func (p *Producer) acquireID(ctx context.Context, address string) {
	var back backoff
	for {
		r, err := p.initProducer(ctx, address)
		if err == nil {
			p.gotID(r)
			return
		}
		p.c.cfg.logger.Debug("get a producer id", "address", address, "error", err)
		if clock.Sleep(ctx, p.c.cfg.clock, back.next()) != nil {
			return
		}
		addresses := p.c.meta.addresses()
		address = addresses[(slices.Index(addresses, address)+1)%len(addresses)]
	}
}

func (p *Producer) initProducer(ctx context.Context, address string) (*runnelv1.InitProducerResponse, error) {
	cc, err := p.c.conns.get(address, forControl)
	if err != nil {
		return nil, err
	}
	// Another broker is asked when this one hangs; an id that comes too late is never used.
	rctx, cancel := context.WithTimeout(ctx, min(hungAfter, p.c.cfg.requestTimeout))
	defer cancel()
	r, err := runnelv1.NewProducerClient(cc).InitProducer(rctx, &runnelv1.InitProducerRequest{})
	if err != nil {
		return nil, fromRPC(err)
	}
	if r.GetProducerId() < 0 {
		return nil, fmt.Errorf("client: %s gave the producer id %d, want 0 or more", address, r.GetProducerId())
	}
	return r, nil
}

func (p *Producer) gotID(r *runnelv1.InitProducerResponse) {
	p.mu.Lock()
	ids := &p.mu.ids
	ids.id, ids.epoch, ids.acquiring = r.GetProducerId(), int16(r.GetProducerEpoch()), false
	waiting := ids.waiting
	ids.waiting = nil
	p.mu.Unlock()
	for _, pt := range waiting {
		pt.mu.Lock()
		pt.mu.awaitsID = false
		pt.offerLocked()
		pt.mu.Unlock()
	}
}
