package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
)

// states is a partition that only knows how others begin.
type states struct {
	epoch int32
	state log.StartState
	err   error
}

func (s states) Leads(epoch int32) bool { return epoch == s.epoch }

func (s states) StartStateAt(offset int64) (log.StartState, error) {
	st := s.state
	st.Offset = offset
	return st, s.err
}

// served is the server's end of a stream within the process.
type served[T any] struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // the stream's own
	sent []*T
}

func (s *served[T]) Context() context.Context { return s.ctx }
func (s *served[T]) Send(m *T) error          { s.sent = append(s.sent, m); return nil }

// conn answers calls with what a service sends.
type conn struct {
	service *Service
	cut     int // parts that get through; 0: all
}

func (c conn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.New("no unary calls")
}

func (c conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &answered{ctx: ctx, conn: c, method: method}, nil
}

// answered is the client's end: the request is answered when it is sent.
type answered struct {
	grpc.ClientStream
	conn
	ctx     context.Context //nolint:containedctx // the stream's own
	method  string
	answers []any
	err     error
}

func (a *answered) SendMsg(m any) error {
	switch req := m.(type) {
	case *runnelv1.StartStateRequest:
		s := &served[runnelv1.StartStateResponse]{ctx: a.ctx}
		a.err = a.service.StartState(req, s)
		for _, x := range s.sent {
			a.answers = append(a.answers, x)
		}
	case *runnelv1.InventoryRequest:
		s := &served[runnelv1.InventoryResponse]{ctx: a.ctx}
		a.err = a.service.Inventory(s)
		for _, x := range s.sent {
			a.answers = append(a.answers, x)
		}
	}
	if a.cut > 0 {
		a.answers = a.answers[:min(a.cut, len(a.answers))]
	}
	return nil
}

func (a *answered) CloseSend() error { return nil }

func (a *answered) RecvMsg(m any) error {
	if len(a.answers) == 0 {
		if a.err != nil {
			return a.err
		}
		return io.EOF
	}
	switch into := m.(type) {
	case *runnelv1.StartStateResponse:
		proto.Reset(into)
		proto.Merge(into, a.answers[0].(*runnelv1.StartStateResponse))
	case *runnelv1.InventoryResponse:
		proto.Reset(into)
		proto.Merge(into, a.answers[0].(*runnelv1.InventoryResponse))
	}
	a.answers = a.answers[1:]
	return nil
}

func stateOf(epochs, producers int) log.StartState {
	var st log.StartState
	for i := range epochs {
		st.Epochs = append(st.Epochs, log.EpochStart{Epoch: int32(i + 1), Start: int64(10 * i)})
	}
	for i := range producers {
		p := log.ProducerState{ProducerID: int64(i), Epoch: int16(i), LastActiveMS: 7}
		for j := range i % 6 {
			p.Batches = append(p.Batches, log.ProducerBatch{FirstSequence: int32(j), LastSequence: int32(j + 1), Base: int64(j), MaxTimestamp: 9})
		}
		st.Producers = append(st.Producers, p)
	}
	return st
}

func TestStartStateInPages(t *testing.T) {
	ref := metadata.PartitionRef{TopicID: topic, Partition: 2}
	for _, size := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {pageEpochs, pageProducers}, {3*pageEpochs + 1, 5}, {2, 4*pageProducers + 7}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			want := stateOf(size[0], size[1])
			s := &Service{StartStates: func(r metadata.PartitionRef) (StartStater, bool) { return states{epoch: 4, state: want}, r == ref }}
			got, err := ReadStartState(t.Context(), conn{service: s}, ref, 4, 123)
			if err != nil {
				t.Fatal(err)
			}
			want.Offset = 123
			if d := cmp.Diff(want, got); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestStartStateThatWasCutOffIsNone(t *testing.T) {
	ref := metadata.PartitionRef{TopicID: topic, Partition: 2}
	s := &Service{StartStates: func(metadata.PartitionRef) (StartStater, bool) {
		return states{epoch: 4, state: stateOf(3*pageEpochs, 0)}, true
	}}
	if _, err := ReadStartState(t.Context(), conn{service: s, cut: 2}, ref, 4, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v, want an unexpected end", err)
	}
}

func TestStartStateIsTheLeaders(t *testing.T) {
	ref := metadata.PartitionRef{TopicID: topic, Partition: 2}
	damage := errors.New("damaged")
	tests := map[string]struct {
		service *Service
		epoch   int32
		want    error
	}{
		"not hosted":    {&Service{StartStates: func(metadata.PartitionRef) (StartStater, bool) { return nil, false }}, 4, partition.ErrNotLeader},
		"another epoch": {&Service{StartStates: func(metadata.PartitionRef) (StartStater, bool) { return states{epoch: 5}, true }}, 4, partition.ErrNotLeader},
		"damaged":       {&Service{StartStates: func(metadata.PartitionRef) (StartStater, bool) { return states{epoch: 4, err: damage}, true }}, 4, damage},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadStartState(t.Context(), conn{service: tt.service}, ref, tt.epoch, 0); !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
		})
	}
	s := &Service{}
	err := s.StartState(&runnelv1.StartStateRequest{TopicId: []byte("short")}, &served[runnelv1.StartStateResponse]{ctx: t.Context()})
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("short topic id: %v", err)
	}
}

func TestInventoryInPages(t *testing.T) {
	header := &runnelv1.InventoryHeader{ClusterId: clusterID, BrokerId: 3, StorageId: make([]byte, 16), Era: 2, Revision: 77}
	for _, size := range [][2]int{{0, 0}, {1, 1}, {pageLogs, pageSnapshot}, {3*pageLogs + 1, 10}, {2, 3*pageSnapshot + 5}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			want := Inventory{Header: header}
			for i := range size[0] {
				want.Logs = append(want.Logs, &runnelv1.InventoryLog{TopicId: topic[:], Partition: int32(i), LogEnd: int64(i)})
			}
			for i := range size[1] {
				want.Snapshot = append(want.Snapshot, byte(i))
			}
			s := &Service{Inventories: func(context.Context) (Inventory, error) { return want, nil }}
			got, err := ReadInventory(t.Context(), conn{service: s})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Logs) != size[0] || !proto.Equal(got.Header, header) || !bytes.Equal(got.Snapshot, want.Snapshot) {
				t.Fatalf("got %d logs, header %v, %d bytes of snapshot", len(got.Logs), got.Header, len(got.Snapshot))
			}
			for i, l := range got.Logs {
				if l.GetLogEnd() != int64(i) {
					t.Fatalf("log %d is %v", i, l)
				}
			}
			if size[0] > pageLogs {
				if _, err := ReadInventory(t.Context(), conn{service: s, cut: 1}); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("cut off: %v", err)
				}
			}
		})
	}
	s := &Service{Inventories: func(context.Context) (Inventory, error) { return Inventory{Header: &runnelv1.InventoryHeader{}}, nil }}
	if _, err := ReadInventory(t.Context(), conn{service: s}); !errors.Is(err, ErrProtocol) {
		t.Fatalf("no storage id: %v", err)
	}
}

func TestServiceRefusesWhoIsNoBroker(t *testing.T) {
	_, b := pair(t, Settings{})
	s := &Service{Directory: b.dir, Leaders: b.leaders}
	if err := s.Replicate(&served[runnelv1.ReplicateResponse]{ctx: t.Context()}); !errors.Is(err, peer.ErrRequired) {
		t.Fatalf("replicate: %v", err)
	}
	if err := s.Heartbeat(&served[runnelv1.HeartbeatResponse]{ctx: t.Context()}); !errors.Is(err, peer.ErrRequired) {
		t.Fatalf("heartbeat: %v", err)
	}
}
