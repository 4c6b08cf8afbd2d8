package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
)

// metadata follows Metadata.Watch from any broker and publishes snapshots.
//
// Readers take the current snapshot from an atomic pointer. A subscriber is called for every snapshot in order, on the watching
// goroutine; one that subscribes gets the current snapshot first, under the same lock that publishing takes, so that it can
// neither miss one nor see them out of order.
type metadata struct {
	cfg   *config
	conns *conns
	cur   atomic.Pointer[snapshot]

	mu struct {
		sync.Mutex
		topics      map[string]bool // of interest; only grows
		all         bool            // the current stream watches all topics, because there are too many of interest
		changed     chan struct{}   // closed with each snapshot
		lastErr     error
		stale       int // snapshots in a row that were refused for an old revision
		subscribers map[*subscriber]struct{}
		restart     context.CancelFunc // ends the current stream, for a larger one
		via         string             // with AnyBroker, where the current stream is
	}
	// failures counts attempts in a row that got nothing. Only run uses it.
	failures int
}

type subscriber struct{ update func(*snapshot) }

func newMetadata(cfg *config, conns *conns) *metadata {
	m := &metadata{cfg: cfg, conns: conns}
	m.mu.topics = make(map[string]bool)
	m.mu.changed = make(chan struct{})
	m.mu.subscribers = make(map[*subscriber]struct{})
	m.cur.Store(&snapshot{controller: -1})
	return m
}

func (m *metadata) snapshot() *snapshot { return m.cur.Load() }

// subscribe calls update with the current snapshot and with each later one, until the returned function is called.
func (m *metadata) subscribe(update func(*snapshot)) (cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &subscriber{update}
	m.mu.subscribers[s] = struct{}{}
	update(m.cur.Load())
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.mu.subscribers, s)
	}
}

// watch adds topics of interest.
func (m *metadata) watch(topics ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	grown := false
	for _, t := range topics {
		if !m.mu.topics[t] {
			m.mu.topics[t] = true
			grown = true
		}
	}
	// A stream that watches all topics needs no larger one, except for topics to be created.
	if grown && m.mu.restart != nil && (!m.mu.all || m.cfg.autoCreate) {
		m.mu.restart()
	}
}

// ready waits for the first snapshot.
func (m *metadata) ready(ctx context.Context) error {
	return m.wait(ctx, func(s *snapshot) bool { return s.revision > 0 || s.clusterID != "" })
}

// topic waits until the topic exists and returns it; after TopicWait it gives up with ErrUnknownTopic.
func (m *metadata) topic(ctx context.Context, name string) (*topicMeta, error) {
	return m.topicUnless(ctx, nil, name)
}

// checkTopicName keeps names that no topic can have out of the watch: a broker refuses a watch for such a name as a whole, and names
// are never taken out of it again.
func checkTopicName(name string) error {
	ok := len(name) >= 1 && len(name) <= maxTopicName && name != "." && name != ".." && !strings.HasPrefix(name, "__")
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if ok {
		return nil
	}
	if len(name) > maxTopicName {
		return fmt.Errorf("%w: the topic name is %d bytes long, want 1 to %d", ErrInvalidArgument, len(name), maxTopicName)
	}
	return fmt.Errorf("%w: topic name %q, want letters, digits, '.', '_' and '-', not beginning with \"__\", and not \".\" or \"..\"", ErrInvalidArgument, name)
}

const maxTopicName = 249

// topicUnless is topic that also gives up, with ErrClosed, once closed is closed.
func (m *metadata) topicUnless(ctx context.Context, closed <-chan struct{}, name string) (*topicMeta, error) {
	// A topic that is being created is there before its partitions are.
	usable := func(s *snapshot) bool { t := s.topics[name]; return t != nil && len(t.partitions) > 0 }
	if s := m.snapshot(); usable(s) {
		return s.topics[name], nil
	}
	if err := checkTopicName(name); err != nil {
		return nil, err
	}
	m.watch(name)
	known := func(s *snapshot) bool { return s.topics[name] != nil || s.isMissing(name) }
	if err := m.waitUnless(ctx, closed, known); err != nil {
		return nil, err
	}
	if !usable(m.snapshot()) && m.cfg.topicWait > 0 {
		patience, cancel := context.WithTimeout(ctx, m.cfg.topicWait)
		defer cancel()
		err := m.waitUnless(patience, closed, usable)
		if err != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)) {
			return nil, err
		}
	}
	switch s := m.snapshot(); {
	case usable(s):
		return s.topics[name], nil
	case s.topics[name] != nil:
		return nil, fmt.Errorf("topic %q is being created, it has no partitions yet: %w", name, ErrUnavailable)
	}
	return nil, fmt.Errorf("topic %q: %w", name, ErrUnknownTopic)
}

// wait returns once cond holds for the current snapshot. The error joins ctx's with the last one of the watch.
func (m *metadata) wait(ctx context.Context, cond func(*snapshot) bool) error {
	return m.waitUnless(ctx, nil, cond)
}

// waitUnless is wait that also gives up, with ErrClosed, once closed is closed.
func (m *metadata) waitUnless(ctx context.Context, closed <-chan struct{}, cond func(*snapshot) bool) error {
	for {
		m.mu.Lock()
		changed, s := m.mu.changed, m.cur.Load()
		m.mu.Unlock()
		if cond(s) {
			return nil
		}
		select {
		case <-changed:
		case <-closed:
			return ErrClosed
		case <-ctx.Done():
			m.mu.Lock()
			lastErr := m.mu.lastErr
			m.mu.Unlock()
			if lastErr != nil {
				return fmt.Errorf("%w: %w", ctx.Err(), lastErr)
			}
			return ctx.Err()
		}
	}
}

// run watches until ctx ends, going from broker to broker.
func (m *metadata) run(ctx context.Context) {
	var back backoff
	for i := rand.IntN(len(m.cfg.seeds)); ctx.Err() == nil; i++ {
		addresses := m.addresses()
		address := addresses[i%len(addresses)]
		got, err := m.follow(ctx, address)
		m.fail(address, err)
		m.failures++
		if got {
			back.reset()
			m.failures = 0
		}
		if errors.Is(err, errRestart) {
			i-- // the same broker, at once
			continue
		}
		if ctx.Err() == nil {
			_ = clock.Sleep(ctx, m.cfg.clock, back.next())
		}
	}
}

var errRestart = errors.New("more topics to watch")

// addresses are the seeds, then what metadata added.
func (m *metadata) addresses() []string {
	all := slices.Clone(m.cfg.seeds)
	known := make([]string, 0, len(m.snapshot().brokers))
	for _, a := range m.snapshot().brokers {
		if !slices.Contains(all, a) && !m.cfg.anyBroker {
			known = append(known, a)
		}
	}
	slices.Sort(known)
	return append(all, known...)
}

func (m *metadata) fail(address string, err error) {
	m.mu.Lock()
	m.mu.lastErr = fmt.Errorf("%s: %w", address, err)
	m.mu.Unlock()
}

// follow watches through one broker until the stream ends, and reports whether it got anything.
func (m *metadata) follow(ctx context.Context, address string) (got bool, err error) {
	cc, err := m.conns.get(address, forControl)
	if err != nil {
		return false, err
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	topics := make([]string, 0, len(m.mu.topics))
	for t := range m.mu.topics {
		topics = append(topics, t)
	}
	m.mu.all = len(topics) > maxNamed
	all := m.mu.all
	var restarted atomic.Bool
	m.mu.restart = func() { restarted.Store(true); cancel() }
	if m.cfg.anyBroker {
		m.mu.via = address
	}
	m.mu.Unlock()
	slices.Sort(topics)

	// The first answer has to come in time: sooner while there are others to ask, because this broker may hang.
	patience := m.cfg.clock.AfterFunc(min(firstAnswer<<min(m.failures/len(m.addresses()), 10), m.cfg.requestTimeout/3), cancel)
	defer patience.Stop()
	api := runnelv1.NewMetadataClient(cc)
	req := &runnelv1.WatchRequest{Topics: topics, AutoCreate: m.cfg.autoCreate, HeartbeatMs: int32(heartbeat.Milliseconds())}
	if all {
		if m.cfg.autoCreate {
			err = createMissing(sctx, api, m.snapshot(), topics)
		}
		req.Topics, req.AutoCreate, req.AllTopics = nil, false, true
	}
	var stream grpc.ServerStreamingClient[runnelv1.WatchResponse]
	if err == nil {
		stream, err = api.Watch(sctx, req)
	}
	for err == nil {
		var r *runnelv1.WatchResponse
		if r, err = stream.Recv(); err != nil {
			break
		}
		patience.Stop()
		if !got {
			got = true
			m.cfg.hooks.Connected(address, "metadata")
		}
		if err = m.apply(r); err != nil {
			break
		}
		if r.GetHeartbeatMs() > 0 { // from here on silence means that the broker hangs, or cannot be reached any more
			patience.Reset(max(silence, 3*time.Duration(r.GetHeartbeatMs())*time.Millisecond))
		}
	}
	if restarted.Load() {
		return got, errRestart
	}
	if ctx.Err() == nil && sctx.Err() != nil {
		err = fmt.Errorf("%w: the broker is silent", ErrUnavailable)
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: the broker ended the metadata stream", ErrUnavailable)
	}
	err = fromRPC(err)
	if got {
		m.cfg.hooks.Disconnected(address, "metadata", err)
	}
	if ctx.Err() == nil {
		m.cfg.logger.Debug("metadata stream ended", "address", address, "error", err)
	}
	return got, err
}

const (
	// heartbeat is how often brokers are asked to send something, and silence how long nothing may come before another broker is asked: a broker that
	// hangs must not keep what happens to it from its clients.
	heartbeat = 300 * time.Millisecond
	silence   = time.Second
	// firstAnswer is how long a broker may take to say anything at all. It doubles each time that all brokers were asked in vain.
	firstAnswer = time.Second
)

// maxNamed is how many topics are watched by name; above it, all topics are watched. Brokers refuse a request with more than 10,000
// names, and names are never taken out of a watch.
const maxNamed = 5000

// createMissing has the brokers create those topics that are not known to exist, which a watch of all topics does not do.
func createMissing(ctx context.Context, api runnelv1.MetadataClient, known *snapshot, topics []string) error {
	missing := slices.DeleteFunc(slices.Clone(topics), func(name string) bool { return known.topics[name] != nil })
	for names := range slices.Chunk(missing, maxNamed) {
		if err := createOnce(ctx, api, names); err != nil {
			return err
		}
	}
	return nil
}

// createOnce watches names for as long as it takes to create them: until the first answer.
func createOnce(ctx context.Context, api runnelv1.MetadataClient, names []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.Watch(ctx, &runnelv1.WatchRequest{Topics: names, AutoCreate: true})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// apply makes the next snapshot from an answer and publishes it.
func (m *metadata) apply(r *runnelv1.WatchResponse) error {
	if r.GetSnapshot() && r.GetClusterId() == "" {
		return fmt.Errorf("%w: the broker does not know its cluster yet", ErrUnavailable) // what it calls missing may exist
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.snapshot()
	if old.clusterID != "" && r.GetClusterId() != "" && old.clusterID != r.GetClusterId() {
		return fmt.Errorf("client: a broker of cluster %q answered, this client belongs to %q", r.GetClusterId(), old.clusterID)
	}
	if r.GetSnapshot() && r.GetRevision() < old.revision && m.mu.stale < maxStale {
		// A broker that lags behind would take back what we know. When every broker says so, a new era has begun.
		m.mu.stale++
		return fmt.Errorf("%w: the broker is at metadata revision %d, %d was seen before", ErrUnavailable, r.GetRevision(), old.revision)
	}
	m.mu.stale, m.mu.lastErr = 0, nil
	if bare(r) && r.GetControllerId() == old.controller {
		return nil
	}
	next := merge(old, r, m.mu.all, m.mu.via)
	m.publishLocked(next)
	for id, a := range next.brokers {
		if old.brokers[id] != a {
			m.conns.retry(a) // it has come (back)
		}
	}
	if r.GetSnapshot() || !maps.Equal(old.brokers, next.brokers) || !maps.Equal(old.lapsed, next.lapsed) {
		keep := make(map[string]bool, len(next.brokers)+len(next.lapsed)+len(m.cfg.seeds))
		for _, known := range []map[int32]string{next.brokers, next.lapsed} {
			for _, a := range known {
				keep[a] = true
			}
		}
		for _, a := range m.cfg.seeds {
			keep[a] = true
		}
		m.conns.retain(keep)
	}
	return nil
}

// bare: an answer that only says that the broker is there.
func bare(r *runnelv1.WatchResponse) bool {
	return r.GetHeartbeatMs() > 0 && !r.GetSnapshot() && !r.GetBrokersChanged() && len(r.GetTopics())+len(r.GetMissingTopics()) == 0
}

// maxStale is how many snapshots in a row may be refused for an old revision.
const maxStale = 10

func (m *metadata) publishLocked(next *snapshot) {
	m.cur.Store(next)
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
	for s := range m.mu.subscribers {
		s.update(next)
	}
}

// hint applies what a broker said about a leader ahead of metadata: only a newer epoch counts, and only for the same topic.
func (m *metadata) hint(name string, id TopicID, partition int32, h *runnelv1.LeaderHint) {
	if h == nil || h.GetAddress() == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.cur.Load()
	t := old.topics[name]
	if t == nil || t.id != id || int(partition) >= len(t.partitions) || t.partitions[partition].leaderEpoch >= h.GetLeaderEpoch() {
		return
	}
	next, topic := *old, *t
	topic.partitions = slices.Clone(t.partitions)
	topic.partitions[partition].leader, topic.partitions[partition].leaderEpoch = h.GetBrokerId(), h.GetLeaderEpoch()
	next.topics = maps.Clone(old.topics)
	next.topics[name] = &topic
	if next.brokers[h.GetBrokerId()] == "" {
		next.brokers = maps.Clone(old.brokers)
		next.brokers[h.GetBrokerId()] = cmp.Or(m.mu.via, h.GetAddress())
	}
	m.publishLocked(&next)
}
