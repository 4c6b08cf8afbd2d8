package controller

import (
	"context"
	"fmt"
	"slices"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// rebases is how often a request is planned anew because what it was planned on had changed.
const rebases = 8

// view is what a request goes by; ErrNotController unless this broker is the controller.
func (c *Controller) view() (*metadata.State, Input, metadata.Tenure, error) {
	s := c.cache.Snapshot()
	tenure, ok := c.inOffice(s)
	if !ok {
		e := &NotControllerError{Controller: metadata.NoLeader}
		if now := s.Controller(); now != nil && !metadata.ControllerFree(s) {
			e.Controller = now.BrokerID
		}
		return nil, Input{}, tenure, e
	}
	return s, Input{Self: c.reg.BrokerID(), Health: HealthOf(c.health()), Settings: c.settings}, tenure, nil
}

// planner returns what a partition was, and what it has to become: nil for nothing.
type planner func(*metadata.State, *Input, int) (p, next *metadata.Partition, err error)

// writing is one of the client's bulk changes of partitions.
type writing func(context.Context, metadata.Tenure, []*metadata.Partition) (metadata.BulkResult, error)

// outcome of one item of a request.
type outcome struct {
	// p is the partition before, nil if it does not exist; next the record that was written, nil if nothing was to do.
	p, next *metadata.Partition
	err     error
}

// writeEach plans and writes n items, those anew that were overtaken. An error concerns all that were not written by then.
func (c *Controller) writeEach(ctx context.Context, n int, plan planner, write writing) ([]outcome, error) {
	out := make([]outcome, n)
	open := make([]int, n)
	for i := range open {
		open[i] = i
	}
	for range rebases {
		s, in, tenure, err := c.view()
		if err != nil {
			return out, err
		}
		var items []*metadata.Partition
		var of []int
		for _, i := range open {
			p, next, err := plan(s, &in, i)
			out[i] = outcome{p: p, err: err}
			if next != nil && err == nil {
				items, of = append(items, next), append(of, i)
			}
		}
		if len(items) == 0 {
			return out, nil
		}
		r, err := write(ctx, tenure, items)
		open = open[:0]
		for k, i := range of {
			if k < len(r.Applied) && r.Applied[k] {
				out[i].next = items[k]
				continue
			}
			out[i].err = fmt.Errorf("%w: partition %s/%d keeps changing", metadata.ErrConflict, items[k].TopicID, items[k].Partition)
			open = append(open, i)
		}
		if err == nil {
			_, err = c.cache.WaitRevision(ctx, r.Revision)
		}
		if err != nil || len(open) == 0 {
			return out, err
		}
	}
	return out, nil
}

// Reassign begins to move partitions. The answer has an entry per request, in order; Err there says that one failed while others may have
// been begun. Requests for one partition twice are refused as a whole. It returns once the beginnings are recorded.
func (c *Controller) Reassign(ctx context.Context, requests []ReassignRequest) ([]Reassignment, error) {
	if err := distinct(requests); err != nil {
		return nil, err
	}
	var pl *placer
	var on *metadata.State
	outcomes, err := c.writeEach(ctx, len(requests), func(s *metadata.State, in *Input, i int) (p, next *metadata.Partition, err error) {
		p, next, err = planReassign(s, c.defaults, in, requests[i])
		if next == nil || err != nil {
			return p, nil, err
		}
		if on != s {
			pl, on = newPlacer(s, in), s
			pl.count()
		}
		if !pl.admit(p, next) {
			return p, nil, fmt.Errorf("%w: at most %d at a time to or from one broker, of %d",
				ErrBusy, c.settings.MaxMoves, slices.Concat(next.Adding, next.Removing))
		}
		return p, next, nil
	}, c.client.SetReassignment)
	return c.described(outcomes, requests, "started"), err
}

func distinct(requests []ReassignRequest) error {
	seen := make(map[metadata.PartitionRef]bool, len(requests))
	for _, r := range requests {
		if seen[r.Partition] {
			return argument("partition", fmt.Sprintf("%s/%d twice", r.Partition.TopicID, r.Partition.Partition), "each partition once")
		}
		seen[r.Partition] = true
	}
	return nil
}

func (c *Controller) described(outcomes []outcome, requests []ReassignRequest, event string) []Reassignment {
	s, in := c.cache.Snapshot(), Input{Health: HealthOf(c.health())}
	out := make([]Reassignment, len(outcomes))
	for i, o := range outcomes {
		out[i] = Reassignment{Partition: requests[i].Partition, Bytes: -1}
		if p := o.next; p != nil {
			c.metrics.reassigned.WithLabelValues(event).Inc()
			out[i] = describe(s, &in, p)
		} else if o.p != nil {
			out[i] = describe(s, &in, o.p)
		}
		if o.p != nil {
			out[i].Before = Holders(o.p)
		}
		out[i].Err = o.err
	}
	return out
}

// CancelReassign takes partitions back to the replicas that they had; none means all that are moving. The answer is as of Reassign.
func (c *Controller) CancelReassign(ctx context.Context, refs []metadata.PartitionRef) ([]Reassignment, error) {
	s, in, _, err := c.view()
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		for _, r := range Reassignments(s, in) {
			refs = append(refs, r.Partition)
		}
	}
	requests := make([]ReassignRequest, len(refs))
	for i, ref := range refs {
		requests[i].Partition = ref
	}
	if err := distinct(requests); err != nil {
		return nil, err
	}
	outcomes, err := c.writeEach(ctx, len(refs), func(s *metadata.State, _ *Input, i int) (p, next *metadata.Partition, err error) {
		if _, p, err = lookup(s, refs[i]); err != nil {
			return nil, nil, err
		}
		if next = Cancel(p); next == nil {
			return p, nil, fmt.Errorf("%w: %s/%d", ErrNoReassignment, refs[i].TopicID, refs[i].Partition)
		}
		return p, next, nil
	}, c.client.SetReassignment)
	return c.described(outcomes, requests, "cancelled"), err
}

// Reassignments lists what is moving.
func (c *Controller) Reassignments() ([]Reassignment, error) {
	s, in, _, err := c.view()
	if err != nil {
		return nil, err
	}
	return Reassignments(s, in), nil
}

// PreviewReassign says what requests would do. sizes are the bytes of partitions' logs, where they are known.
func (c *Controller) PreviewReassign(requests []ReassignRequest, sizes map[metadata.PartitionRef]int64) ([]Reassignment, error) {
	if err := distinct(requests); err != nil {
		return nil, err
	}
	s, in, _, err := c.view()
	if err != nil {
		return nil, err
	}
	return PreviewReassign(s, c.defaults, in, requests, sizes), nil
}

// Elected is the outcome for one partition of ElectLeaders.
type Elected struct {
	Partition metadata.PartitionRef
	// Before and After are leaders; they are the same when nothing was to do, or Err says why it was not done.
	Before, After int32
	// Epoch is the leader epoch after.
	Epoch int32
	Err   error
}

// ElectLeaders gives partitions to their preferred leaders, the first of their replicas. Without refs it does so for all that can, and the
// answer lists those that changed. With dryRun it only says what it would do.
func (c *Controller) ElectLeaders(ctx context.Context, refs []metadata.PartitionRef, dryRun bool) ([]Elected, error) {
	s, in, _, err := c.view()
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		each(s, func(_ *metadata.Topic, p *metadata.Partition) {
			if _, next, err := planPreferred(s, &in, p.PartitionRef); next != nil && err == nil {
				refs = append(refs, p.PartitionRef)
			}
		})
	}
	plan := func(s *metadata.State, in *Input, i int) (p, next *metadata.Partition, err error) {
		return planPreferred(s, in, refs[i])
	}
	outcomes := make([]outcome, len(refs))
	if dryRun {
		for i := range refs {
			o := &outcomes[i]
			o.p, o.next, o.err = plan(s, &in, i)
		}
	} else if outcomes, err = c.writeEach(ctx, len(refs), plan, c.client.UpdatePartitions); err == nil {
		for _, o := range outcomes {
			if o.next != nil {
				c.metrics.moves.WithLabelValues("request").Inc()
			}
		}
	}
	out := make([]Elected, len(refs))
	for i, o := range outcomes {
		out[i] = Elected{Partition: refs[i], Before: metadata.NoLeader, After: metadata.NoLeader, Err: o.err}
		if o.p != nil {
			out[i].Before, out[i].After, out[i].Epoch = o.p.Leader, o.p.Leader, o.p.LeaderEpoch
		}
		if o.next != nil {
			out[i].After, out[i].Epoch = o.next.Leader, o.next.LeaderEpoch
		}
	}
	return out, err
}

// AllowUnclean checks that an unclean election makes sense (CheckUnclean), and writes the audit line. by names who asked. The named
// broker then carries it out: metadata.Client.AcceptUnclean.
func (c *Controller) AllowUnclean(ref metadata.PartitionRef, broker int32, by string) error {
	s, in, _, err := c.view()
	if err != nil {
		return err
	}
	if err := CheckUnclean(s, in, ref, broker); err != nil {
		return err
	}
	p, _ := s.Partition(ref.TopicID, ref.Partition)
	c.lg.Warn("unclean election: acknowledged records may be lost", "audit", true, "by", by, "topic_id", ref.TopicID,
		"partition", ref.Partition, "broker", broker, "leader", p.Leader, "leader_epoch", p.LeaderEpoch, "in_sync", brokersOf(p.ISR))
	return nil
}

// changeStorage plans and writes a registry entry, anew when it was overtaken. plan returns nil when nothing is to do.
func (c *Controller) changeStorage(ctx context.Context, plan func(*metadata.State, *Input) (*metadata.Storage, error)) error {
	for range rebases {
		s, in, tenure, err := c.view()
		if err != nil {
			return err
		}
		next, err := plan(s, &in)
		if next == nil || err != nil {
			return err
		}
		revision, err := c.client.SetStorageState(ctx, tenure, next)
		if err != nil {
			return err
		}
		if s, err = c.cache.WaitRevision(ctx, revision); err != nil {
			return err
		}
		if now, ok := s.Storage(next.BrokerID); ok && now.State == next.State && now.StorageID == next.StorageID {
			c.lg.Info("storage state changed", "audit", true, "broker", next.BrokerID, "storage", next.StorageID, "state", stateName(next.State))
			return nil
		}
	}
	return fmt.Errorf("%w: a registry entry keeps changing", metadata.ErrConflict)
}

// Drain begins to move everything away from a broker, leaderships first, and keeps new replicas away until Undrain. It returns how much
// there is to do, without waiting for it. With dryRun it only says that. ErrUnknownBroker, ErrWrongState.
func (c *Controller) Drain(ctx context.Context, id int32, dryRun bool) (DrainStatus, error) {
	s, in, _, err := c.view()
	if err != nil {
		return DrainStatus{}, err
	}
	plan := func(s *metadata.State, _ *Input) (*metadata.Storage, error) {
		return change(s, id, metadata.StorageDraining, metadata.StorageActive)
	}
	if dryRun {
		_, err = plan(s, &in)
	} else {
		err = c.changeStorage(ctx, plan)
	}
	if err != nil {
		return DrainStatus{}, err
	}
	return DrainProgress(c.cache.Snapshot(), in, id)
}

// Undrain lets a broker hold replicas again, also one that was decommissioned. What has left does not come back by itself.
// ErrUnknownBroker, ErrWrongState.
func (c *Controller) Undrain(ctx context.Context, id int32) error {
	return c.changeStorage(ctx, func(s *metadata.State, _ *Input) (*metadata.Storage, error) {
		return change(s, id, metadata.StorageActive, metadata.StorageDraining, metadata.StorageDecommissioned)
	})
}

// Decommission declares that a broker's storage holds nothing, and will not come back. *NotEmptyError, ErrBrokerLive, ErrOtherStorage,
// ErrUnknownBroker, ErrWrongState.
func (c *Controller) Decommission(ctx context.Context, id int32, storage ids.StorageID, dryRun bool) error {
	plan := func(s *metadata.State, _ *Input) (*metadata.Storage, error) { return planDecommission(s, id, storage) }
	return c.changeOrTry(ctx, dryRun, plan)
}

// Fence declares a storage lost: its replicas leave every in-sync set, below the minimum too. The answer lists the partitions that are
// left with fewer in-sync replicas than they need. *UnsafeError when some are left with none, unless acceptLoss; ErrOtherStorage,
// ErrUnknownBroker, ErrWrongState.
func (c *Controller) Fence(ctx context.Context, id int32, storage ids.StorageID, acceptLoss, dryRun bool) (affected []Blocker, err error) {
	err = c.changeOrTry(ctx, dryRun, func(s *metadata.State, _ *Input) (next *metadata.Storage, err error) {
		next, affected, err = planFence(s, c.defaults, id, storage, acceptLoss)
		return next, err
	})
	return affected, err
}

// Unfence takes a fencing back: the storage's replicas are followers again, and catch up. ErrOtherStorage, ErrUnknownBroker, ErrWrongState.
func (c *Controller) Unfence(ctx context.Context, id int32, storage ids.StorageID) error {
	return c.changeStorage(ctx, func(s *metadata.State, _ *Input) (*metadata.Storage, error) { return planUnfence(s, id, storage) })
}

func (c *Controller) changeOrTry(ctx context.Context, dryRun bool, plan func(*metadata.State, *Input) (*metadata.Storage, error)) error {
	if !dryRun {
		return c.changeStorage(ctx, plan)
	}
	s, in, _, err := c.view()
	if err == nil {
		_, err = plan(s, &in)
	}
	return err
}

// SafeToStop says what stopping a broker would mean now. ErrUnknownBroker.
func (c *Controller) SafeToStop(id int32) (Safety, error) {
	s, in, _, err := c.view()
	if err != nil {
		return Safety{}, err
	}
	return SafeToStop(s, c.defaults, in, id)
}

// Operations lists what takes time, and how far it is.
func (c *Controller) Operations() ([]Operation, error) {
	s, in, _, err := c.view()
	if err != nil {
		return nil, err
	}
	c.survey(s, in, c.clk.Now())
	return c.operations(), nil
}

// ReportLoad takes what a broker measured. It replaces the broker's last report, and counts for a minute.
func (c *Controller) ReportLoad(r LoadReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.loads[r.Broker] = load{report: r, at: c.clk.Now()}
}
