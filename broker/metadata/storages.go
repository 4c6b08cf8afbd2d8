package metadata

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxMarks bounds the marks of one storage, which travel in one value.
const maxMarks = 8192

// storageTxn writes a registry entry if its key still has the revision that s was read at (0: absent).
func (c *Client) storageTxn(op string, s *Storage, guards ...clientv3.Cmp) (txn, error) {
	key := c.keys.storage(s.BrokerID)
	value, err := encodeStorage(s)
	return txn{
		op: op, compares: append([]clientv3.Cmp{unchanged(key, s.Revision)}, guards...),
		then: []clientv3.Op{clientv3.OpPut(key, value)}, otherwise: []clientv3.Op{clientv3.OpGet(key)}, mine: wrote(value),
	}, err
}

// DeclareEligible lets a registration lead and be in ISRs: s names its storage and its broker epoch. The caller has seen in the cache
// that no ISR holds anything that this storage cannot back any more. It applies only while that registration is alive, and while
// the entry and the tenure are unchanged. The cache shows the result from revision on.
func (c *Client) DeclareEligible(ctx context.Context, t Tenure, s *Storage) (revision int64, err error) {
	tx, err := c.storageTxn("declare_eligible", s, append(c.guard(t), unchanged(c.keys.broker(s.BrokerID), s.EligibleEpoch))...)
	if err != nil {
		return 0, err
	}
	return shown(c.commit(ctx, tx))
}

// MarkLogs records that logs of this broker lost what they had acknowledged. The controller then takes them out of their ISRs, and
// only that clears a mark. Marks of logs that are marked already change nothing.
func (c *Client) MarkLogs(ctx context.Context, reg *Registration, marks []Mark) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	for {
		s, err := c.storage(ctx, reg)
		if err != nil {
			return err
		}
		before := len(s.Marks)
		for _, m := range marks {
			if !s.Marked(m.Partition) {
				s.Marks = append(s.Marks, m)
			}
		}
		if len(s.Marks) > maxMarks {
			return invalid("marks", len(s.Marks), "at most 8192 damaged logs per broker")
		}
		if len(s.Marks) == before {
			return nil
		}
		tx, err := c.storageTxn("mark_logs", s, c.alive(reg)...)
		if err != nil {
			return err
		}
		tx.otherwise = append(tx.otherwise, clientv3.OpGet(c.keys.broker(reg.BrokerID())))
		out, err := c.commit(ctx, tx)
		if err != nil || out.ok {
			return err
		}
		if kvs := out.resp.Responses[1].GetResponseRange().GetKvs(); len(kvs) == 0 || kvs[0].ModRevision != reg.Epoch() {
			return notAlive(reg)
		}
	}
}

// storage reads this broker's registry entry; one that the controller has not written yet is made up, not eligible.
func (c *Client) storage(ctx context.Context, reg *Registration) (*Storage, error) {
	resp, err := c.get(ctx, "get_storage", c.keys.storage(reg.BrokerID()))
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return &Storage{BrokerID: reg.BrokerID(), StorageID: reg.Info().StorageID, State: StorageActive}, nil
	}
	return decodeStorage(resp.Kvs[0], reg.BrokerID())
}

// ClearMarks takes marked logs out of their ISRs: partitions are changed Clones without the marked member, and the same transaction
// drops their marks from s. All apply or none. At most MaxClearMarks at a time. The cache shows
// the result from revision on.
func (c *Client) ClearMarks(ctx context.Context, t Tenure, s *Storage, partitions []*Partition) (revision int64, err error) {
	if len(partitions) > MaxClearMarks {
		return 0, invalid("partitions", len(partitions), "at most 100 at a time")
	}
	next := *s
	next.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool {
		return slices.ContainsFunc(partitions, func(p *Partition) bool { return p.PartitionRef == m.Partition })
	})
	tx, err := c.storageTxn("clear_marks", &next, c.guard(t)...)
	if err != nil {
		return 0, err
	}
	for _, p := range partitions {
		item, err := c.partitionItem(p)
		if err != nil {
			return 0, err
		}
		tx.compares = append(tx.compares, item.compares...)
		tx.then = append(tx.then, clientv3.OpPut(item.key, item.value))
	}
	return shown(c.commit(ctx, tx))
}

// DropMarks forgets marks of logs that are in no ISR: their partition is gone, or never had them. It does nothing when the entry or
// the tenure had changed. The cache shows the result from revision on.
func (c *Client) DropMarks(ctx context.Context, t Tenure, s *Storage, refs []PartitionRef) (revision int64, err error) {
	next := *s
	next.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool { return slices.Contains(refs, m.Partition) })
	tx, err := c.storageTxn("drop_marks", &next, c.guard(t)...)
	if err != nil {
		return 0, err
	}
	return shown(c.commit(ctx, tx))
}

// MaxClearMarks is how many partitions ClearMarks takes.
const MaxClearMarks = 100
