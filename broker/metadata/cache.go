package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	listPage     = 1000
	progressPoll = 25 * time.Millisecond
)

// errStalled: a watch that neither delivers nor proves that it is alive.
var errStalled = errors.New("watch has stalled")

// Cache follows the metadata and publishes it as immutable States. Methods are safe for concurrent use; reads take no lock.
//
// It starts with a linearizable list of everything at one revision and goes on with a watch from there. A broken watch is resumed where
// it was; when etcd has compacted that away meanwhile, the cache lists again, and unchanged values keep their pointers. While etcd is away the
// last State stays.
type Cache struct {
	client *Client
	state  atomic.Pointer[State]
	// poke asks the watch for a progress notification.
	poke chan struct{}
	// pushed are values that Offer was given.
	pushed chan []PartitionValue
}

// NewCache returns a cache that is empty until Run has listed.
func NewCache(client *Client) *Cache {
	c := &Cache{client: client, poke: make(chan struct{}, 1), pushed: make(chan []PartitionValue, pushQueue)}
	c.state.Store(newState())
	return c
}

// Snapshot returns the current State, never nil; see State.Loaded.
//
// The pattern of a follower is: take a Snapshot, act on it, wait for its Changed, repeat. A State that is published between the first
// two steps has closed Changed by then, so none is missed.
func (c *Cache) Snapshot() *State { return c.state.Load() }

// WaitRevision waits until the cache has reached a revision, e.g. that of one's own registration or write, and returns a State that
// includes it.
func (c *Cache) WaitRevision(ctx context.Context, revision int64) (*State, error) {
	for {
		s := c.Snapshot()
		if s.Revision() >= revision {
			return s, nil
		}
		select {
		case c.poke <- struct{}{}:
		default:
		}
		select {
		case <-s.Changed():
		case <-c.client.clk.After(progressPoll):
		case <-ctx.Done():
			return nil, &UnavailableError{Op: "wait_revision", Err: fmt.Errorf("at revision %d, waiting for %d: %w", s.Revision(), revision, ctx.Err())}
		}
	}
}

// Wait waits until cond holds and returns the State for which it did.
func (c *Cache) Wait(ctx context.Context, cond func(*State) bool) (*State, error) {
	for {
		s := c.Snapshot()
		if s.Loaded() && cond(s) {
			return s, nil
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Run follows the metadata until ctx ends, and returns nil then. It returns an error only when going on would be wrong: etcd is another
// one or has gone back in time (ErrForeignEtcd, ErrOlderEtcd), a recovery has begun (ErrRecovering), or Bootstrap has not succeeded.
func (c *Cache) Run(ctx context.Context) error {
	var next [2]int64
	var wait backOff
	for ctx.Err() == nil {
		progressed, err := c.follow(ctx, &next)
		if ctx.Err() != nil {
			break
		}
		switch {
		case errors.Is(err, ErrForeignEtcd), errors.Is(err, ErrOlderEtcd), errors.Is(err, ErrNotBootstrapped), errors.Is(err, ErrRecovering):
			return err
		case errors.Is(err, rpctypes.ErrCompacted):
			c.client.lg.Warn("the watch's place was compacted away, listing again", "revision", min(next[0], next[1]))
			next = [2]int64{}
		}
		c.client.metrics.watchErrors.Inc()
		c.client.lg.Warn("metadata watch ended, will resume", "error", err)
		if progressed {
			wait = backOff{}
		}
		c.pause(ctx, wait.next())
	}
	return nil //nolint:nilerr // ctx has ended, which is no failure
}

// pause waits before the next attempt to reach etcd. Pushes are taken in meanwhile.
func (c *Cache) pause(ctx context.Context, d time.Duration) {
	t := c.client.clk.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case values := <-c.pushed:
			c.takePushed(values)
		case <-t.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// follow lists when there is no place to resume from, then watches until the watch breaks. progressed is true when etcd answered
// anything.
func (c *Cache) follow(ctx context.Context, next *[2]int64) (progressed bool, err error) {
	if next[0] == 0 {
		again := c.Snapshot().Loaded()
		revision, err := c.list(ctx)
		if err != nil {
			return false, err
		}
		if again {
			c.client.metrics.relists.Inc()
		}
		*next = [2]int64{revision + 1, revision + 1}
		progressed = true
	}
	more, err := c.watch(ctx, next)
	return progressed || more, err
}

// list reads both ranges at one revision and publishes the result.
func (c *Cache) list(ctx context.Context) (int64, error) {
	b := newStateBuilder(c.Snapshot(), c.client.keys, c.client.lg)
	listed := map[string]bool{}
	var revision int64
	for _, r := range c.client.keys.ranges() {
		from := r[0]
		for {
			opts := []clientv3.OpOption{clientv3.WithRange(r[1]), clientv3.WithLimit(listPage), clientv3.WithRev(revision)}
			resp, err := c.client.get(ctx, "list", from, opts...)
			if err != nil {
				return 0, err
			}
			if revision == 0 {
				revision = resp.Header.Revision
			}
			for _, kv := range resp.Kvs {
				listed[string(kv.Key)] = true
				b.put(kv)
			}
			if !resp.More {
				break
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	b.retain(listed, revision)
	if err := c.sameEra(b); err != nil {
		return 0, err
	}
	c.publish(b, revision)
	return revision, nil
}

// watch follows both ranges from where next says, and keeps next up to date.
//
// It begins at the last revision that was taken in, not behind it, and takes that one in twice: etcd answers no progress request on a stream
// with a watch that begins in the future, so that a quiet cluster would never tell that there is nothing to tell.
func (c *Cache) watch(ctx context.Context, next *[2]int64) (progressed bool, err error) {
	// One context for both: they share a stream, and one progress request is answered on both.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	ranges := c.client.keys.ranges()
	var watches [2]clientv3.WatchChan
	for i, r := range ranges {
		watches[i] = c.client.etcd.Watch(ctx, r[0], clientv3.WithRange(r[1]), clientv3.WithRev(next[i]-1), clientv3.WithProgressNotify())
	}
	ticker := c.client.clk.NewTicker(c.client.cfg.ProgressInterval)
	defer ticker.Stop()
	for silent := 0; ; {
		var resp clientv3.WatchResponse
		var open bool
		i := 0
		select {
		case resp, open = <-watches[0]:
		case resp, open = <-watches[1]:
			i = 1
		case values := <-c.pushed:
			c.takePushed(values)
			continue
		case <-c.poke:
			if err := c.client.etcd.RequestProgress(ctx); err != nil {
				return progressed, err
			}
			continue
		case <-ticker.C():
			if silent++; silent > 3 {
				return progressed, errStalled
			}
			if silent > 1 {
				// A watch from a revision that a foreign or restored etcd has not reached is accepted, and silent. A read tells.
				if err := c.probe(ctx); err != nil {
					return progressed, err
				}
			}
			if err := c.client.etcd.RequestProgress(ctx); err != nil {
				return progressed, err
			}
			continue
		}
		moved, err := c.accept(resp, open, i, next)
		if err != nil {
			return progressed, err
		}
		if moved {
			silent, progressed = 0, true
		}
	}
}

// probe reads, and fails only when the answer shows that etcd is another one or has gone back in time.
func (c *Cache) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.client.cfg.AttemptTimeout)
	defer cancel()
	_, err := c.client.get(ctx, "watch_probe", c.client.keys.cluster())
	if errors.Is(err, ErrForeignEtcd) || errors.Is(err, ErrOlderEtcd) {
		return err
	}
	return nil
}

// accept takes one answer of watch number i in. moved is true when the watch is where it was or further.
func (c *Cache) accept(resp clientv3.WatchResponse, open bool, i int, next *[2]int64) (moved bool, err error) {
	if resp.CompactRevision != 0 {
		return false, rpctypes.ErrCompacted
	}
	if err := resp.Err(); err != nil {
		return false, err
	}
	if !open {
		return false, errStalled
	}
	if pos := c.client.Position(); resp.Header.ClusterId != pos.EtcdClusterID {
		return false, &ForeignEtcdError{What: "etcd cluster id", Want: hex(pos.EtcdClusterID), Got: hex(resp.Header.ClusterId)}
	}
	// A watch that is catching up delivers in portions, all under the header of the newest revision: only its events say how far it
	// has come. An answer without events is a progress notification, and then the header does.
	reached := resp.Header.Revision
	if n := len(resp.Events); n > 0 {
		reached = resp.Events[n-1].Kv.ModRevision
	}
	if resp.Created || reached < next[i]-1 {
		return false, nil
	}
	next[i] = reached + 1
	b := newStateBuilder(c.Snapshot(), c.client.keys, c.client.lg)
	for _, e := range resp.Events {
		if e.Type == mvccpb.Event_DELETE {
			b.remove(string(e.Kv.Key), e.Kv.ModRevision)
		} else {
			b.put(e.Kv)
		}
	}
	if err := c.sameEra(b); err != nil {
		return false, err
	}
	// One range may be ahead of the other. What it shows is acted on, so it has been seen.
	b.seen = max(b.seen, reached)
	revision := min(next[0], next[1]) - 1
	if len(resp.Events) > 0 || revision > b.base.Revision() {
		c.publish(b, revision)
	}
	return true, nil
}

// sameEra: a process lives in one era. What it remembers of revisions and epochs means nothing in another one. A recovery, which will
// begin another era, needs everybody to stop.
func (c *Cache) sameEra(b *stateBuilder) error {
	if era := c.client.Position().Era; b.cluster != nil && b.cluster.Era != era {
		return &ForeignEtcdError{What: "era", Want: fmt.Sprint(era), Got: fmt.Sprint(b.cluster.Era)}
	}
	if b.cluster != nil && b.cluster.Recovery != nil {
		return &UnavailableError{Op: "watch", Err: ErrRecovering}
	}
	return nil
}

// publish makes the built State the current one. Only Run's goroutine publishes, so no State is lost between load and store. The new
// State is stored before the old one's Changed is closed: whoever is woken sees it.
func (c *Cache) publish(b *stateBuilder, revision int64) {
	b.position = c.client.Position()
	b.position.Revision = max(revision, b.base.Revision())
	b.seen = max(b.seen, b.position.Revision)
	c.client.metrics.corrupt.Add(float64(b.corrupt))
	c.client.metrics.revision.Set(float64(b.position.Revision))
	c.client.advance(b.position.Era, b.seen)
	c.state.Store(b.State)
	close(b.base.changed)
}
