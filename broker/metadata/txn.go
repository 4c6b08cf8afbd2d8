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

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(key), "=", 0) }

// unchanged compares a key's mod revision; 0 means that the key is absent.
func unchanged(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

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

// txn is one compare-and-set. It must be safe to repeat as it is, which holds when one of the compares is on a key that it writes.
type txn struct {
	op       string
	compares []clientv3.Cmp
	then     []clientv3.Op
	// otherwise are the reads that show who won.
	otherwise []clientv3.Op
	// mine recognises an earlier attempt of this very transaction by what the reads of otherwise show, and returns the mod revision
	// that it got. nil: there is nothing to recognise it by, and the caller treats it as somebody else's.
	mine func(*clientv3.TxnResponse) (revision int64, ok bool)
}

// outcome is a settled transaction.
type outcome struct {
	// ok is true when the transaction took effect, at revision.
	ok       bool
	revision int64
	// resp is the last answer. When an earlier attempt took effect, it is the failed repetition's, with the reads of otherwise.
	resp *clientv3.TxnResponse
}

// shown returns the revision from which the cache shows what a transaction did, or what it was overtaken by.
func shown(out outcome, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return out.resp.Header.Revision, nil
}

// commit runs a transaction until its outcome is settled. An unanswered attempt is repeated as it is: the repetition's success means
// that the earlier attempt is dead, since its compares can never hold again; its failure shows who won. When ctx or RequestTimeout
// ends first, the error is an *UnavailableError with Unsettled set, and the caller has to keep to the more cautious state until a later
// transaction on the same key has succeeded or failed.
func (c *Client) commit(ctx context.Context, t txn) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	before := c.Position()
	if before.EtcdClusterID == 0 {
		return outcome{}, fmt.Errorf("%s: %w", t.op, ErrNotBootstrapped)
	}
	out, err := c.commitRaw(ctx, t)
	if err != nil {
		return out, err
	}
	return out, c.verify((*etcdserverpb.ResponseHeader)(out.resp.Header), before)
}

// commitRaw is commit without the check of the answer's origin.
func (c *Client) commitRaw(ctx context.Context, t txn) (outcome, error) {
	var wait backOff
	unanswered := false
	for {
		var resp *clientv3.TxnResponse
		open, err := c.attempt(ctx, t.op, func(ctx context.Context) (err error) {
			resp, err = c.etcd.Txn(ctx).If(t.compares...).Then(t.then...).Else(t.otherwise...).Commit()
			return err
		})
		switch {
		case err == nil && resp.Succeeded:
			return outcome{ok: true, revision: resp.Header.Revision, resp: resp}, nil
		case err == nil && unanswered && t.mine != nil:
			revision, ok := t.mine(resp)
			return outcome{ok: ok, revision: revision, resp: resp}, nil
		case err == nil:
			return outcome{resp: resp}, nil
		case final(err) && !unanswered:
			return outcome{}, fmt.Errorf("%s: %w", t.op, err)
		}
		unanswered = unanswered || open
		if clock.Sleep(ctx, c.clk, wait.next()) != nil {
			return outcome{}, &UnavailableError{Op: t.op, Unsettled: unanswered, Err: err}
		}
	}
}
