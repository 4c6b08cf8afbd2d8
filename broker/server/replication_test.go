package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/server"
)

// replicationCalls makes each call of the Replication service and returns how it ended.
func replicationCalls(ctx context.Context, conn grpc.ClientConnInterface) map[string]func() error {
	c := runnelv1.NewReplicationClient(conn)
	return map[string]func() error{
		"Replicate": func() error {
			s, err := c.Replicate(ctx)
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"Heartbeat": func() error {
			s, err := c.Heartbeat(ctx)
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"StartState": func() error {
			s, err := c.StartState(ctx, &runnelv1.StartStateRequest{})
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"Inventory": func() error {
			s, err := c.Inventory(ctx, &runnelv1.InventoryRequest{})
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
	}
}

// replicationStub is what stands behind the server.
type replicationStub struct {
	called chan string
	err    error
}

func (s replicationStub) stream(name string, stream grpc.ServerStream) error {
	s.called <- name
	if s.err != nil {
		return s.err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (s replicationStub) Replicate(stream grpc.ServerStream) error {
	return s.stream("Replicate", stream)
}

func (s replicationStub) Heartbeat(stream grpc.ServerStream) error {
	return s.stream("Heartbeat", stream)
}

func (s replicationStub) StartState(*runnelv1.StartStateRequest, grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error {
	s.called <- "StartState"
	return s.err
}

func (s replicationStub) Inventory(grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	s.called <- "Inventory"
	return s.err
}

func TestClientCallingReplicationIsRefused(t *testing.T) {
	stub := replicationStub{called: make(chan string, 10)}
	f := setup(t, func(c *server.Config) { c.Forwarder, c.Replication = &peers{}, stub })
	for name, call := range replicationCalls(t.Context(), f.conn) {
		wantReason(t, call(), codes.PermissionDenied, "PEER_REQUIRED")
		if len(stub.called) != 0 {
			t.Fatalf("%s got through", name)
		}
	}
}

func TestForeignBrokerCallingReplicationIsRefused(t *testing.T) {
	stub := replicationStub{called: make(chan string, 10)}
	f := setup(t, func(c *server.Config) { c.Forwarder, c.Replication = &peers{}, stub })
	ctx := (&peers{self: "of another cluster"}).Outgoing(t.Context())
	for name, call := range replicationCalls(ctx, f.conn) {
		wantReason(t, call(), codes.PermissionDenied, "PEER_REFUSED")
		if len(stub.called) != 0 {
			t.Fatalf("%s got through", name)
		}
	}
}

func TestBrokerWithoutReplicationSaysSo(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Forwarder = &peers{} })
	ctx := (&peers{self: "b"}).Outgoing(t.Context())
	for _, call := range replicationCalls(ctx, f.conn) {
		wantReason(t, call(), codes.Unimplemented, "NOT_YET_AVAILABLE")
	}
}

func TestErrorsOfReplicationHaveTheirPlaceInTheTable(t *testing.T) {
	for _, tt := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{fmt.Errorf("%w: a test", replication.ErrProtocol), codes.InvalidArgument, "INVALID_ARGUMENT"},
		{replication.ErrStopped, codes.Unavailable, "SHUTTING_DOWN"},
		{fmt.Errorf("%w in epoch 3", partition.ErrNotLeader), codes.FailedPrecondition, "NOT_LEADER"},
	} {
		stub := replicationStub{called: make(chan string, 10), err: tt.err}
		f := setup(t, func(c *server.Config) { c.Forwarder, c.Replication = &peers{}, stub })
		ctx := (&peers{self: "b"}).Outgoing(t.Context())
		for _, call := range replicationCalls(ctx, f.conn) {
			wantReason(t, call(), tt.code, tt.reason)
		}
	}
}

func TestReplicationStreamsEndWhenTheServerStops(t *testing.T) {
	stub := replicationStub{called: make(chan string, 10)}
	f := setup(t, func(c *server.Config) { c.Forwarder, c.Replication = &peers{}, stub })
	ctx := (&peers{self: "b"}).Outgoing(t.Context())
	calls := replicationCalls(ctx, f.conn)
	ended := make(chan error, 2)
	go func() { ended <- calls["Replicate"]() }()
	go func() { ended <- calls["Heartbeat"]() }()
	<-stub.called
	<-stub.called
	f.stop()
	for range 2 {
		select {
		case err := <-ended:
			if err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("a stream ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the streams hold the server up")
		}
	}
}
