package recovery

import (
	"context"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/internal/ids"
)

// ErrInventory is an answer that is no inventory.
var ErrInventory = errors.New("malformed inventory")

// Standing says how a broker stands to the etcd.
type Standing string

// Standings.
const (
	// Refuses: it serves nothing, and has said what it has.
	Refuses Standing = "refuses"
	// Uses: it is in a cluster. What it has can be asked for once the recovery has begun.
	Uses Standing = "uses"
	// Silent: it did not answer; it may be down, or wait for etcd with a data directory that was never in a cluster.
	Silent Standing = "silent"
)

// Broker is what a broker has answered.
type Broker struct {
	Address  string
	Standing Standing
	// ID is -1 unless it Refuses.
	ID int32
	// Cluster is the name under which it looks for its cluster in etcd.
	Cluster string
	// Inventory and Snapshot (the newest cluster snapshot, empty: none) are set when it Refuses.
	Inventory metadata.BrokerInventory
	Snapshot  []byte
	// Err says why there is no inventory.
	Err error
}

// Bounds of what a log may say: what a recovery adds has to fit.
const (
	maxEpoch      = math.MaxInt32 / 2
	maxProducerID = math.MaxInt64 / 2
)

func plausible(epoch int32) bool { return epoch >= -1 && epoch <= maxEpoch }

// ask asks the broker at one address.
func ask(ctx context.Context, address string, conn grpc.ClientConnInterface) Broker {
	b := Broker{Address: address, Standing: Silent, ID: -1}
	answer, err := replication.ReadInventory(ctx, conn)
	if err == nil {
		b.Inventory, err = convert(answer)
	}
	if err != nil {
		if status.Code(err) == codes.PermissionDenied {
			b.Standing = Uses
		}
		b.Err = err
		return b
	}
	b.Standing, b.ID, b.Snapshot, b.Cluster = Refuses, b.Inventory.BrokerID, answer.Snapshot, answer.Header.GetClusterName()
	return b
}

// convert checks an answer. Nothing of it is trusted: whoever reaches the address may have answered.
func convert(in replication.Inventory) (metadata.BrokerInventory, error) {
	h := in.Header
	out := metadata.BrokerInventory{
		BrokerID: h.GetBrokerId(), StorageID: ids.StorageID(h.GetStorageId()), // ReadInventory has checked its length
		Position: metadata.Position{ClusterID: h.GetClusterId(), EtcdClusterID: h.GetEtcdClusterId(), Era: h.GetEra(), Revision: h.GetRevision()},
	}
	if out.BrokerID < 0 || out.StorageID.IsZero() || out.Position.Era < 0 || out.Position.Revision < 0 {
		return out, fmt.Errorf("%w: broker id %d, storage id %s, era %d, revision %d", ErrInventory, out.BrokerID, out.StorageID, h.GetEra(), h.GetRevision())
	}
	for _, l := range in.Logs {
		entry, err := convertLog(l)
		if err != nil {
			return out, err
		}
		out.Logs = append(out.Logs, entry)
	}
	return out, nil
}

func convertLog(l *runnelv1.InventoryLog) (metadata.LogInventory, error) {
	topic, id := l.GetTopicId(), l.GetLogId()
	if len(topic) != len(ids.TopicID{}) || len(id) != 0 && len(id) != len(ids.LogID{}) || l.GetPartition() < 0 || l.GetPartition() >= metadata.MaxPartitions ||
		l.GetLogStart() < 0 || l.GetLogEnd() < l.GetLogStart() || !plausible(l.GetAdoptedEpoch()) || !plausible(l.GetLatestEpoch()) ||
		l.GetMaxProducerId() > maxProducerID {
		return metadata.LogInventory{}, fmt.Errorf("%w: topic id of %d bytes, partition %d, log id of %d bytes, offsets %d to %d, epochs %d and %d, producer id %d",
			ErrInventory, len(topic), l.GetPartition(), len(id), l.GetLogStart(), l.GetLogEnd(), l.GetAdoptedEpoch(), l.GetLatestEpoch(), l.GetMaxProducerId())
	}
	out := metadata.LogInventory{
		TopicID: ids.TopicID(topic), Partition: l.GetPartition(), TopicName: l.GetTopicName(), TopicConfig: l.GetTopicConfig(),
		AdoptedEpoch: max(l.GetAdoptedEpoch(), 0), LatestEpoch: l.GetLatestEpoch(), LogStart: l.GetLogStart(), End: l.GetLogEnd(),
		MaxProducerID: l.GetMaxProducerId(), Damaged: l.GetHealth() != log.Online.String(),
	}
	if len(id) > 0 {
		out.LogID = ids.LogID(id)
	}
	for _, e := range l.GetEpochs() {
		if e.GetStartOffset() <= out.End { // what is above is not durable, and in nobody's set
			out.Lineage = append(out.Lineage, metadata.EpochStart{Epoch: e.GetEpoch(), Start: e.GetStartOffset()})
		}
	}
	return out, nil
}
