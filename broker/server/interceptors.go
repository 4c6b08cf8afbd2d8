package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// unary gives a call a deadline, survives its panic, and turns its error into an answer.
func (l *listener) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	begin := l.cfg.Clock.Now()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.limits.UnaryTimeout)
		defer cancel()
	}
	defer func() {
		if r := recover(); r != nil {
			resp, err = nil, l.status(l.panicked(r))
		}
		l.metrics.requests.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
		l.metrics.seconds.WithLabelValues(info.FullMethod).Observe(l.cfg.Clock.Since(begin).Seconds())
	}()
	ctx, err = l.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, l.status(err)
	}
	if err := l.started(ctx, info.FullMethod); err != nil {
		return nil, l.status(err)
	}
	resp, err = handler(ctx, req)
	return resp, l.status(err)
}

// stream survives a stream's panic and turns its error into an answer.
func (l *listener) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	open := l.metrics.streams.WithLabelValues(info.FullMethod)
	open.Inc()
	defer func() {
		if r := recover(); r != nil {
			err = l.status(l.panicked(r))
		}
		open.Dec()
		l.metrics.requests.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
	}()
	ctx, err := l.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return l.status(err)
	}
	if ctx != ss.Context() {
		ss = &streamFor{ServerStream: ss, ctx: ctx}
	}
	if err := l.started(ss.Context(), info.FullMethod); err != nil {
		return l.status(err)
	}
	return l.status(handler(srv, ss))
}

// streamFor is a stream with another context.
type streamFor struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the stream's own
}

// Context implements grpc.ServerStream.
func (s *streamFor) Context() context.Context { return s.ctx }

// started waits for the first metadata, for at most the time of a unary call: before it, every topic looks as if it did not exist.
func (l *listener) started(ctx context.Context, method string) error {
	if op := calls[method]; op == opPublic || op == opPeer {
		return nil
	}
	if l.cfg.Refused != nil {
		return l.cfg.Refused
	}
	snap := l.cfg.Metadata.Snapshot()
	if snap.ClusterID != "" {
		return nil
	}
	timer := l.cfg.Clock.NewTimer(l.limits.UnaryTimeout)
	defer timer.Stop()
	for ; snap.ClusterID == ""; snap = l.cfg.Metadata.Snapshot() {
		select {
		case <-snap.Changed:
		case <-timer.C():
			return errStarting
		case <-l.stopping:
			return errStopping
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errStarting, ctx.Err())
		}
	}
	return nil
}
