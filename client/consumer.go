package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// Consumer reads partitions without a group. Records and Poll are for one goroutine at a time; the other methods are safe for
// concurrent use.
//
// Each partition is a subscription. While it is being read it has a claim, which carries the position: the iterator advances it
// by compare-and-swap, record by record, and Seek and Pause revoke it by swapping the position out. So a revoked claim's
// position is exact, and no record of it is delivered any more, however many of its frames are queued.
type Consumer struct {
	c   *Client
	cfg consumerConfig

	ctx         context.Context //nolint:containedctx // ends what the consumer has started
	cancel      context.CancelFunc
	unsubscribe func()
	wg          sync.WaitGroup
	closed      atomic.Bool
	ready       chan struct{} // something is in the queue, or the state has changed
	resolve     chan struct{} // some position has to be looked up

	cur frame // what the reading goroutine is at

	mu struct {
		sync.Mutex
		subs     map[TopicPartition]*subscription
		topics   map[string]*consumedTopic
		early    map[TopicPartition]earlyWish
		fetchers map[int32]*fetcher
		queue    []item
		lastID   uint32
	}
}

// consumedTopic is what the consumer knows of a topic.
type consumedTopic struct {
	id     TopicID // zero: not seen yet
	all    bool    // every partition, not single ones
	only   []int32
	gone   bool
	failed bool // reported as missing
}

// earlyWish is what was asked for before the partition was known.
type earlyWish struct {
	seek   *Position
	paused bool
}

// item is a frame of batches, a jump of the position, or an error, in the order in which the reader gets to see them.
type item struct {
	claim  *claim
	id     uint32 // the claim's subscription id when it arrived
	stream *fetchStream
	batch  mem.Buffer
	next   int64 // the position behind it
	hw     int64
	jump   bool
	err    error
}

// NewConsumer reads without a group, from the position that From names. It starts goroutines; Close ends them. What goes wrong
// with a partition or topic is reported by Records and Poll.
func (c *Client) NewConsumer(opts ...ConsumerOption) (*Consumer, error) {
	cfg, err := newConsumerConfig(opts)
	if err != nil {
		return nil, err
	}
	cs := &Consumer{c: c, cfg: cfg, ready: make(chan struct{}, 1), resolve: make(chan struct{}, 1)}
	cs.mu.subs, cs.mu.topics = make(map[TopicPartition]*subscription), make(map[string]*consumedTopic)
	cs.mu.early, cs.mu.fetchers = make(map[TopicPartition]earlyWish), make(map[int32]*fetcher)
	for _, name := range cfg.topics {
		cs.mu.topics[name] = &consumedTopic{all: true}
	}
	for _, tp := range cfg.partitions {
		t := cs.mu.topics[tp.Topic]
		if t == nil {
			t = &consumedTopic{}
			cs.mu.topics[tp.Topic] = t
		}
		t.only = append(t.only, tp.Partition)
	}
	if err := c.register(cs); err != nil {
		return nil, err
	}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	cs.wg.Go(cs.resolveLoop)
	cs.wg.Go(cs.awaitTopics)
	cs.wg.Go(cs.watchOutages)
	for name := range cs.mu.topics {
		c.meta.watch(name)
	}
	cs.unsubscribe = c.meta.subscribe(cs.update)
	return cs, nil
}

// Close ends reading. Records that were yielded must not be used any more.
func (cs *Consumer) Close(context.Context) error {
	cs.mu.Lock() // whoever starts a goroutine holds it, and looks at closed before
	done := cs.closed.Swap(true)
	cs.mu.Unlock()
	if done {
		return nil
	}
	cs.unsubscribe()
	cs.cancel()
	cs.wg.Wait()
	cs.mu.Lock()
	for i := range cs.mu.queue {
		cs.mu.queue[i].free()
	}
	cs.mu.queue = nil
	cs.mu.Unlock()
	cs.wake()
	cs.c.unregister(cs)
	return nil
}

func (cs *Consumer) wake() {
	select {
	case cs.ready <- struct{}{}:
	default:
	}
}

// Records yields records until ctx ends, or the end is reached with [UntilEnd]. Records of one partition come in offset order.
// Each is valid until the next one. An error concerns one partition (errors.As *PartitionError) and iteration goes on, except
// when it is ErrClosed. A partition that cannot be read, e.g. because it has no leader, is reported once with ErrStalled and read
// on as soon as that is possible, or given up with [UntilEnd]. Breaking off and calling Records again continues behind the last
// record.
func (cs *Consumer) Records(ctx context.Context) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for ctx.Err() == nil {
			for cs.cur.active {
				r, err := cs.cur.read()
				if r == nil && err == nil {
					break
				}
				if !yield(r, err) || ctx.Err() != nil {
					return
				}
			}
			err := cs.advance(ctx)
			switch {
			case err == nil:
			case errors.Is(err, io.EOF) || ctx.Err() != nil:
				return
			case errors.Is(err, ErrClosed):
				yield(nil, err)
				return
			default:
				if !yield(nil, err) {
					return
				}
			}
		}
	}
}

// Poll returns the next batch of records of one partition, valid until the next Poll; what is not read of it counts as read
// then. Errors: *PartitionError (polling may go on), ErrClosed, ctx's error, and io.EOF at the end with [UntilEnd].
func (cs *Consumer) Poll(ctx context.Context) (*Batch, error) {
	if err := cs.advance(ctx); err != nil {
		return nil, err
	}
	return &cs.cur.batch, nil
}

// advance leaves the current frame and waits for the next one.
func (cs *Consumer) advance(ctx context.Context) error {
	cs.leave()
	for {
		it, ok, err := cs.take()
		switch {
		case err != nil:
			return err
		case ok && it.err != nil:
			return it.err
		case ok:
			cs.cur.start(cs, it)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cs.ready:
		}
	}
}

// leave finishes the current frame.
func (cs *Consumer) leave() {
	if !cs.cur.active {
		return
	}
	cs.cur.finish()
	it := cs.cur.item
	cs.mu.Lock()
	cs.creditLocked(&it)
	if it.claim.reachedEnd() {
		cs.doneLocked(it.claim.sub)
	}
	cs.mu.Unlock()
	it.free()
}

// take removes the next item that still counts from the queue.
func (cs *Consumer) take() (it item, ok bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for len(cs.mu.queue) > 0 {
		it = cs.mu.queue[0]
		cs.mu.queue[0] = item{}
		cs.mu.queue = cs.mu.queue[1:]
		switch {
		case it.claim == nil: // an error of a topic, or of a partition that is not being read
			return it, true, nil
		case it.claim.revoked():
			cs.creditLocked(&it)
			it.free()
		case it.jump:
			it.claim.jump(it.next)
			if it.claim.reachedEnd() {
				cs.doneLocked(it.claim.sub)
			}
		default:
			return it, true, nil
		}
	}
	cs.mu.queue = nil
	if cs.closed.Load() {
		return item{}, false, fmt.Errorf("client: consumer: %w", ErrClosed)
	}
	if cs.finishedLocked() {
		return item{}, false, io.EOF
	}
	return item{}, false, nil
}

func (cs *Consumer) pushLocked(it item) {
	cs.mu.queue = append(cs.mu.queue, it)
	cs.wake()
}

func (it *item) free() {
	if it.batch != nil {
		it.batch.Free()
		it.batch = nil
	}
}

// Seek moves partitions, all of them when none is named. Records that were fetched from the old position are dropped. It fails
// for partitions that the consumer does not read; a position that has to be looked up is looked up in the background.
func (cs *Consumer) Seek(pos Position, tps ...TopicPartition) error {
	if pos.kind == posOffset && pos.value < 0 {
		return fmt.Errorf("client: seek: %w: offset %d is negative", ErrInvalidArgument, pos.value)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(tps) == 0 {
		cs.cfg.from = pos // for those that are not known yet
	}
	return cs.eachLocked(tps, func(s *subscription) { cs.seekLocked(s, pos) }, func(w *earlyWish) { w.seek = &pos })
}

// Pause stops the delivery of partitions; records that were fetched are dropped, and fetched again after Resume. Partitions that
// the consumer does not read are ignored.
func (cs *Consumer) Pause(tps ...TopicPartition) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	_ = cs.eachLocked(tps, func(s *subscription) {
		cs.revokeLocked(s)
		s.paused = true
		cs.reconcileLocked(s)
	}, func(w *earlyWish) { w.paused = true })
}

// Resume continues paused partitions behind the last record that was delivered.
func (cs *Consumer) Resume(tps ...TopicPartition) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	_ = cs.eachLocked(tps, func(s *subscription) {
		s.paused = false
		cs.reconcileLocked(s)
	}, func(w *earlyWish) { w.paused = false })
}

// eachLocked applies f to known partitions and early to those that will be; none named means all. The error names the rest.
func (cs *Consumer) eachLocked(tps []TopicPartition, f func(*subscription), early func(*earlyWish)) error {
	if len(tps) == 0 {
		for _, s := range cs.mu.subs {
			f(s)
		}
		return nil
	}
	var faults []error
	for _, tp := range tps {
		t := cs.mu.topics[tp.Topic]
		switch s := cs.mu.subs[tp]; {
		case s != nil:
			f(s)
		case t != nil && !t.gone && tp.Partition >= 0 && (t.id.IsZero() || t.all):
			w := cs.mu.early[tp]
			early(&w)
			cs.mu.early[tp] = w
		default:
			faults = append(faults, &PartitionError{tp, fmt.Errorf("%w: this consumer does not read it", ErrUnknownPartition)})
		}
	}
	return errors.Join(faults...)
}

// Positions returns the offset of the next record per partition, for those whose position is known.
func (cs *Consumer) Positions() map[TopicPartition]int64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make(map[TopicPartition]int64, len(cs.mu.subs))
	for tp, s := range cs.mu.subs {
		if pos, ok := s.position(); ok {
			out[tp] = pos
		}
	}
	return out
}
