package broker

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/storage"
)

// carryOut does the work; what fails is logged and reported.
func (h *host) carryOut(ctx context.Context, w *plan) (failed bool) {
	attempt := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			h.lg.Warn("applying metadata failed; will retry", "step", what, "error", err)
			failed = true
		}
	}
	// Roles go first: they only need this broker, and everything behind them may wait for the disk or for etcd.
	attempt("assign", h.assign(w.roles))
	attempt("purge", h.purge(ctx, w.purge))
	confirmed, err := h.createAll(ctx, w.create)
	attempt("create", err)
	attempt("confirm", h.confirm(ctx, append(w.confirm, confirmed...)))
	attempt("mark", h.reportMarks(ctx, w.marks))
	attempt("configure", h.configure(w.configs))
	return failed
}

func (h *host) createAll(ctx context.Context, work []creation) ([]metadata.Confirmation, error) {
	done := make([]metadata.Confirmation, len(work))
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for i, c := range work {
		g.Go(func() error {
			info, err := topicInfo(c.topic.Name, c.topic.Config)
			if err != nil {
				return err
			}
			l, err := h.store.CreateLog(ctx, c.part.TopicID, c.part.Partition, info, log.StartState{})
			if err != nil {
				return err
			}
			done[i] = metadata.Confirmation{Partition: c.part, LogID: l.LogID()}
			return nil
		})
	}
	err := g.Wait()
	var ok []metadata.Confirmation
	for _, c := range done {
		if c.Partition != nil {
			ok = append(ok, c)
		}
	}
	return ok, err
}

func (h *host) confirm(ctx context.Context, c []metadata.Confirmation) error {
	if len(c) == 0 {
		return nil
	}
	r, err := h.client.ConfirmReplicas(ctx, h.reg, c)
	if err == nil && r.Count() < len(c) {
		err = fmt.Errorf("%d of %d confirmations were overtaken", len(c)-r.Count(), len(c))
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

func (h *host) assign(work []assignment) error {
	var errs []error
	for _, a := range work {
		v, _ := h.partitions.Load(a.ref)
		p, ok := v.(*hosted)
		if ok && p.log != a.log {
			p.Close()
			ok = false
		}
		if !ok {
			p = &hosted{partition.New(a.log, h.clk, h.store.CheckProduce), a.log}
		}
		if err := p.SetRole(a.role); err != nil {
			errs = append(errs, err)
		}
		if !ok {
			h.partitions.Store(a.ref, p)
		}
		if h.failed.Load() {
			p.Close()
		}
	}
	return errors.Join(errs...)
}

// purge removes the directories of deleted topics and says so.
func (h *host) purge(ctx context.Context, work []*metadata.Partition) error {
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for _, p := range work {
		g.Go(func() error {
			if v, ok := h.partitions.LoadAndDelete(p.PartitionRef); ok {
				v.(*hosted).Close() // only host stores into it
			}
			return h.store.DeleteLog(storage.Tombstone{TopicID: p.TopicID, Partition: p.Partition})
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
