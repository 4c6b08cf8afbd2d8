package metadata

import (
	"context"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Plans of marks that write nothing yet.
var (
	// planCollecting: what is in etcd is still what was there before.
	planCollecting = PlanID{15: 1}
	// planDiscarding: what is in etcd is nothing to go by.
	planDiscarding = PlanID{15: 2}
)

// overwritten reports whether the other keys are no source any more: a recovery has begun to write, or they are another cluster's.
func (c *Cluster) overwritten() bool { return c.Recovery != nil && c.Recovery.Plan != planCollecting }

// BeginRecovery marks the record of the cluster, at which brokers that use this etcd stop, and those that start wait: all of them then
// say what they have, and acknowledge nothing. It changes nothing else, works before Bootstrap, and has nothing to do under a mark. Restore
// goes on from there.
//
// An etcd without a cluster gets one of this id. One with another cluster is a *ForeignEtcdError, unless discard is that cluster's id:
// then it becomes this cluster's, and what it holds is nothing that a recovery goes by.
func (c *Client) BeginRecovery(ctx context.Context, clusterID, discard string) error {
	for {
		now, err := c.readCluster(ctx)
		if err != nil {
			return err
		}
		next := Cluster{ID: clusterID, Era: 1, FormatVersion: FormatVersion, FeatureLevel: 1, Created: c.clk.Now()}
		plan, revision := planDiscarding, int64(0)
		switch {
		case now == nil:
		case now.ID != clusterID && now.ID != discard:
			return &ForeignEtcdError{What: "cluster id", Want: clusterID, Got: now.ID}
		case now.ID != clusterID:
			revision = now.Revision
		case now.Recovery != nil:
			return nil
		default:
			next, plan, revision = *now, planCollecting, now.Revision
		}
		next.Recovery = &RecoveryMark{Plan: plan, Era: next.Era + 1, Started: c.clk.Now().Truncate(time.Millisecond)}
		value, err := encodeCluster(&next)
		if err != nil {
			return err
		}
		tx := write("restore_begin", c.keys.cluster(), value, unchanged(c.keys.cluster(), revision))
		out, err := c.commitUnverified(ctx, &tx)
		if err != nil || out.Applied {
			return err
		}
	}
}

// Registered lists the brokers that are registered, by id. It works before Bootstrap, on any etcd.
func (c *Client) Registered(ctx context.Context) ([]*Broker, error) {
	prefix := c.nobody().Key
	resp, err := c.page(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0)
	if err != nil {
		return nil, err
	}
	out := make([]*Broker, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		key := c.keys.parse(string(kv.Key))
		b, err := decodeBroker((*mvccpb.KeyValue)(kv), key.id)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Contents decodes a snapshot. What cannot be read is left out, and in the error.
func (s *Snapshot) Contents() (Contents, error) { return relative.Decode(s.Position, s.Keys) }
