package replication

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/internal/ids"
)

// What one message of a bulk answer carries at most.
const (
	pageEpochs    = 4096
	pageProducers = 2048
	pageLogs      = 1024
	pageSnapshot  = 1 << 20
)

// What a whole answer may hold before it is taken for broken.
const (
	mostEpochs    = 1 << 22
	mostProducers = 1 << 24
	mostLogs      = 1 << 22
	mostSnapshot  = 1 << 30
)

// StartStater is a partition that can say how another replica begins; *partition.Partition is one.
type StartStater interface {
	// Leads reports whether this broker leads the partition in epoch.
	Leads(epoch int32) bool
	StartStateAt(offset int64) (log.StartState, error)
}

// Inventory is what a data directory holds.
type Inventory struct {
	Header *runnelv1.InventoryHeader
	Logs   []*runnelv1.InventoryLog
	// Snapshot is the newest cluster snapshot, as stored; empty: none.
	Snapshot []byte
}

// Service serves all calls of the Replication service. Callers have been verified before, except for who they are.
type Service struct {
	Directory  peer.Directory
	Leaders    *Leaders
	Heartbeats *Heartbeats
	// StartStates finds a partition that this broker hosts.
	StartStates func(metadata.PartitionRef) (StartStater, bool)
	// Inventories reads the data directory. Blocks on the disk.
	Inventories func(context.Context) (Inventory, error)
}

// Replicate serves a stream of a follower.
func (s *Service) Replicate(stream grpc.ServerStream) error {
	from, err := peer.Verify(stream.Context(), s.Directory)
	if err != nil {
		return err
	}
	return s.Leaders.Replicate(from, stream)
}

// Heartbeat serves the beats of a broker.
func (s *Service) Heartbeat(stream grpc.ServerStream) error {
	from, err := peer.Verify(stream.Context(), s.Directory)
	if err != nil {
		return err
	}
	return s.Heartbeats.Heartbeat(from, stream)
}

// StartState sends the state at an offset of a partition that this broker leads.
func (s *Service) StartState(req *runnelv1.StartStateRequest, stream grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error {
	ref, ok := refFrom(req.GetTopicId(), req.GetPartition())
	if !ok {
		return fmt.Errorf("%w: topic id of %d bytes, partition %d", ErrProtocol, len(req.GetTopicId()), req.GetPartition())
	}
	p, ok := s.StartStates(ref)
	if !ok || !p.Leads(req.GetLeaderEpoch()) {
		return fmt.Errorf("%w in epoch %d", partition.ErrNotLeader, req.GetLeaderEpoch())
	}
	st, err := p.StartStateAt(req.GetOffset())
	if err != nil {
		return err
	}
	for first := true; first || len(st.Epochs)+len(st.Producers) > 0; first = false {
		m := &runnelv1.StartStateResponse{Offset: st.Offset}
		for _, e := range cut(&st.Epochs, pageEpochs) {
			m.Epochs = append(m.Epochs, &runnelv1.EpochStart{Epoch: e.Epoch, StartOffset: e.Start})
		}
		for _, ps := range cut(&st.Producers, pageProducers) {
			m.Producers = append(m.Producers, producerMessage(&ps))
		}
		m.Last = len(st.Epochs)+len(st.Producers) == 0
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// cut takes up to n elements from the front of list.
func cut[T any](list *[]T, n int) []T {
	n = min(n, len(*list))
	front := (*list)[:n]
	*list = (*list)[n:]
	return front
}

func producerMessage(ps *log.ProducerState) *runnelv1.ProducerState {
	m := &runnelv1.ProducerState{ProducerId: ps.ProducerID, ProducerEpoch: int32(ps.Epoch), LastActiveMs: ps.LastActiveMS}
	for _, b := range ps.Batches {
		m.Batches = append(m.Batches, &runnelv1.ProducerBatch{
			FirstSequence: b.FirstSequence, LastSequence: b.LastSequence, BaseOffset: b.Base, MaxTimestampMs: b.MaxTimestamp,
		})
	}
	return m
}

// ReadStartState asks the leader at the other end of conn for the state at offset. The caller sets a deadline.
func ReadStartState(ctx context.Context, conn grpc.ClientConnInterface, ref metadata.PartitionRef, leaderEpoch int32, offset int64) (log.StartState, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := runnelv1.NewReplicationClient(conn).StartState(ctx, &runnelv1.StartStateRequest{
		TopicId: ref.TopicID[:], Partition: ref.Partition, LeaderEpoch: leaderEpoch, Offset: offset,
	})
	if err != nil {
		return log.StartState{}, err
	}
	var st log.StartState
	for first := true; ; first = false {
		m, err := stream.Recv()
		if err != nil {
			return log.StartState{}, cutOff(err)
		}
		if first {
			st.Offset = m.GetOffset()
		}
		if m.GetOffset() != st.Offset || st.Offset < 0 || len(st.Epochs) > mostEpochs || len(st.Producers) > mostProducers {
			return log.StartState{}, fmt.Errorf("%w: start state at %d of %d epochs and %d producers", ErrProtocol, m.GetOffset(), len(st.Epochs), len(st.Producers))
		}
		for _, e := range m.GetEpochs() {
			st.Epochs = append(st.Epochs, log.EpochStart{Epoch: e.GetEpoch(), Start: e.GetStartOffset()})
		}
		for _, p := range m.GetProducers() {
			if p.GetProducerEpoch() != int32(int16(p.GetProducerEpoch())) {
				return log.StartState{}, fmt.Errorf("%w: producer epoch %d", ErrProtocol, p.GetProducerEpoch())
			}
			ps := log.ProducerState{ProducerID: p.GetProducerId(), Epoch: int16(p.GetProducerEpoch()), LastActiveMS: p.GetLastActiveMs()}
			for _, b := range p.GetBatches() {
				ps.Batches = append(ps.Batches, log.ProducerBatch{
					FirstSequence: b.GetFirstSequence(), LastSequence: b.GetLastSequence(), Base: b.GetBaseOffset(), MaxTimestamp: b.GetMaxTimestampMs(),
				})
			}
			st.Producers = append(st.Producers, ps)
		}
		if m.GetLast() {
			return st, nil
		}
	}
}

// cutOff: a stream that ends without its last part is no answer.
func cutOff(err error) error {
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		return io.ErrUnexpectedEOF
	}
	return err
}

// Inventory sends what the data directory holds.
func (s *Service) Inventory(stream grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	inv, err := s.Inventories(stream.Context())
	if err != nil {
		return err
	}
	for header := inv.Header; header != nil || len(inv.Logs)+len(inv.Snapshot) > 0; header = nil {
		m := &runnelv1.InventoryResponse{Header: header, Logs: cut(&inv.Logs, pageLogs), Snapshot: cut(&inv.Snapshot, pageSnapshot)}
		m.Last = len(inv.Logs)+len(inv.Snapshot) == 0
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// ReadInventory asks the broker at the other end of conn for what it holds. The caller sets a deadline.
func ReadInventory(ctx context.Context, conn grpc.ClientConnInterface) (Inventory, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := runnelv1.NewReplicationClient(conn).Inventory(ctx, &runnelv1.InventoryRequest{})
	if err != nil {
		return Inventory{}, err
	}
	var inv Inventory
	for {
		m, err := stream.Recv()
		if err != nil {
			return Inventory{}, cutOff(err)
		}
		if m.GetHeader() != nil {
			inv.Header = m.GetHeader()
		}
		if inv.Header == nil || len(inv.Header.GetStorageId()) != len(ids.StorageID{}) || len(inv.Logs) > mostLogs || len(inv.Snapshot) > mostSnapshot {
			return Inventory{}, fmt.Errorf("%w: inventory of %d logs and %d bytes of snapshot without a header, or too large", ErrProtocol, len(inv.Logs), len(inv.Snapshot))
		}
		inv.Logs = append(inv.Logs, m.GetLogs()...)
		inv.Snapshot = append(inv.Snapshot, m.GetSnapshot()...)
		if m.GetLast() {
			return inv, nil
		}
	}
}
