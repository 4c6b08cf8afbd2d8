package metadata

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Snapshot is everything under a cluster's prefix at one revision, but for registrations, which belong to leases and name processes.
type Snapshot struct {
	// Cluster is the configured name, whose prefix was read.
	Cluster string
	// Position says where in the metadata's history this was. ClusterID and Era are empty when etcd had no cluster.
	Position Position
	// Recovering is true when a recovery was writing: what was there is neither what was before nor what comes after.
	Recovering bool
	// Taken is when it was read.
	Taken time.Time
	// Keys are without the prefix, ascending.
	Keys []KV
}

// SnapshotError says what is wrong with a cluster snapshot. It wraps ErrCorruptSnapshot or ErrSnapshotVersion.
type SnapshotError struct {
	// Offset is the byte at which it was noticed.
	Offset int
	Detail string
	Err    error
}

func (e *SnapshotError) Error() string {
	return fmt.Sprintf("%v: at byte %d: %s", e.Err, e.Offset, e.Detail)
}

// Unwrap returns the sentinel.
func (e *SnapshotError) Unwrap() error { return e.Err }

// SnapshotPrefix reads everything of the cluster at one revision, and returns it as EncodeSnapshot writes it. A cluster in recovery is an
// *UnavailableError that wraps ErrRecovering.
func (c *Client) SnapshotPrefix(ctx context.Context) ([]byte, error) {
	before := c.Position()
	if before.EtcdClusterID == 0 {
		return nil, fmt.Errorf("snapshot: %w", ErrNotBootstrapped)
	}
	s, err := c.ReadPrefix(ctx)
	if err != nil {
		return nil, err
	}
	switch now := s.Position; {
	case s.Recovering:
		return nil, &UnavailableError{Op: "snapshot", Err: ErrRecovering}
	case now.ClusterID != before.ClusterID:
		return nil, &ForeignEtcdError{What: "cluster id", Want: before.ClusterID, Got: now.ClusterID}
	case now.EtcdClusterID != before.EtcdClusterID:
		return nil, &ForeignEtcdError{What: "etcd cluster id", Want: hex(before.EtcdClusterID), Got: hex(now.EtcdClusterID)}
	case now.Before(before):
		return nil, &OlderEtcdError{Want: before, Got: now}
	}
	return EncodeSnapshot(s)
}

// ReadPrefix reads everything of the cluster at one revision, whichever etcd this is and however old: it works before Bootstrap. It is
// what a recovery begins with.
func (c *Client) ReadPrefix(ctx context.Context) (*Snapshot, error) {
	prefix := c.keys.prefix
	s := &Snapshot{Cluster: c.cfg.Cluster, Taken: c.clk.Now()}
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from := prefix; ; {
		resp, err := c.page(ctx, from, end, s.Position.Revision)
		if err != nil {
			return nil, err
		}
		if s.Position.Revision == 0 {
			s.Position.Revision, s.Position.EtcdClusterID = resp.Header.Revision, resp.Header.ClusterId
		}
		for _, kv := range resp.Kvs {
			switch key := c.keys.parse(string(kv.Key)); key.kind { //nolint:exhaustive // the others are kept as they are
			case kindBroker:
				continue
			case kindCluster:
				cluster, err := decodeCluster(kv)
				if err != nil {
					return nil, err
				}
				s.Position.ClusterID, s.Position.Era, s.Recovering = cluster.ID, cluster.Era, cluster.overwritten()
			}
			s.Keys = append(s.Keys, KV{Key: string(kv.Key[len(prefix):]), Value: string(kv.Value), Revision: kv.ModRevision})
		}
		if !resp.More {
			return s, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// page reads some keys of a range at a revision; 0: now.
func (c *Client) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	return c.getRaw(ctx, "snapshot", from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(revision))
}
