package metadata

import (
	"context"
	"slices"
)

// maxMarks bounds the marks of one storage, which travel in one value.
const maxMarks = 8192

// storage writes a registry entry if its key still has the revision that s was read at (0: absent).
func (b Builder) storage(op string, s *Storage, guards ...Compare) (Tx, error) {
	key := b.keys.storage(s.BrokerID)
	value, err := encodeStorage(s)
	return write(op, key, value, append([]Compare{unchanged(key, s.Revision)}, guards...)...), err
}

// commitShown carries out a transaction that was built, and returns the revision from which the cache shows what it did.
func (c *Client) commitShown(ctx context.Context, tx Tx, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return shown(c.commit(ctx, tx))
}

// DeclareEligible lets a registration lead and be in ISRs: s names its storage and its broker epoch. It applies only while that
// registration is alive.
func (b Builder) DeclareEligible(t Tenure, s *Storage) (Tx, error) {
	return b.storage("declare_eligible", s, b.guard(t, unchanged(b.keys.broker(s.BrokerID), s.EligibleEpoch))...)
}

// DeclareEligible lets a registration lead and be in ISRs: s names its storage and its broker epoch. The caller has seen in the cache
// that no ISR holds anything that this storage cannot back any more. It applies only while that registration is alive, and while
// the entry and the tenure are unchanged. The cache shows the result from revision on.
func (c *Client) DeclareEligible(ctx context.Context, t Tenure, s *Storage) (revision int64, err error) {
	tx, err := c.build.DeclareEligible(t, s)
	return c.commitShown(ctx, tx, err)
}

// SetStorageState writes a registry entry with another state: s is a changed copy of what was read.
func (b Builder) SetStorageState(t Tenure, s *Storage) (Tx, error) {
	if s.State < StorageActive || s.State > StorageFenced {
		return Tx{}, invalid("storage state", int32(s.State), "1 (active) to 4 (fenced)")
	}
	return b.storage("set_storage_state", s, b.guard(t)...)
}

// SetStorageState begins or ends the draining, decommissioning or fencing of a storage: s is a changed copy of what the cache shows. It
// applies while the entry and the tenure are unchanged; growth of in-sync sets that is under way compares the entry, and dies. The
// cache shows the result from revision on.
func (c *Client) SetStorageState(ctx context.Context, t Tenure, s *Storage) (revision int64, err error) {
	tx, err := c.build.SetStorageState(t, s)
	return c.commitShown(ctx, tx, err)
}

// MarkLogs adds marks to a broker's own registry entry, which is s as it was read. ok is false when all are there already.
func (b Builder) MarkLogs(reg RegRef, s *Storage, marks []Mark) (tx Tx, ok bool, err error) {
	next := *s
	next.Marks = slices.Clone(s.Marks)
	for _, m := range marks {
		if !next.Marked(m.Partition) {
			next.Marks = append(next.Marks, m)
		}
	}
	switch {
	case len(next.Marks) > maxMarks:
		return Tx{}, false, invalid("marks", len(next.Marks), "at most 8192 damaged logs per broker")
	case len(next.Marks) == len(s.Marks):
		return Tx{}, false, nil
	}
	tx, err = b.storage("mark_logs", &next, b.alive(reg))
	tx.Reads = append(tx.Reads, b.keys.broker(reg.BrokerID))
	return tx, err == nil, err
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
		ref := reg.Ref()
		tx, ok, err := c.build.MarkLogs(ref, s, marks)
		if err != nil || !ok {
			return err
		}
		out, err := c.commit(ctx, tx)
		if err != nil || out.Applied {
			return err
		}
		if out.Answer.Reads[1].Revision != ref.Epoch {
			return notAlive(ref)
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

// ClearMarks takes marked logs out of their ISRs and drops their marks, all or none.
func (b Builder) ClearMarks(t Tenure, s *Storage, partitions []*Partition) (Tx, error) {
	if len(partitions) > MaxClearMarks {
		return Tx{}, invalid("partitions", len(partitions), "at most 100 at a time")
	}
	next := *s
	next.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool {
		return slices.ContainsFunc(partitions, func(p *Partition) bool { return p.PartitionRef == m.Partition })
	})
	tx, err := b.storage("clear_marks", &next, b.guard(t)...)
	if err != nil {
		return Tx{}, err
	}
	for _, p := range partitions {
		item, err := b.partition("", p)
		if err != nil {
			return Tx{}, err
		}
		tx.Compares, tx.Then = append(tx.Compares, item.Compares...), append(tx.Then, item.Then...)
	}
	return tx, nil
}

// ClearMarks takes marked logs out of their ISRs: partitions are changed Clones without the marked member, and the same transaction
// drops their marks from s. All apply or none. At most MaxClearMarks at a time. The cache shows
// the result from revision on.
func (c *Client) ClearMarks(ctx context.Context, t Tenure, s *Storage, partitions []*Partition) (revision int64, err error) {
	tx, err := c.build.ClearMarks(t, s, partitions)
	return c.commitShown(ctx, tx, err)
}

// DropMarks forgets marks of logs that are in no ISR.
func (b Builder) DropMarks(t Tenure, s *Storage, refs []PartitionRef) (Tx, error) {
	next := *s
	next.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool { return slices.Contains(refs, m.Partition) })
	return b.storage("drop_marks", &next, b.guard(t)...)
}

// DropMarks forgets marks of logs that are in no ISR: their partition is gone, or never had them. It does nothing when the entry or
// the tenure had changed. The cache shows the result from revision on.
func (c *Client) DropMarks(ctx context.Context, t Tenure, s *Storage, refs []PartitionRef) (revision int64, err error) {
	tx, err := c.build.DropMarks(t, s, refs)
	return c.commitShown(ctx, tx, err)
}

// MaxClearMarks is how many partitions ClearMarks takes.
const MaxClearMarks = 100
