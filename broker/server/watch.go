package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
)

// settleTime is how long a watcher waits after a change for what belongs to it, so that a burst costs one message.
const settleTime = 5 * time.Millisecond

// watcher is one Watch call. It remembers what the client knows by the pointers of the snapshot, and sends the difference to the
// newest one. A slow client skips snapshots: nothing queues up.
type watcher struct {
	l       *listener
	all     bool
	names   []string // sorted, without doubles
	brokers []*Broker
	control int32
	topics  map[string]*Topic // what the client knows; nil: knows that it is missing
	beat    time.Duration     // how often the client wants to hear something; 0: only when there is news
}

// leastBeat bounds what a client may ask for.
const leastBeat = 100 * time.Millisecond

// Watch implements runnelv1.MetadataServer.
func (l *listener) Watch(req *runnelv1.WatchRequest, stream grpc.ServerStreamingServer[runnelv1.WatchResponse]) error {
	w := &watcher{l: l, all: req.GetAllTopics(), topics: map[string]*Topic{}, control: -1}
	if err := count("topics", len(req.GetTopics())); err != nil {
		return err
	}
	for _, name := range req.GetTopics() {
		if err := metadata.ValidateTopicName(name); err != nil {
			return err
		}
	}
	if !w.all {
		w.names = slices.Compact(slices.Sorted(slices.Values(req.GetTopics())))
	}
	if ms := req.GetHeartbeatMs(); ms < 0 {
		return invalid("heartbeat_ms", ms, "0 or more")
	} else if ms > 0 {
		w.beat = max(time.Duration(ms)*time.Millisecond, leastBeat)
	}
	ctx := stream.Context()
	if req.GetAutoCreate() && l.cfg.AutoCreateTopics {
		l.autoCreate(ctx, w.names)
	}
	for first := true; ; first = false {
		snap := l.cfg.Metadata.Snapshot()
		if resp := w.diff(snap, first); resp != nil {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		if err := w.changed(ctx, snap, stream); err != nil {
			return err
		}
	}
}

// changed waits until there is a newer snapshot than snap, and a moment longer. Meanwhile it tells the client that it is there.
func (w *watcher) changed(ctx context.Context, snap *Snapshot, stream grpc.ServerStreamingServer[runnelv1.WatchResponse]) error {
	l := w.l
	var beat <-chan time.Time
	if w.beat > 0 {
		ticker := l.cfg.Clock.NewTicker(w.beat)
		defer ticker.Stop()
		beat = ticker.C()
	}
	for news := false; !news; {
		select {
		case <-snap.Changed:
			news = true
		case <-beat:
			err := stream.Send(&runnelv1.WatchResponse{
				ClusterId: snap.ClusterID, Revision: snap.Revision, ControllerId: w.control, HeartbeatMs: int32(w.beat.Milliseconds()),
			})
			if err != nil {
				return err
			}
		case <-l.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	timer := l.cfg.Clock.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-l.stopping:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// autoCreate creates the topics that do not exist. One that cannot be created is reported missing like any other, because the stream
// serves the topics that do exist; it is tried again with the next stream.
func (l *listener) autoCreate(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, l.limits.UnaryTimeout)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-l.stopping:
			cancel()
		case <-ended:
		}
	}()
	for _, name := range names {
		if _, ok := l.cfg.Metadata.Snapshot().Topics[name]; ok {
			continue
		}
		_, err := l.cfg.Topics.CreateTopic(ctx, &runnelv1.CreateTopicRequest{Name: name})
		if err != nil && !errors.Is(err, metadata.ErrTopicExists) {
			l.lg.Warn("a topic could not be created on demand", slog.String("topic", name), slog.Any("error", err))
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// diff returns what the client does not know yet, nil when that is nothing; the first answer is always one.
func (w *watcher) diff(snap *Snapshot, first bool) *runnelv1.WatchResponse {
	resp := &runnelv1.WatchResponse{
		ClusterId: snap.ClusterID, Snapshot: first, Revision: snap.Revision, ControllerId: snap.ControllerID, HeartbeatMs: int32(w.beat.Milliseconds()),
	}
	if first || !slices.Equal(w.brokers, snap.Brokers) {
		w.brokers, resp.BrokersChanged = snap.Brokers, true
		for _, b := range snap.Brokers {
			resp.Brokers = append(resp.Brokers, &runnelv1.BrokerEndpoint{Id: b.ID, Address: b.Listeners[w.l.name], Rack: b.Rack})
		}
	}
	if w.all {
		w.diffAll(snap, resp)
	} else {
		w.diffNamed(snap, resp)
	}
	news := resp.BrokersChanged || len(resp.Topics) > 0 || len(resp.MissingTopics) > 0 || w.control != snap.ControllerID
	w.control = snap.ControllerID
	if !news && !first {
		return nil
	}
	return resp
}

func (w *watcher) diffAll(snap *Snapshot, resp *runnelv1.WatchResponse) {
	for name, t := range snap.Topics {
		if _, ok := snap.active(name); ok && w.topics[name] != t {
			w.topics[name] = t
			resp.Topics = append(resp.Topics, topicMetadata(t))
		}
	}
	for name := range w.topics {
		if _, ok := snap.active(name); !ok {
			delete(w.topics, name)
			resp.MissingTopics = append(resp.MissingTopics, name)
		}
	}
	slices.SortFunc(resp.Topics, func(a, b *runnelv1.TopicMetadata) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.Sort(resp.MissingTopics)
}

func (w *watcher) diffNamed(snap *Snapshot, resp *runnelv1.WatchResponse) {
	for _, name := range w.names {
		known, told := w.topics[name]
		t, ok := snap.active(name)
		switch {
		case ok && known != t:
			w.topics[name] = t
			resp.Topics = append(resp.Topics, topicMetadata(t))
		case !ok && (!told || known != nil):
			w.topics[name] = nil
			resp.MissingTopics = append(resp.MissingTopics, name)
		}
	}
}

func topicMetadata(t *Topic) *runnelv1.TopicMetadata {
	m := &runnelv1.TopicMetadata{Name: t.Name, TopicId: t.ID[:], Config: t.Config}
	for i, p := range t.Partitions {
		m.Partitions = append(m.Partitions, &runnelv1.PartitionMetadata{
			Partition: int32(i), LeaderId: p.LeaderID, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, Isr: p.ISR,
		})
	}
	return m
}
