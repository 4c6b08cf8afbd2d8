package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/broker/storage"
)

// errOvertaken is nothing bad: several replicas of a new partition confirm at the same time, and one of them comes first.
var errOvertaken = errors.New("confirmations were overtaken")

// carryOut does the work; what fails is logged and reported.
func (h *host) carryOut(ctx context.Context, w *plan) (failed bool) {
	attempt := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			level := slog.LevelWarn
			if errors.Is(err, errOvertaken) {
				level = slog.LevelDebug
			}
			h.lg.Log(ctx, level, "applying metadata failed; will retry", "step", what, "error", err)
			failed = true
		}
	}
	// Roles go first: they only need this broker, and everything behind them may wait for the disk or for etcd.
	h.ctx = context.WithoutCancel(ctx)
	h.assign(w.roles)
	attempt("purge", h.purge(ctx, w.purge))
	attempt("remove", h.remove(w.remove))
	confirmed, made, err := h.createAll(ctx, w.create)
	attempt("create", err)
	h.assign(made)
	attempt("confirm", h.confirm(ctx, append(w.confirm, confirmed...)))
	attempt("mark", h.reportMarks(ctx, w.marks))
	attempt("configure", h.configure(w.configs))
	return failed
}

// createAll makes directories, and replaces damaged logs that nobody counts on any more. It returns what is to be confirmed, and the
// roles of the new logs.
func (h *host) createAll(ctx context.Context, work []creation) (confirm []metadata.Confirmation, made []assignment, err error) {
	logs := make([]*log.Log, len(work))
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for i, c := range work {
		g.Go(func() (err error) {
			info, err := topicInfo(c.topic.Name, c.topic.Config)
			if err != nil {
				return err
			}
			if c.replace {
				h.closePartition(c.part.PartitionRef)
				logs[i], err = h.store.ReplaceLog(ctx, c.part.TopicID, c.part.Partition, info, log.StartState{})
			} else {
				logs[i], err = h.store.CreateLog(ctx, c.part.TopicID, c.part.Partition, info, log.StartState{})
			}
			return err
		})
	}
	err = g.Wait()
	for i, c := range work {
		if logs[i] == nil {
			continue
		}
		if metadata.NeedsConfirmation(c.part, h.reg) {
			confirm = append(confirm, metadata.Confirmation{Partition: c.part, LogID: logs[i].LogID()})
		}
		made = append(made, h.assignment(c.state, c.part, logs[i]))
	}
	return confirm, made, err
}

// closePartition ends serving a partition, whose log is about to be closed.
func (h *host) closePartition(ref metadata.PartitionRef) {
	if v, ok := h.partitions.LoadAndDelete(ref); ok {
		v.(*partition.Partition).Close() // only host stores into it
	}
}

// drop removes a partition's directory.
func (h *host) drop(ref metadata.PartitionRef) error {
	h.closePartition(ref)
	return h.store.DeleteLog(storage.Tombstone{TopicID: ref.TopicID, Partition: ref.Partition})
}

// remove removes replicas that moved to other brokers.
func (h *host) remove(work []metadata.PartitionRef) error {
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for _, ref := range work {
		h.lg.Info("a replica that moved to other brokers is removed", "topic_id", ref.TopicID, "partition", ref.Partition)
		g.Go(func() error { return h.drop(ref) })
	}
	return g.Wait()
}

func (h *host) confirm(ctx context.Context, c []metadata.Confirmation) error {
	if len(c) == 0 {
		return nil
	}
	r, err := h.client.ConfirmReplicas(ctx, h.reg, c)
	if err == nil && r.Count() < len(c) {
		err = fmt.Errorf("%d of %d %w", len(c)-r.Count(), len(c), errOvertaken)
	}
	return err
}

func (h *host) reportMarks(ctx context.Context, marks []metadata.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	return h.client.MarkLogs(ctx, h.reg, marks)
}

// configure brings settings that changed into logs and directories.
func (h *host) configure(topics []*metadata.Topic) error {
	var errs []error
	for _, t := range topics {
		info, err := topicInfo(t.Name, t.Config)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if have, ok := h.applied[t.ID]; ok && have == string(info.Config) {
			continue
		}
		if err := h.store.UpdateConfig(t.ID, info); err != nil {
			errs = append(errs, err)
			continue
		}
		h.applied[t.ID] = string(info.Config)
	}
	return errors.Join(errs...)
}

// assign gives partitions their records. A partition whose log was replaced, or that was closed for that, is made anew.
func (h *host) assign(work []assignment) {
	for _, a := range work {
		p, ok := h.lookup(a.ref)
		if ok && (p.Log() != a.log || p.Closed() && !h.failed.Load()) {
			p.Close()
			ok = false
		}
		if !ok && h.retired.Load() {
			continue
		}
		if !ok {
			p = partition.New(partition.Config{
				Context: h.ctx, Log: a.log, Clock: h.clk, Origin: h.origin, Gate: h.store.CheckProduce, Logger: h.lg,
				Replica:   replica.Config{BrokerID: h.reg.BrokerID(), LagTimeout: h.lagTimeout},
				Transport: h.transport, Metadata: h.writer, Reset: h, Workers: h.workers,
			})
			h.partitions.Store(a.ref, p)
		}
		p.SetRecord(a.update)
		if h.failed.Load() {
			p.Close()
		}
		if h.retired.Load() && !p.Role().Leading {
			h.closePartition(a.ref)
		}
	}
}

// purge removes the directories of deleted topics and says so.
func (h *host) purge(ctx context.Context, work []*metadata.Partition) error {
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for _, p := range work {
		g.Go(func() error {
			return h.drop(p.PartitionRef)
		})
	}
	if err := g.Wait(); err != nil || len(work) == 0 {
		return err
	}
	for _, p := range work {
		delete(h.applied, p.TopicID)
	}
	_, err := h.client.ConfirmPurged(ctx, h.reg, work)
	return err
}
