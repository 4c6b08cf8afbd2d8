package metadata

import (
	"context"
	"fmt"
	"slices"
)

// ISRChange is a leader's wish for another in-sync set.
type ISRChange struct {
	// Partition is the record that the wish is based on; its revision is compared.
	Partition *Partition
	// ISR is the whole new set, the leader's own entry included.
	ISR []Member
	// Added names, for each member that is not in Partition.ISR, the registration under which it acknowledged.
	Added []AddedMember
	// Unsettled says that an earlier call with this change did not learn its outcome. It then gets settled in any case: if the change may not
	// be made any more, by writing the record as it was, which no attempt under way survives.
	Unsettled bool
}

// AddedMember is the registration that a new member named when it subscribed, and acknowledged under.
type AddedMember struct {
	BrokerID    int32
	BrokerEpoch int64
}

// ISRResult is what became of an ISRChange.
type ISRResult struct {
	// Applied is true when the record has the wished set in the same leader epoch.
	Applied bool
	// Partition is the record after the change, or the one that overtook it; nil when the key is gone. When it still has the revision that the
	// change was based on, something else had changed: a registration or a registry entry of an added member.
	Partition *Partition
	// Err is nil when the outcome is known. ErrNotEligible, ErrConflict and ErrInvalidArgument: it was not asked for. ErrNotRegistered: nothing
	// was changed under a registration that is over. An *UnavailableError with Unsettled: try again, with Unsettled.
	Err error
}

// ChangeISR writes a partition's in-sync set. It compares the partition's revision, the leader's own registration, and for each added member
// the registration that it named and its registry entry, which s shows to be eligible under that registration.
func (b Builder) ChangeISR(s *State, reg RegRef, ch ISRChange) (Tx, error) {
	tx, err := b.isrItem(s, reg, ch)
	if err == nil {
		tx.Compares = append(tx.Compares, b.alive(reg))
	}
	return tx, err
}

// ChangeISRs is ChangeISR for many partitions. errs has an entry per change; those without error are in txs, nested in their order.
func (b Builder) ChangeISRs(s *State, reg RegRef, changes []ISRChange) (txs []Tx, errs []error) {
	errs = make([]error, len(changes))
	items := make([]Tx, 0, len(changes))
	seen := make(map[PartitionRef]bool, len(changes))
	for i, ch := range changes {
		ref := ch.Partition.PartitionRef
		if seen[ref] {
			errs[i] = fmt.Errorf("%w: two changes of partition %s/%d at once", ErrConflict, ref.TopicID, ref.Partition)
			continue
		}
		seen[ref] = true
		item, err := b.isrItem(s, reg, ch)
		if err != nil {
			errs[i] = err
			continue
		}
		items = append(items, item)
	}
	return nest("change_isr", []Compare{b.alive(reg)}, items), errs
}

// isrItem is ChangeISR without the comparison of the leader's registration.
func (b Builder) isrItem(s *State, reg RegRef, ch ISRChange) (Tx, error) {
	p := ch.Partition
	if err := ch.validate(reg); err != nil {
		return Tx{}, err
	}
	next := p.Clone()
	next.ISR = slices.Clone(ch.ISR)
	more, err := b.admissions(s, ch)
	if err != nil {
		if !ch.Unsettled {
			return Tx{}, err
		}
		next, more = p, nil
	}
	return b.partition("change_isr", next, more...)
}

// admissions are the compares by which members may be added.
//
// Invariant 5 (growth): the registration is the one that the member acknowledged under, not the one that the leader happens to know, and the
// registry entry is one that calls it eligible, names its storage and has no mark for the log.
func (b Builder) admissions(s *State, ch ISRChange) ([]Compare, error) {
	more := make([]Compare, 0, 2*len(ch.Added))
	for _, a := range ch.Added {
		st, ok := s.Storage(a.BrokerID)
		m := ch.ISR[slices.IndexFunc(ch.ISR, func(m Member) bool { return m.BrokerID == a.BrokerID })]
		refuse := func(why string, args ...any) ([]Compare, error) {
			return nil, fmt.Errorf("%w: broker %d, broker epoch %d, for partition %s/%d: %s",
				ErrNotEligible, a.BrokerID, a.BrokerEpoch, ch.Partition.TopicID, ch.Partition.Partition, fmt.Sprintf(why, args...))
		}
		switch {
		case !ok:
			return refuse("it has no registry entry")
		case st.State != StorageActive && st.State != StorageDraining:
			return refuse("its storage is %s", st.State)
		case st.EligibleEpoch != a.BrokerEpoch:
			return refuse("eligible is broker epoch %d", st.EligibleEpoch)
		case st.StorageID != m.StorageID:
			return refuse("its storage is %s, the member names %s", st.StorageID, m.StorageID)
		case st.Marked(ch.Partition.PartitionRef):
			return refuse("its log is marked as damaged")
		}
		more = append(more, unchanged(b.keys.broker(a.BrokerID), a.BrokerEpoch), unchanged(b.keys.storage(a.BrokerID), st.Revision))
	}
	return more, nil
}

// validate checks what the change says about itself.
func (ch ISRChange) validate(reg RegRef) error {
	p := ch.Partition
	if p.Leader != reg.BrokerID || p.LeaderBrokerEpoch != reg.Epoch {
		return fmt.Errorf("%w: partition %s/%d is led by broker %d under broker epoch %d, not by broker %d under %d",
			ErrConflict, p.TopicID, p.Partition, p.Leader, p.LeaderBrokerEpoch, reg.BrokerID, reg.Epoch)
	}
	fault := func(value any, limit string) error {
		return invalid(fmt.Sprintf("isr of %s/%d", p.TopicID, p.Partition), value, limit)
	}
	added := 0
	for i, m := range ch.ISR {
		switch {
		case slices.ContainsFunc(ch.ISR[:i], func(o Member) bool { return o.BrokerID == m.BrokerID }):
			return fault(m.BrokerID, "each broker once")
		case !p.HasReplica(m.BrokerID):
			return fault(m.BrokerID, fmt.Sprintf("brokers with a replica: %d", p.Replicas))
		case slices.Contains(p.ISR, m):
		case !slices.ContainsFunc(ch.Added, func(a AddedMember) bool { return a.BrokerID == m.BrokerID }):
			return fault(m.BrokerID, "a registration for each member that is added")
		default:
			added++
		}
	}
	if added != len(ch.Added) {
		return fault(fmt.Sprintf("%d registrations for %d added members", len(ch.Added), added), "one for each")
	}
	if own := slices.IndexFunc(ch.ISR, func(m Member) bool { return m.BrokerID == reg.BrokerID }); own < 0 || !slices.Contains(p.ISR, ch.ISR[own]) {
		return fault(fmt.Sprintf("%d members", len(ch.ISR)), fmt.Sprintf("the leader's own entry of broker %d, unchanged", reg.BrokerID))
	}
	if added == 0 && len(ch.ISR) == len(p.ISR) {
		return fault(fmt.Sprintf("%d members", len(ch.ISR)), "another set than the present one")
	}
	return nil
}

// ISRResult reads the outcome of a transaction that ChangeISR made, or of one that is nested in those of ChangeISRs.
func (b Builder) ISRResult(ch ISRChange, tx Tx, out Outcome) ISRResult {
	kv := KV{Key: tx.Then[0].Key, Value: tx.Then[0].Value, Revision: out.Revision}
	if !out.Applied {
		kv = out.Answer.Reads[0]
	}
	if kv.Revision == 0 {
		return ISRResult{}
	}
	c, err := b.Decode(Position{}, []KV{kv})
	if err != nil {
		return ISRResult{Err: err}
	}
	p := c.Partitions[0]
	// Invariant: the record says whether the change was made, not which of several attempts the answer belongs to.
	applied := p.LeaderEpoch == ch.Partition.LeaderEpoch && p.Leader == ch.Partition.Leader && slices.Equal(p.ISR, ch.ISR)
	return ISRResult{Applied: applied, Partition: p}
}

// ChangeISRs makes changes of in-sync sets of partitions that this broker leads, many in one transaction, of which each applies or fails by
// itself. s is the newest State: it shows whether added members are eligible. There is a result per change; the error is the first
// among them that is not about one change alone.
//
// A change whose outcome is not known counts as pending: its added members bound the high watermark, and its removed ones still do.
func (c *Client) ChangeISRs(ctx context.Context, reg *Registration, s *State, changes []ISRChange) ([]ISRResult, error) {
	ref := reg.Ref()
	txs, errs := c.build.ChangeISRs(s, ref, changes)
	results := make([]ISRResult, len(changes))
	asked := make([]int, 0, len(changes))
	for i, err := range errs {
		results[i].Err = err
		if err == nil {
			asked = append(asked, i)
		}
	}
	_, outcomes, err := c.bulkOutcomes(ctx, txs, notAlive(ref))
	for _, tx := range txs {
		for _, item := range tx.Nested {
			i := asked[0]
			asked = asked[1:]
			if len(outcomes) == 0 {
				results[i].Err = err // of this transaction, or of one before it
				continue
			}
			results[i] = c.build.ISRResult(changes[i], item, outcomes[0])
			outcomes = outcomes[1:]
		}
	}
	return results, err
}
