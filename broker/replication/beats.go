package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

const (
	// beatRetry is the time between two attempts to reach a broker, and between two refusals.
	beatRetry = 50 * time.Millisecond
	// maxPushed is the most states that wait for a broker, maxPushMessage the most of one beat.
	maxPushed      = 20_000
	maxPushMessage = 4096
	// maxSuspects is the most suspects of a beat that are looked at.
	maxSuspects = 1024
)

// beatSender sends beats to one broker.
type beatSender struct {
	h    *Heartbeats
	id   int32
	poke chan struct{} // capacity 1

	mu struct {
		sync.Mutex
		load   []PartitionLoad
		states []PushedState
	}
}

func (s *beatSender) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *beatSender) setLoad(load []PartitionLoad) {
	s.mu.Lock()
	s.mu.load = load
	s.mu.Unlock()
}

func (s *beatSender) push(states []PushedState) {
	s.mu.Lock()
	if len(s.mu.states)+len(states) <= maxPushed {
		s.mu.states = append(s.mu.states, states...)
	}
	s.mu.Unlock()
	s.wake()
}

// run beats until ctx ends, or the broker is neither registered nor connected.
func (s *beatSender) run(ctx context.Context) {
	defer s.h.leave(s)
	for ctx.Err() == nil {
		before, _ := s.h.cfg.Directory.Peer(s.id)
		begun := s.h.now()
		connected, err := s.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		after, known := s.h.cfg.Directory.Peer(s.id)
		refused := s.h.cfg.Dialer.Refused(s.id, peer.ClassHeartbeat)
		// What the end of a connection to an earlier registration says is no news.
		if known && after.Epoch == before.Epoch && err != nil && (connected || refused) {
			now := s.h.now()
			s.h.feed(now, func(d *liveness.Detector) {
				if refused && !connected {
					d.Refused(now, s.id)
				}
			})
		}
		if !known || !connected && !s.h.registered(s.id) {
			return
		}
		if connected && s.h.now()-begun > beatRetry {
			continue // at once: whether a new connection is refused is what counts
		}
		if clock.Sleep(ctx, s.h.cfg.Clock, beatRetry) != nil {
			return
		}
	}
}

// beat opens a stream and beats on it until it breaks.
func (s *beatSender) beat(ctx context.Context) (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	epoch := s.h.cfg.Directory.Self().Epoch
	stream, err := s.open(ctx, cancel)
	if err != nil {
		return false, err
	}
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer cancel(nil)
	receiving.Go(func() { // notices the end of the stream
		for {
			if _, err := stream.Recv(); err != nil {
				cancel(err)
				return
			}
		}
	})
	tick := s.h.cfg.Clock.NewTicker(s.h.cfg.Detector.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
		case <-s.poke:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
		if s.h.cfg.Directory.Self().Epoch != epoch {
			return true, nil // the stream's credentials are those of an earlier registration
		}
		for more := true; more; {
			var req *runnelv1.HeartbeatRequest
			req, more = s.message()
			if err := stream.Send(req); err != nil {
				cancel(err)
				return true, context.Cause(ctx)
			}
		}
	}
}

// open sends the first beat and checks who answers.
func (s *beatSender) open(ctx context.Context, cancel context.CancelCauseFunc) (grpc.BidiStreamingClient[runnelv1.HeartbeatRequest, runnelv1.HeartbeatResponse], error) {
	s.h.cfg.Dialer.Retry(s.id, peer.ClassHeartbeat)
	want, ok := s.h.cfg.Directory.Peer(s.id)
	if !ok {
		return nil, fmt.Errorf("%w: broker %d", peer.ErrUnknown, s.id)
	}
	conn, err := s.h.cfg.Dialer.Conn(s.id, peer.ClassHeartbeat)
	if err != nil {
		return nil, err
	}
	deadline := s.h.cfg.Clock.AfterFunc(2*time.Second, func() { cancel(context.DeadlineExceeded) })
	defer deadline.Stop()
	stream, err := runnelv1.NewReplicationClient(conn).Heartbeat(ctx)
	if err != nil {
		return nil, err
	}
	req, more := s.message()
	if more {
		s.wake()
	}
	if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv knows why
		return nil, err
	}
	hello, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if hello.GetBrokerId() != want.ID || hello.GetBrokerEpoch() != want.Epoch {
		return nil, fmt.Errorf("%w: meant for broker %d of epoch %d, but broker %d of epoch %d answered",
			ErrProtocol, want.ID, want.Epoch, hello.GetBrokerId(), hello.GetBrokerEpoch())
	}
	return stream, nil
}

// message is the next beat; more: there are states for another one.
func (s *beatSender) message() (req *runnelv1.HeartbeatRequest, more bool) {
	local, view := s.h.cfg.Local(), s.h.View()
	req = &runnelv1.HeartbeatRequest{
		BrokerEpoch: s.h.cfg.Directory.Self().Epoch, SyncAgeUs: local.SyncAge.Microseconds(), Suspects: view.Suspects, Stopping: local.Stopping,
		ControllerId: local.Controller, Unwritable: local.Unwritable,
	}
	for _, l := range local.logs() {
		req.UnwritableLogs = append(req.UnwritableLogs, &runnelv1.UnwritableLog{TopicId: l.TopicID[:], Partition: l.Partition})
	}
	s.mu.Lock()
	load := s.mu.load
	s.mu.load = nil
	n := min(len(s.mu.states), maxPushMessage)
	states := s.mu.states[:n:n]
	s.mu.states = s.mu.states[n:]
	more = len(s.mu.states) > 0
	s.mu.Unlock()
	for i := range load {
		l := &load[i]
		req.Load = append(req.Load, &runnelv1.PartitionLoad{
			TopicId: l.Ref.TopicID[:], Partition: l.Ref.Partition, BytesIn: l.BytesIn, BytesOut: l.BytesOut, RecordsIn: l.RecordsIn,
		})
	}
	for i := range states {
		p := &states[i]
		req.States = append(req.States, &runnelv1.PushedState{
			TopicId: p.Ref.TopicID[:], Partition: p.Ref.Partition, Era: p.Era, ModRevision: p.ModRevision, Value: p.Value,
		})
	}
	return req, more
}

// incoming is a stream that brings a broker's beats.
type incoming struct{ epoch int64 }

// Heartbeat serves the beats of one broker until its stream ends. from is who opened it, verified by the caller.
func (h *Heartbeats) Heartbeat(from peer.Peer, stream grpc.ServerStream) error {
	in := &incoming{epoch: from.Epoch}
	h.mu.Lock()
	if old := h.mu.incoming[from.ID]; old == nil || old.epoch <= in.epoch {
		h.mu.incoming[from.ID] = in
	}
	h.mu.Unlock()
	defer h.ended(from, in)
	self := h.cfg.Directory.Self()
	var req runnelv1.HeartbeatRequest
	for first := true; ; first = false {
		req.Reset()
		if err := stream.RecvMsg(&req); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := h.take(from, &req); err != nil {
			return err
		}
		if first {
			if err := stream.SendMsg(&runnelv1.HeartbeatResponse{BrokerId: self.ID, BrokerEpoch: self.Epoch}); err != nil {
				return err
			}
		}
	}
}

// ended: a stream of beats is over.
func (h *Heartbeats) ended(from peer.Peer, in *incoming) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.incoming[from.ID] != in {
		return
	}
	delete(h.mu.incoming, from.ID)
	now := h.now()
	h.mu.detector.Broken(now, from.ID)
	h.publishLocked(now)
	if s := h.mu.senders[from.ID]; s != nil {
		s.wake() // it may find sooner that nobody listens any more
	}
}

// take takes in one beat.
func (h *Heartbeats) take(from peer.Peer, req *runnelv1.HeartbeatRequest) error {
	switch {
	case req.GetBrokerEpoch() != from.Epoch:
		return fmt.Errorf("%w: a beat of epoch %d on a stream of epoch %d", ErrProtocol, req.GetBrokerEpoch(), from.Epoch)
	case len(req.GetLoad()) > MaxLoad, len(req.GetStates()) > maxPushMessage, len(req.GetSuspects()) > maxSuspects,
		len(req.GetUnwritableLogs()) > MaxUnwritableLogs:
		return fmt.Errorf("%w: a beat with %d loads, %d states, %d suspects and %d logs",
			ErrProtocol, len(req.GetLoad()), len(req.GetStates()), len(req.GetSuspects()), len(req.GetUnwritableLogs()))
	}
	var logs []liveness.Log
	for _, l := range req.GetUnwritableLogs() {
		if ref, ok := refFrom(l.GetTopicId(), l.GetPartition()); ok {
			logs = append(logs, liveness.Log(ref))
		}
	}
	now := h.now()
	h.feed(now, func(d *liveness.Detector) {
		d.Beat(now, liveness.Beat{
			From: from.ID, Epoch: from.Epoch, SyncAge: time.Duration(max(req.GetSyncAgeUs(), 0)) * time.Microsecond,
			Suspects: req.GetSuspects(), Stopping: req.GetStopping(), Unwritable: req.GetUnwritable(), UnwritableLogs: logs,
		})
	})
	if len(req.GetLoad()) > 0 && h.cfg.OnLoad != nil {
		load := make([]PartitionLoad, 0, len(req.GetLoad()))
		for _, l := range req.GetLoad() {
			if ref, ok := refFrom(l.GetTopicId(), l.GetPartition()); ok && rate(l.GetBytesIn()) && rate(l.GetBytesOut()) && rate(l.GetRecordsIn()) {
				load = append(load, PartitionLoad{Ref: ref, BytesIn: l.GetBytesIn(), BytesOut: l.GetBytesOut(), RecordsIn: l.GetRecordsIn()})
			}
		}
		h.cfg.OnLoad(from.ID, load)
	}
	if len(req.GetStates()) > 0 && h.cfg.OnStates != nil {
		states := make([]PushedState, 0, len(req.GetStates()))
		for _, s := range req.GetStates() {
			if ref, ok := refFrom(s.GetTopicId(), s.GetPartition()); ok {
				states = append(states, PushedState{Ref: ref, Era: s.GetEra(), ModRevision: s.GetModRevision(), Value: s.GetValue()})
			}
		}
		h.cfg.OnStates(from.ID, states)
	}
	return nil
}

// rate reports whether v is a rate that sums and comparisons can be made with.
func rate(v float64) bool { return v >= 0 && v <= math.MaxFloat32 }

func refFrom(topic []byte, partition int32) (metadata.PartitionRef, bool) {
	if len(topic) != len(ids.TopicID{}) || partition < 0 {
		return metadata.PartitionRef{}, false
	}
	return metadata.PartitionRef{TopicID: ids.TopicID(topic), Partition: partition}, true
}
