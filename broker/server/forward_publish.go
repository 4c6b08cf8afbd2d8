package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// publishElsewhere takes the batches of partitions that others lead out of p, and begins to publish them there. The results are in place when wait
// returns.
func (p *publish) publishElsewhere(ctx context.Context) (wait func()) {
	if !p.l.forwards(ctx) {
		return func() {}
	}
	groups := map[int32][]int{} // records
	at := map[int32]where{}     // of partitions
	kept := p.batches[:0]
	for _, b := range p.batches {
		w, ok := p.l.elsewhere(p.topic.ID, b.partition)
		if !ok {
			kept = append(kept, b)
			continue
		}
		at[b.partition] = w
		groups[w.leader] = append(groups[w.leader], b.records...)
	}
	p.batches = kept
	var wg sync.WaitGroup
	wg.Go(func() {
		fan(groups, func(broker int32, records []int) { p.publishAt(ctx, broker, records, at) })
	})
	return wg.Wait
}

// publishAt publishes some of the records at another broker, which no other goroutine has to do with.
func (p *publish) publishAt(ctx context.Context, broker int32, records []int, at map[int32]where) {
	sub := &runnelv1.PublishRequest{
		Topic: p.topic.Name, TopicId: p.topic.ID[:], Acks: p.req.GetAcks(),
		ProducerId: p.req.ProducerId, ProducerEpoch: p.req.ProducerEpoch, Sequence: p.req.Sequence,
	}
	epochs := map[int32]int32{}
	for _, i := range records {
		r := p.req.GetRecords()[i]
		n, ts := p.resp.GetResults()[i].GetPartition(), p.times[i]
		epochs[n] = at[n].epoch
		sub.Records = append(sub.Records, &runnelv1.PublishRecord{
			ValueKind: r.GetValueKind(), KeyKind: r.GetKeyKind(), Headers: r.GetHeaders(), Partition: &n, TimestampMs: &ts,
		})
	}
	results, err := p.callAt(ctx, broker, sub, epochs)
	for n, i := range records {
		if err == nil {
			p.resp.Results[i] = results[n]
			continue
		}
		p.resp.Results[i].Error = p.l.item(err)
	}
}

func (p *publish) callAt(ctx context.Context, broker int32, sub *runnelv1.PublishRequest, epochs map[int32]int32) ([]*runnelv1.PublishResult, error) {
	l, size := p.l, proto.Size(sub)
	share := l.loadOf(broker).bytes
	if err := acquireWithin(ctx, share, size, peerPatience); err != nil {
		return nil, fmt.Errorf("%w: broker %d", errPeerBusy, broker)
	}
	defer share.release(size)
	if err := l.budget.acquire(ctx, size); err != nil {
		return nil, err
	}
	defer l.budget.release(size)
	l.metrics.forwardedBytes.Add(float64(size))
	ctx, stop := l.untilMoved(ctx, p.topic, epochs)
	defer stop()
	resp, err := tell(ctx, l, broker, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.PublishResponse, error) {
		return runnelv1.NewProducerClient(cc).Publish(ctx, sub, l.forwardOptions()...)
	})
	if err == nil && len(resp.GetResults()) != len(sub.GetRecords()) {
		return nil, fmt.Errorf("%w: broker %d: %w", errForwardUnknown, broker, errShort)
	}
	return resp.GetResults(), err
}

// errMoved is why a call is not waited for any longer.
var errMoved = errors.New("another broker leads by now")

// untilMoved returns a context that ends some time after one of a topic's partitions has got a newer leader epoch: a broker that hangs does
// not answer any more.
func (l *listener) untilMoved(ctx context.Context, t *Topic, epochs map[int32]int32) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for l.afterMove(ctx) {
			snap := l.cfg.Metadata.Snapshot()
			for n, epoch := range epochs {
				if w, ok := snap.leaderOf(t.ID, n); ok && w.epoch > epoch {
					cancel(errMoved)
					return
				}
			}
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}
