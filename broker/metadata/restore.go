package metadata

import (
	"context"
	"fmt"
	"slices"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Bounds of one transaction of a restore.
const (
	restoreOps   = 100
	restoreBytes = 512 << 10
)

// BrokersAliveError names brokers that are registered in the etcd that is to be recovered. They have to be stopped. It wraps ErrConflict.
type BrokersAliveError struct{ Brokers []int32 }

func (e *BrokersAliveError) Error() string {
	return fmt.Sprintf("%v: brokers %d are registered; stop them, and wait until their leases have expired", ErrConflict, e.Brokers)
}

// Unwrap returns ErrConflict.
func (e *BrokersAliveError) Unwrap() error { return ErrConflict }

// Restore makes etcd hold what a recovery has planned. It works before Bootstrap and needs none. All brokers have to be stopped.
//
// It first marks the cluster's record, then removes and writes keys, and at last replaces the record by one of the new era. Every transaction compares
// the record's revision, and that nobody is registered; a registration compares the record's revision as well. So brokers wait from the mark to the
// new era, and a second restore that takes the mark over ends the first one (ErrConflict).
//
// Crash windows: before the mark nothing has changed. After it, Restore with the same plan goes on where it was, and with another plan starts
// over; what etcd has by then is no source for a plan. After the new era the same plan has nothing to do.
//
// Errors: *ForeignEtcdError when etcd has another cluster, *BrokersAliveError, ErrConflict when it has come as far as the plan's era by another
// recovery, *UnavailableError.
func (c *Client) Restore(ctx context.Context, r *Recovery) error {
	mark, done, err := c.markRecovery(ctx, r)
	if err != nil || done {
		return err
	}
	have, err := c.ReadPrefix(ctx)
	if err != nil {
		return err
	}
	guards := []Compare{c.build.ClusterUnchanged(mark), c.nobody()}
	puts := c.difference(r, have)
	c.lg.Info("recovering the metadata", "era", r.Era, "keys", len(r.Keys), "to_write", len(puts))
	for len(puts) > 0 {
		n, size := 0, 0
		for n < len(puts) && n < restoreOps && (n == 0 || size+len(puts[n].Value) <= restoreBytes) {
			size += len(puts[n].Value) + len(puts[n].Key)
			n++
		}
		// It may be repeated although it compares nothing that it writes: it writes the same again, and nothing once the record has moved on.
		if err := c.restoreTx(ctx, Tx{Op: "restore", Compares: guards, Then: puts[:n:n], Reads: []string{c.keys.cluster()}}); err != nil {
			return err
		}
		puts = puts[n:]
	}
	final := r.cluster
	final.RecoveredBy = r.Plan
	value, err := encodeCluster(&final)
	if err != nil {
		return err
	}
	return c.restoreTx(ctx, write("restore_finish", c.keys.cluster(), value, guards...))
}

// nobody compares that no broker is registered.
func (c *Client) nobody() Compare { return Compare{Key: c.keys.prefix + "brokers/", Prefix: true} }

// markRecovery puts the mark on the cluster's record and returns its revision. done is true when this plan has been carried out already.
func (c *Client) markRecovery(ctx context.Context, r *Recovery) (revision int64, done bool, err error) {
	for {
		if err := c.nobodyAlive(ctx); err != nil {
			return 0, false, err
		}
		now, err := c.readCluster(ctx)
		if err != nil {
			return 0, false, err
		}
		var next Cluster
		switch {
		case now == nil:
			next = r.cluster
			next.Era = r.Era - 1
		case now.ID != r.ClusterID:
			return 0, false, &ForeignEtcdError{What: "cluster id", Want: r.ClusterID, Got: now.ID}
		case now.Era == r.Era && now.RecoveredBy == r.Plan:
			return 0, true, nil
		case now.Era >= r.Era:
			return 0, false, fmt.Errorf("%w: etcd is in era %d, the plan begins era %d: plan again", ErrConflict, now.Era, r.Era)
		case now.Recovery != nil && now.Recovery.Plan == r.Plan:
			return now.Revision, false, nil
		default:
			next = *now
			revision = now.Revision
		}
		next.Recovery = &RecoveryMark{Plan: r.Plan, Era: r.Era, Started: c.clk.Now().Truncate(time.Millisecond)}
		value, err := encodeCluster(&next)
		if err != nil {
			return 0, false, err
		}
		tx := write("restore_mark", c.keys.cluster(), value, unchanged(c.keys.cluster(), revision), c.nobody())
		out, err := c.commitUnverified(ctx, &tx)
		if err != nil {
			return 0, false, err
		}
		if out.Applied {
			return out.Revision, false, nil
		}
		revision = 0
	}
}

// restoreTx carries out one transaction under the mark.
func (c *Client) restoreTx(ctx context.Context, tx Tx) error {
	out, err := c.commitUnverified(ctx, &tx)
	if err != nil || out.Applied {
		return err
	}
	if err := c.nobodyAlive(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: the record of the cluster has changed: another recovery has taken over", ErrConflict)
}

// nobodyAlive is a *BrokersAliveError when brokers are registered.
func (c *Client) nobodyAlive(ctx context.Context) error {
	prefix := c.nobody().Key
	resp, err := c.page(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	e := &BrokersAliveError{}
	for _, kv := range resp.Kvs {
		e.Brokers = append(e.Brokers, c.keys.parse(string(kv.Key)).id)
	}
	slices.Sort(e.Brokers)
	return e
}

// readCluster reads the cluster's record, nil when there is none.
func (c *Client) readCluster(ctx context.Context) (*Cluster, error) {
	key := c.keys.cluster()
	resp, err := c.page(ctx, key, key+"\x00", 0)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return decodeCluster((*mvccpb.KeyValue)(resp.Kvs[0]))
}

// commitUnverified settles a transaction without asking where the answer comes from: recovery is about an etcd that nobody knows.
func (c *Client) commitUnverified(ctx context.Context, tx *Tx) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	out, _, err := c.commitRaw(ctx, tx)
	return out, err
}

// difference is what has to be written and deleted so that etcd holds exactly what the recovery says, beside the cluster's record.
func (c *Client) difference(r *Recovery, have *Snapshot) []Put {
	old := make(map[string]string, len(have.Keys))
	for _, kv := range have.Keys {
		old[kv.Key] = kv.Value
	}
	delete(old, relative.keys.cluster())
	var out []Put
	for _, kv := range r.Keys {
		if value, ok := old[kv.Key]; !ok || value != kv.Value {
			out = append(out, Put{Key: c.keys.prefix + kv.Key, Value: kv.Value})
		}
		delete(old, kv.Key)
	}
	for _, kv := range have.Keys {
		if _, left := old[kv.Key]; left {
			out = append(out, Put{Key: c.keys.prefix + kv.Key, Delete: true})
		}
	}
	return out
}
