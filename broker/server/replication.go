package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/replication"
)

// Replication serves the calls that brokers make to each other; *replication.Service does. Only calls with valid peer credentials
// arrive. Streams have to end with their context. Safe for concurrent use.
type Replication interface {
	Replicate(stream grpc.ServerStream) error
	Heartbeat(stream grpc.ServerStream) error
	StartState(req *runnelv1.StartStateRequest, stream grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error
	Inventory(stream grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error
}

var _ Replication = (*replication.Service)(nil)

// Replicate implements runnelv1.ReplicationServer.
func (l *listener) Replicate(stream grpc.BidiStreamingServer[runnelv1.ReplicateRequest, runnelv1.ReplicateResponse]) error {
	return l.untilStopping(stream, Replication.Replicate)
}

// Heartbeat implements runnelv1.ReplicationServer.
func (l *listener) Heartbeat(stream grpc.BidiStreamingServer[runnelv1.HeartbeatRequest, runnelv1.HeartbeatResponse]) error {
	return l.untilStopping(stream, Replication.Heartbeat)
}

// StartState implements runnelv1.ReplicationServer.
func (l *listener) StartState(req *runnelv1.StartStateRequest, stream grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error {
	if l.cfg.Replication == nil {
		return errNoReplication
	}
	return replicationFault(l.cfg.Replication.StartState(req, stream))
}

// Inventory implements runnelv1.ReplicationServer.
func (l *listener) Inventory(_ *runnelv1.InventoryRequest, stream grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	if l.cfg.Replication == nil {
		return errNoReplication
	}
	return replicationFault(l.cfg.Replication.Inventory(stream))
}

var errNoReplication = fmt.Errorf("%w: this broker takes no part in replication", errNotYet)

// untilStopping serves a stream without end: it ends when the server begins to stop.
func (l *listener) untilStopping(stream grpc.ServerStream, serve func(Replication, grpc.ServerStream) error) error {
	if l.cfg.Replication == nil {
		return errNoReplication
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	l.receive(cancel, func() error {
		err := serve(l.cfg.Replication, &streamFor{ServerStream: stream, ctx: ctx})
		done <- err
		return nil
	})
	select {
	case err := <-done:
		return replicationFault(err)
	case <-l.stopping:
		return errStopping
	case <-ctx.Done(): // a panic
		return context.Cause(ctx)
	}
}

// replicationFault gives the errors of package replication their place in the table.
func replicationFault(err error) error {
	switch {
	case errors.Is(err, replication.ErrProtocol):
		return fmt.Errorf("%w: %w", errInvalid, err)
	case errors.Is(err, replication.ErrStopped):
		return errStopping
	}
	return err
}
