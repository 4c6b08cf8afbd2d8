package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
)

const (
	// defaultListed and mostListed bound lists in answers.
	defaultListed = 1000
	mostListed    = maxItems
	// controllerPatience is what describing the cluster waits for a controller that may be gone.
	controllerPatience = 2 * time.Second
	// loadPatience is what it waits for the sizes and rates of the other brokers: they stay unknown of one that does not answer.
	loadPatience = time.Second
)

// ReassignPartitions implements runnelv1.AdminServer. A limit is set on every broker, before anything moves.
func (l *listener) ReassignPartitions(ctx context.Context, req *runnelv1.ReassignPartitionsRequest) (*runnelv1.ReassignPartitionsResponse, error) {
	if err := checkReassign(req); err != nil {
		return nil, err
	}
	l = l.forClient(ctx)
	if req.ThrottleBytesPerSecond != nil {
		if err := l.throttle(ctx, req.GetThrottleBytesPerSecond(), req.GetValidateOnly()); err != nil {
			return nil, err
		}
		if len(req.GetTargets()) == 0 && !req.GetCancel() {
			return &runnelv1.ReassignPartitionsResponse{}, nil
		}
		req = proto.CloneOf(req)
		req.ThrottleBytesPerSecond = nil
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.ReassignPartitionsResponse, error) {
		results, err := l.cfg.Cluster.ReassignPartitions(ctx, req)
		if err != nil {
			return nil, err
		}
		resp := &runnelv1.ReassignPartitionsResponse{}
		for i, r := range results {
			m := r.Message
			if m == nil {
				m = &runnelv1.ReassignmentResult{BytesToCopy: -1}
				if i < len(req.GetTargets()) {
					m.Topic, m.Partition = req.GetTargets()[i].GetTopic(), req.GetTargets()[i].GetPartition()
				}
			}
			if r.Err != nil {
				m.Error = l.item(r.Err)
			}
			resp.Results = append(resp.Results, m)
		}
		return resp, nil
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ReassignPartitionsResponse, error) {
		return api.ReassignPartitions(ctx, req)
	})
}

// throttle sets what each broker sends to replicas that are far behind, here and on all others that are live.
func (l *listener) throttle(ctx context.Context, bytesPerSecond int64, dryRun bool) error {
	if l.cfg.Cluster == nil {
		return fmt.Errorf("%w: this broker does not manage clusters", errNotYet)
	}
	if dryRun {
		return nil
	}
	l.cfg.Cluster.Throttle(bytesPerSecond)
	if !l.forwards(ctx) {
		return nil
	}
	others := map[int32][]int{}
	for _, b := range l.cfg.Metadata.Snapshot().Brokers {
		if b.ID != l.cfg.BrokerID {
			others[b.ID] = nil
		}
	}
	var mu sync.Mutex
	var errs []error
	fan(others, func(id int32, _ []int) {
		_, err := ask(ctx, l, id, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.ReassignPartitionsResponse, error) {
			return runnelv1.NewAdminClient(cc).ReassignPartitions(ctx, &runnelv1.ReassignPartitionsRequest{ThrottleBytesPerSecond: &bytesPerSecond})
		})
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		}
	})
	if len(errs) > 0 {
		return fmt.Errorf("the limit is not set on every broker, and nothing was moved: %w", errs[0])
	}
	return nil
}

func checkReassign(req *runnelv1.ReassignPartitionsRequest) error {
	if err := count("targets", len(req.GetTargets())); err != nil {
		return err
	}
	if req.ThrottleBytesPerSecond != nil && req.GetThrottleBytesPerSecond() < 0 {
		return invalid("throttle_bytes_per_second", req.GetThrottleBytesPerSecond(), "1 or more, or 0 for no limit")
	}
	if len(req.GetTargets()) == 0 && !req.GetCancel() && req.ThrottleBytesPerSecond == nil {
		return invalid("targets", "empty", "at least one, unless a throttle is set or everything is cancelled")
	}
	type key struct {
		topic string
		n     int32
	}
	seen := make(map[key]bool, len(req.GetTargets()))
	for _, t := range req.GetTargets() {
		if err := named(t.GetTopic(), t.GetTopicId(), false); err != nil {
			return err
		}
		k := key{t.GetTopic(), t.GetPartition()}
		if seen[k] {
			return invalid("targets", fmt.Sprintf("%s/%d twice", k.topic, k.n), "each partition once")
		}
		seen[k] = true
		if err := checkReplicas(t.GetReplicas(), req.GetCancel()); err != nil {
			return err
		}
	}
	return nil
}

func checkReplicas(replicas []int32, cancel bool) error {
	const most = 32
	switch n := len(replicas); {
	case cancel && n > 0:
		return invalid("targets.replicas", fmt.Sprint(replicas), "none when a reassignment is cancelled")
	case !cancel && (n < 1 || n > most):
		return invalid("targets.replicas", fmt.Sprintf("%d items long", n), fmt.Sprintf("1 to %d brokers", most))
	}
	for i, id := range replicas {
		if id < 0 {
			return invalid("targets.replicas", id, "broker ids, 0 or more")
		}
		if slices.Contains(replicas[:i], id) {
			return invalid("targets.replicas", fmt.Sprint(replicas), "each broker once")
		}
	}
	return nil
}

// listed checks how many items an answer may have.
func listLimit(n, usual int32) error {
	if n < 0 || n > mostListed {
		return invalid("limit", n, fmt.Sprintf("1 to %d, or 0 for %d", mostListed, usual))
	}
	return nil
}

// ListReassignments implements runnelv1.AdminServer.
func (l *listener) ListReassignments(ctx context.Context, req *runnelv1.ListReassignmentsRequest) (*runnelv1.ListReassignmentsResponse, error) {
	if err := errors.Join(count("topics", len(req.GetTopics())), listLimit(req.GetLimit(), defaultListed)); err != nil {
		return nil, err
	}
	for _, name := range req.GetTopics() {
		if err := metadata.ValidateTopicName(name); err != nil {
			return nil, err
		}
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.ListReassignmentsResponse, error) {
		return l.cfg.Cluster.ListReassignments(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ListReassignmentsResponse, error) {
		return api.ListReassignments(ctx, req)
	})
}

// ElectLeaders implements runnelv1.AdminServer.
func (l *listener) ElectLeaders(ctx context.Context, req *runnelv1.ElectLeadersRequest) (*runnelv1.ElectLeadersResponse, error) {
	if err := checkElect(req); err != nil {
		return nil, err
	}
	l = l.forClient(ctx)
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.ElectLeadersResponse, error) {
		results, err := l.cfg.Cluster.ElectLeaders(ctx, req)
		if err != nil {
			return nil, err
		}
		resp := &runnelv1.ElectLeadersResponse{}
		for i, r := range results {
			m := r.Message
			if m == nil {
				m = &runnelv1.ElectionResult{OldLeaderId: -1, LeaderId: -1}
				if i < len(req.GetTargets()) {
					m.Topic, m.Partition = req.GetTargets()[i].GetTopic(), req.GetTargets()[i].GetPartition()
				}
			}
			if r.Err != nil {
				m.Error = l.item(r.Err)
			}
			resp.Results = append(resp.Results, m)
		}
		return resp, nil
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ElectLeadersResponse, error) {
		return api.ElectLeaders(ctx, req)
	})
}

func checkElect(req *runnelv1.ElectLeadersRequest) error {
	if err := count("targets", len(req.GetTargets())); err != nil {
		return err
	}
	unclean := false
	switch t := req.GetType(); t {
	case runnelv1.ElectionType_ELECTION_TYPE_UNSPECIFIED, runnelv1.ElectionType_ELECTION_TYPE_PREFERRED:
	case runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN:
		unclean = true
	default:
		return invalid("type", int32(t), "1 (preferred) or 2 (unclean)")
	}
	if unclean && len(req.GetTargets()) == 0 {
		return invalid("targets", "empty", "at least one partition, each with the broker to elect, for an unclean election")
	}
	if unclean && !req.GetAcceptDataLoss() && !req.GetValidateOnly() {
		return invalid("accept_data_loss", false, "true for an unclean election: records that were acknowledged can be lost")
	}
	for _, t := range req.GetTargets() {
		if err := named(t.GetTopic(), t.GetTopicId(), false); err != nil {
			return err
		}
		if t.GetPartition() < 0 {
			return invalid("targets.partition", t.GetPartition(), "0 or more")
		}
		if unclean && (t.BrokerId == nil || t.GetBrokerId() < 0) {
			return invalid("targets.broker_id", "not set", "the broker to elect, for an unclean election")
		}
	}
	return nil
}

// brokerID checks a broker's number.
func brokerID(id int32) error {
	if id < 0 {
		return invalid("broker_id", id, "0 or more")
	}
	return nil
}

// storageNamed checks what says which storage is meant.
func storageNamed(id int32, storage string) error {
	if err := brokerID(id); err != nil {
		return err
	}
	if n := len(storage); n < 1 || n > 64 {
		return invalid("storage_id", lengthOf(n), "the storage id that the broker is listed with, so that no other disk is meant")
	}
	return nil
}

// DrainBroker implements runnelv1.AdminServer.
func (l *listener) DrainBroker(ctx context.Context, req *runnelv1.DrainBrokerRequest) (*runnelv1.DrainBrokerResponse, error) {
	if err := brokerID(req.GetBrokerId()); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.DrainBrokerResponse, error) {
		return l.cfg.Cluster.DrainBroker(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DrainBrokerResponse, error) {
		return api.DrainBroker(ctx, req)
	})
}

// UndrainBroker implements runnelv1.AdminServer.
func (l *listener) UndrainBroker(ctx context.Context, req *runnelv1.UndrainBrokerRequest) (*runnelv1.UndrainBrokerResponse, error) {
	if err := brokerID(req.GetBrokerId()); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.UndrainBrokerResponse, error) {
		return l.cfg.Cluster.UndrainBroker(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.UndrainBrokerResponse, error) {
		return api.UndrainBroker(ctx, req)
	})
}

// DecommissionBroker implements runnelv1.AdminServer.
func (l *listener) DecommissionBroker(ctx context.Context, req *runnelv1.DecommissionBrokerRequest) (*runnelv1.DecommissionBrokerResponse, error) {
	if err := storageNamed(req.GetBrokerId(), req.GetStorageId()); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.DecommissionBrokerResponse, error) {
		return l.cfg.Cluster.DecommissionBroker(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DecommissionBrokerResponse, error) {
		return api.DecommissionBroker(ctx, req)
	})
}

// FenceBroker implements runnelv1.AdminServer.
func (l *listener) FenceBroker(ctx context.Context, req *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	if err := storageNamed(req.GetBrokerId(), req.GetStorageId()); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.FenceBrokerResponse, error) {
		return l.cfg.Cluster.FenceBroker(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.FenceBrokerResponse, error) {
		return api.FenceBroker(ctx, req)
	})
}

// UnfenceBroker implements runnelv1.AdminServer.
func (l *listener) UnfenceBroker(ctx context.Context, req *runnelv1.UnfenceBrokerRequest) (*runnelv1.UnfenceBrokerResponse, error) {
	if err := storageNamed(req.GetBrokerId(), req.GetStorageId()); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.UnfenceBrokerResponse, error) {
		return l.cfg.Cluster.UnfenceBroker(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.UnfenceBrokerResponse, error) {
		return api.UnfenceBroker(ctx, req)
	})
}

// SafeToStop implements runnelv1.AdminServer.
func (l *listener) SafeToStop(ctx context.Context, req *runnelv1.SafeToStopRequest) (*runnelv1.SafeToStopResponse, error) {
	if err := errors.Join(brokerID(req.GetBrokerId()), listLimit(req.GetLimit(), 100)); err != nil {
		return nil, err
	}
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.SafeToStopResponse, error) {
		return l.cfg.Cluster.SafeToStop(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.SafeToStopResponse, error) {
		return api.SafeToStop(ctx, req)
	})
}

// ListOperations implements runnelv1.AdminServer.
func (l *listener) ListOperations(ctx context.Context, req *runnelv1.ListOperationsRequest) (*runnelv1.ListOperationsResponse, error) {
	return atController(ctx, l, func(ctx context.Context) (*runnelv1.ListOperationsResponse, error) {
		return l.cfg.Cluster.ListOperations(ctx, req)
	}, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ListOperationsResponse, error) {
		return api.ListOperations(ctx, req)
	})
}

// DescribeConfig implements runnelv1.AdminServer.
func (l *listener) DescribeConfig(ctx context.Context, req *runnelv1.DescribeConfigRequest) (*runnelv1.DescribeConfigResponse, error) {
	if l.cfg.Cluster == nil {
		return nil, fmt.Errorf("%w: this broker does not manage clusters", errNotYet)
	}
	if id := req.GetBrokerId(); req.BrokerId != nil && id != l.cfg.BrokerID {
		if l.cfg.Metadata.Snapshot().broker(id) == nil {
			return nil, fmt.Errorf("%w: %d is not running", ErrUnknownBroker, id)
		}
		if !l.forwards(ctx) {
			return nil, &unreachableError{broker: id, cause: errors.New("calls are not forwarded")}
		}
		return ask(ctx, l, id, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.DescribeConfigResponse, error) {
			return runnelv1.NewAdminClient(cc).DescribeConfig(ctx, req)
		})
	}
	entries := slices.Clone(l.cfg.Cluster.DescribeConfig())
	slices.SortFunc(entries, func(a, b *runnelv1.ConfigEntry) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return &runnelv1.DescribeConfigResponse{BrokerId: l.cfg.BrokerID, Entries: entries}, nil
}

// DescribeCluster implements runnelv1.AdminServer. The controller knows most; without one this broker says what it knows itself. What only a
// broker itself has measured, each is asked for.
func (l *listener) DescribeCluster(ctx context.Context, req *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	resp := l.describeCluster()
	if !l.forwards(ctx) {
		return resp, nil
	}
	if id := l.cfg.Metadata.Snapshot().ControllerID; id >= 0 && id != l.cfg.BrokerID {
		if better, err := l.describedBy(ctx, id, controllerPatience, req); err == nil {
			measured(better, resp, l.cfg.BrokerID)
			resp = better
		}
	}
	var mu sync.Mutex
	fan(l.unmeasured(resp), func(id int32, _ []int) {
		if theirs, err := l.describedBy(ctx, id, loadPatience, req); err == nil {
			mu.Lock()
			defer mu.Unlock()
			measured(resp, theirs, id)
		}
	})
	return resp, nil
}

// describedBy asks another broker for the cluster as it knows it.
func (l *listener) describedBy(
	ctx context.Context, id int32, patience time.Duration, req *runnelv1.DescribeClusterRequest,
) (*runnelv1.DescribeClusterResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return ask(ctx, l, id, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.DescribeClusterResponse, error) {
		return runnelv1.NewAdminClient(cc).DescribeCluster(ctx, req)
	})
}
