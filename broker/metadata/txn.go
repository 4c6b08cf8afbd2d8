package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	etcdserverpb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/internal/clock"
)

const (
	minBackOff = 20 * time.Millisecond
	maxBackOff = time.Second
)

// backOff is a doubling delay with jitter, from minBackOff to maxBackOff.
type backOff struct{ d time.Duration }

func (b *backOff) next() time.Duration {
	b.d = min(max(2*b.d, minBackOff), maxBackOff)
	return b.d/2 + rand.N(b.d/2+1)
}

// final reports whether an error means that etcd has refused the request for good: it was not and will not be applied, and the same
// request would be refused again. Everything else may have been applied, or may be applied later.
func final(err error) bool {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace), errors.Is(err, rpctypes.ErrCompacted):
		return true
	}
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	switch code { //nolint:exhaustive // the others are answers that leave the outcome open
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.OutOfRange:
		return true
	}
	return false
}

// attempt makes one request under AttemptTimeout and measures it. open is true when the outcome is open: the request has left this
// process and no answer settles it. A request that found no connection is not open.
func (c *Client) attempt(ctx context.Context, op string, f func(context.Context) error) (open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	sent := &atomic.Bool{}
	start := c.clk.Now()
	err = f(context.WithValue(ctx, sentKey{}, sent))
	result := "ok"
	if err != nil {
		result = "error"
		open = sent.Load() && !final(err)
		if open {
			c.metrics.unanswered.WithLabelValues(op).Inc()
		}
	}
	c.metrics.requests.WithLabelValues(op, result).Observe(c.clk.Since(start).Seconds())
	return open, err
}

type sentKey struct{}

// sentRecorder is a stats.Handler that notes in a call's context that the call got as far as a connection.
type sentRecorder struct{}

func (sentRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentRecorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (sentRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentRecorder) HandleConn(context.Context, stats.ConnStats) {}

// get is a linearizable read, repeated until it is answered.
func (c *Client) get(ctx context.Context, op, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	before := c.Position()
	if before.EtcdClusterID == 0 {
		return nil, fmt.Errorf("%s: %w", op, ErrNotBootstrapped)
	}
	resp, err := c.getRaw(ctx, op, key, opts...)
	if err != nil {
		return nil, err
	}
	return resp, c.verify(resp.Header, before)
}

// getRaw is get without the check of the answer's origin.
func (c *Client) getRaw(ctx context.Context, op, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	var wait backOff
	for {
		var resp *clientv3.GetResponse
		_, err := c.attempt(ctx, op, func(ctx context.Context) (err error) {
			resp, err = c.etcd.Get(ctx, key, opts...)
			return err
		})
		if err == nil {
			return resp, nil
		}
		if final(err) {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		if clock.Sleep(ctx, c.clk, wait.next()) != nil {
			return nil, &UnavailableError{Op: op, Err: err}
		}
	}
}

// shown returns the revision from which the cache shows what a transaction did, or what it was overtaken by.
func shown(out Outcome, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return out.Answer.Revision, nil
}

// commit carries a transaction out until its outcome is settled, by the rule of Settlement. When ctx or RequestTimeout ends first, the
// error is an *UnavailableError with Unsettled set, and the caller has to keep to the more cautious state until a later transaction
// on the same key has succeeded or failed.
func (c *Client) commit(ctx context.Context, tx Tx) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	before := c.Position()
	if before.EtcdClusterID == 0 {
		return Outcome{}, fmt.Errorf("%s: %w", tx.Op, ErrNotBootstrapped)
	}
	out, h, err := c.commitRaw(ctx, &tx)
	if err != nil {
		return out, err
	}
	return out, c.verify(h, before)
}

// commitRaw is commit without the check of the answer's origin, which is in the header.
func (c *Client) commitRaw(ctx context.Context, tx *Tx) (Outcome, *etcdserverpb.ResponseHeader, error) {
	var wait backOff
	cmps, puts, gets := tx.cmps(), tx.puts(), tx.gets()
	settlement := Settle(tx)
	for {
		var resp *clientv3.TxnResponse
		open, err := c.attempt(ctx, tx.Op, func(ctx context.Context) (err error) {
			resp, err = c.etcd.Txn(ctx).If(cmps...).Then(puts...).Else(gets...).Commit()
			return err
		})
		var answer Answer
		if err == nil {
			answer = tx.answer(resp)
		}
		switch verdict, out := settlement.Step(result(open, err), answer); verdict {
		case Settled:
			return out, resp.Header, nil
		case Failed:
			return Outcome{}, nil, fmt.Errorf("%s: %w", tx.Op, err)
		case Repeat:
		}
		if clock.Sleep(ctx, c.clk, wait.next()) != nil {
			return Outcome{}, nil, &UnavailableError{Op: tx.Op, Unsettled: settlement.Open(), Err: err}
		}
	}
}

// result classifies an attempt.
func result(open bool, err error) Attempt {
	switch {
	case err == nil:
		return Answered
	case final(err):
		return Refused
	case open:
		return Unanswered
	}
	return Unsent
}
