package fakebroker

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/internal/clock"
)

const (
	failedPrecondition = codes.FailedPrecondition
	unavailable        = codes.Unavailable
	notFound           = codes.NotFound
)

// Call is something that a client asks a broker for. For streams there is one call per message that matters: a batch of Produce,
// an added subscription or a frame of Fetch, an answer of Watch.
type Call struct {
	Broker int32
	// Method is "Produce", "InitProducer", "Publish", "Fetch" (a subscription is added), "FetchFrame" (batches are about to be
	// sent), "ListOffsets", "Watch", or the name of an Admin call.
	Method string
	// Topic and Partition, where there is one.
	Topic     string
	Partition int32
	// Records is how many a produced batch has.
	Records int
	// Sequence and ProducerID of a produced batch.
	Sequence   int32
	ProducerID int64
}

// Action is what a broker does about a call. The zero Action is what a healthy broker does.
type Action struct {
	// Delay is waited for first.
	Delay time.Duration
	// Error refuses the call, which then has no effect.
	Error *Error
	// Disconnect ends the stream or call before it has any effect.
	Disconnect bool
	// Lose lets the call take effect and never answers it; the stream stays open, silent for the call's partition.
	Lose bool
	// DisconnectAfter lets the call take effect, and ends the stream instead of answering.
	DisconnectAfter bool
	// Unready has a look-up of an offset say that the leader does not know the high watermark yet.
	Unready bool
	// Throttle is what the answer asks the client to wait.
	Throttle time.Duration
}

// OnCall sets what decides about calls; nil: all are served. f may be called concurrently and must not call the cluster's methods.
func (c *Cluster) OnCall(f func(Call) Action) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.onCall = f
}

var errDisconnect = status.Error(codes.Unavailable, "the fake broker was told to disconnect")

// act asks what to do about a call, and does the part that comes before the call takes effect.
func (b *broker) act(ctx context.Context, call Call) (Action, error) {
	call.Broker = b.id
	b.c.mu.Lock()
	f := b.c.mu.onCall
	b.c.mu.Unlock()
	if f == nil {
		return Action{}, nil
	}
	a := f(call)
	if a.Delay > 0 {
		if err := clock.Sleep(ctx, b.c.cfg.clock, a.Delay); err != nil {
			return a, err
		}
	}
	if a.Disconnect {
		return a, errDisconnect
	}
	return a, nil
}

// unary decides about a call that has one answer. after is to be called when it has taken effect.
func (b *broker) unary(ctx context.Context, call Call) (after func() error, err error) {
	a, err := b.act(ctx, call)
	if err != nil {
		return nil, err
	}
	if a.Error != nil {
		return nil, rpcError(a.Error)
	}
	return func() error {
		if a.Lose {
			<-ctx.Done()
			return ctx.Err()
		}
		if a.DisconnectAfter {
			return errDisconnect
		}
		return nil
	}, nil
}

// rpcError is the status of a whole call, with the details that brokers add.
func rpcError(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	info := &errdetails.ErrorInfo{Domain: "runnel.dev", Reason: e.Reason, Metadata: map[string]string{"retriable": strconv.FormatBool(e.Retriable)}}
	maps.Copy(info.Metadata, e.Metadata)
	st, derr := status.New(e.Code, e.Message).WithDetails(info)
	if derr != nil {
		return derr
	}
	return st.Err()
}
