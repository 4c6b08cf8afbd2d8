package server

import (
	"context"
	"errors"
	"fmt"

	grpcmetadata "google.golang.org/grpc/metadata"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/peer"
)

// operation is what a call does to what; authorization decides by it.
type operation string

// The operations.
const (
	opWrite    operation = "write"    // append to topics
	opRead     operation = "read"     // read records of topics
	opDescribe operation = "describe" // see topics, brokers, offsets
	opAlter    operation = "alter"    // change topics and their records
	opAdmin    operation = "admin"    // touch what is damaged, move replicas and leaders, change brokers
	opPeer     operation = "peer"     // replicate and vote; brokers of the cluster only
	opPublic   operation = "public"   // health and reflection
)

// calls lists every call of every service that a listener offers, with its operation. A call that is missing here does not pass the
// test that compares the list with the service descriptors, and is refused at run time.
var calls = map[string]operation{
	runnelv1.Producer_Produce_FullMethodName:      opWrite,
	runnelv1.Producer_Publish_FullMethodName:      opWrite,
	runnelv1.Producer_InitProducer_FullMethodName: opWrite,

	runnelv1.Consumer_Fetch_FullMethodName:       opRead,
	runnelv1.Consumer_Subscribe_FullMethodName:   opRead,
	runnelv1.Consumer_ListOffsets_FullMethodName: opDescribe,

	runnelv1.Metadata_Watch_FullMethodName: opDescribe,

	runnelv1.Admin_CreateTopic_FullMethodName:        opAlter,
	runnelv1.Admin_UpdateTopic_FullMethodName:        opAlter,
	runnelv1.Admin_DeleteTopic_FullMethodName:        opAlter,
	runnelv1.Admin_ListTopics_FullMethodName:         opDescribe,
	runnelv1.Admin_DescribeTopic_FullMethodName:      opDescribe,
	runnelv1.Admin_DeleteRecords_FullMethodName:      opAlter,
	runnelv1.Admin_DescribeCluster_FullMethodName:    opDescribe,
	runnelv1.Admin_DescribePartitions_FullMethodName: opDescribe,
	runnelv1.Admin_RecoverPartition_FullMethodName:   opAdmin,
	runnelv1.Admin_ReassignPartitions_FullMethodName: opAdmin,
	runnelv1.Admin_ListReassignments_FullMethodName:  opDescribe,
	runnelv1.Admin_ElectLeaders_FullMethodName:       opAdmin,
	runnelv1.Admin_DrainBroker_FullMethodName:        opAdmin,
	runnelv1.Admin_UndrainBroker_FullMethodName:      opAdmin,
	runnelv1.Admin_DecommissionBroker_FullMethodName: opAdmin,
	runnelv1.Admin_FenceBroker_FullMethodName:        opAdmin,
	runnelv1.Admin_UnfenceBroker_FullMethodName:      opAdmin,
	runnelv1.Admin_SafeToStop_FullMethodName:         opDescribe,
	runnelv1.Admin_ListOperations_FullMethodName:     opDescribe,
	runnelv1.Admin_DescribeConfig_FullMethodName:     opAdmin,

	runnelv1.Replication_Replicate_FullMethodName:  opPeer,
	runnelv1.Replication_Heartbeat_FullMethodName:  opPeer,
	runnelv1.Replication_StartState_FullMethodName: opPeer,
	runnelv1.Replication_Inventory_FullMethodName:  opPeer,

	"/grpc.health.v1.Health/Check":                                   opPublic,
	"/grpc.health.v1.Health/List":                                    opPublic,
	"/grpc.health.v1.Health/Watch":                                   opPublic,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      opPublic,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": opPublic,
}

// listed refuses a call that nobody decided about.
func listed(method string) error {
	if _, ok := calls[method]; !ok {
		return errUnlisted
	}
	return nil
}

// admit decides about a call before it is handled: it refuses what nobody decided about, what only brokers may call, and envelopes that no broker of
// the cluster vouches for. The context that it returns names the client that a forwarded call is made for.
func (l *listener) admit(ctx context.Context, method string) (context.Context, error) {
	if err := listed(method); err != nil {
		return ctx, err
	}
	op := calls[method]
	envelope := grpcmetadata.ValueFromIncomingContext(ctx, forwardedHeader)
	if op != opPeer && len(envelope) == 0 {
		return ctx, nil
	}
	if l.cfg.Forwarder == nil {
		return ctx, peer.ErrRequired
	}
	from, err := l.cfg.Forwarder.VerifyPeer(ctx)
	switch {
	case errors.Is(err, peer.ErrRequired) && op != opPeer:
		return ctx, fmt.Errorf("%w: %w", errForged, err)
	case err != nil:
		return ctx, err
	case op == opPeer:
		return ctx, nil
	}
	return l.forwarded(ctx, from, envelope)
}
