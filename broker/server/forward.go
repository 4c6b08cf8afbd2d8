package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

const (
	// forwardReads bounds what a broker waits for another's part of an answer: one that hangs costs its part, not the answer.
	forwardReads = 5 * time.Second
	// moveGrace is how long a broker that has lost a partition has to say so itself, before the client is told on its behalf.
	moveGrace = 250 * time.Millisecond
)

// where is who leads a partition, as far as this broker knows.
type where struct{ leader, epoch int32 }

// leaderOf returns ok for a partition that exists; the leader is -1 while there is none.
func (s *Snapshot) leaderOf(id ids.TopicID, n int32) (w where, ok bool) {
	t := s.TopicsByID[id]
	if t == nil || n < 0 || int(n) >= len(t.Partitions) {
		return where{-1, -1}, false
	}
	p := &t.Partitions[n]
	return where{p.LeaderID, p.LeaderEpoch}, true
}

// elsewhere returns the other broker that leads a partition.
func (l *listener) elsewhere(id ids.TopicID, n int32) (where, bool) {
	w, ok := l.cfg.Metadata.Snapshot().leaderOf(id, n)
	return w, ok && w.leader >= 0 && w.leader != l.cfg.BrokerID
}

// forwardOptions are those of every call that carries batches.
func (l *listener) forwardOptions() []grpc.CallOption {
	return []grpc.CallOption{
		grpc.ForceCodecV2(l.codec), grpc.MaxCallRecvMsgSize(2 * MaxMessageBytes), grpc.MaxCallSendMsgSize(2 * MaxMessageBytes),
	}
}

// peerShare is the part of what all clients may have in flight that may be on its way to one other broker.
const peerShare = 4

// peerLoad bounds what is under way to one other broker for all clients: one that hangs must not use up what everybody needs.
type peerLoad struct {
	bytes   *budget
	streams atomic.Int64
}

func (s *Server) loadOf(broker int32) *peerLoad {
	s.peers.Lock()
	defer s.peers.Unlock()
	p := s.peers.loads[broker]
	if p == nil {
		p = &peerLoad{bytes: newBudget(max(s.limits.InFlightBytes/peerShare, MaxBatchBytes), overhead)}
		s.peers.loads[broker] = p
	}
	return p
}

// connForStream returns a connection for a long stream, of which there may be only so many that calls always find room beside them.
func (l *listener) connForStream(broker int32) (cc grpc.ClientConnInterface, leave func(), err error) {
	p := l.loadOf(broker)
	leave = func() { p.streams.Add(-1) }
	if most := max(int64(l.limits.StreamsPerConnection)*3/4, 1); p.streams.Add(1) > most {
		leave()
		return nil, nil, fmt.Errorf("%w: broker %d has %d forwarded streams from this one", errPeerBusy, broker, most)
	}
	if cc, err = l.connTo(broker); err != nil {
		leave()
		return nil, nil, err
	}
	l.metrics.forwarded.Inc()
	return cc, leave, nil
}

// ask makes a call at another broker that only reads, or that may be made twice.
func ask[R any](ctx context.Context, l *listener, broker int32, f func(context.Context, grpc.ClientConnInterface) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardReads)
	defer cancel()
	r, _, err := invoke(ctx, l, broker, f)
	return r, err
}

// tell makes a call at another broker that changes something. What may have been done is errForwardUnknown.
func tell[R any](ctx context.Context, l *listener, broker int32, f func(context.Context, grpc.ClientConnInterface) (R, error)) (R, error) {
	r, sent, err := invoke(ctx, l, broker, f)
	if sent && errors.Is(err, errUnreachable) {
		err = fmt.Errorf("%w: %w", errForwardUnknown, err)
	}
	return r, err
}

// invoke reports, with an error, whether the call may have reached the broker.
func invoke[R any](ctx context.Context, l *listener, broker int32, f func(context.Context, grpc.ClientConnInterface) (R, error)) (r R, sent bool, err error) {
	cc, err := l.connTo(broker)
	if err != nil {
		return r, false, err
	}
	l.metrics.forwarded.Inc()
	noted := &notedConn{ClientConnInterface: cc}
	r, err = f(l.outgoing(ctx), noted)
	if err == nil {
		return r, true, nil
	}
	err = fromPeer(broker, err)
	return r, noted.peer.Addr != nil && !notExecuted(err), err
}

// notedConn notes whom a unary call was sent to. The peer stays empty when the call got no connection, and so was never sent.
type notedConn struct {
	grpc.ClientConnInterface
	peer peer.Peer
}

// Invoke implements grpc.ClientConnInterface.
func (c *notedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, grpc.Peer(&c.peer))...)
}

// fromPeer turns the error of a call at another broker into one of ours: an answer of it stays as it is, everything else is that the
// broker could not be reached.
func fromPeer(broker int32, err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return &unreachableError{broker: broker, cause: err}
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			if refusals[info.GetReason()] {
				return &unreachableError{broker: broker, cause: errors.New(st.Message()), refused: true}
			}
			return &remoteError{answerOf(st, info)}
		}
	}
	if st.Code() == codes.Unimplemented {
		return fmt.Errorf("%w: broker %d does not know the call", errNotYet, broker)
	}
	return &unreachableError{broker: broker, cause: errors.New(st.Message())}
}

// refusals are answers to the call as such: nothing was done, and the client has nothing to do with the reason.
var refusals = map[string]bool{
	"PEER_REQUIRED": true, "PEER_REFUSED": true, "PEER_UNKNOWN": true, "FORGED_ENVELOPE": true, "STARTING": true, "SHUTTING_DOWN": true, "UNLISTED_CALL": true,
}

// notExecuted reports whether a call that failed with err certainly did nothing.
func notExecuted(err error) bool {
	if u, ok := errors.AsType[*unreachableError](err); ok {
		return u.refused
	}
	_, answered := errors.AsType[*remoteError](err)
	return answered
}

// answerOf is the inverse of status.
func answerOf(st *status.Status, info *errdetails.ErrorInfo) *runnelv1.Error {
	e := &runnelv1.Error{Code: int32(st.Code()), Reason: info.GetReason(), Message: st.Message(), Metadata: map[string]string{}}
	for k, v := range info.GetMetadata() {
		if k != "retriable" {
			e.Metadata[k] = v
		}
	}
	e.Retriable, _ = strconv.ParseBool(info.GetMetadata()["retriable"])
	return e
}

// fan calls f once per broker, at the same time, and returns when all have returned.
func fan(groups map[int32][]int, f func(broker int32, items []int)) {
	var wg sync.WaitGroup
	for broker, items := range groups {
		wg.Go(func() { f(broker, items) })
	}
	wg.Wait()
}

// atController makes a call where the controller is: there, or here with local.
func atController[R any](ctx context.Context, l *listener, local func(context.Context) (R, error), there func(context.Context, runnelv1.AdminClient) (R, error)) (R, error) {
	var zero R
	if l.cfg.Cluster == nil {
		return zero, fmt.Errorf("%w: this broker does not manage clusters", errNotYet)
	}
	id := l.cfg.Metadata.Snapshot().ControllerID
	if id == l.cfg.BrokerID || !l.forwards(ctx) {
		return local(ctx)
	}
	if id < 0 {
		return zero, errNoController
	}
	return tell(ctx, l, id, func(ctx context.Context, cc grpc.ClientConnInterface) (R, error) {
		return there(ctx, runnelv1.NewAdminClient(cc))
	})
}
