package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/clock"
)

// resetTimeout bounds the question for the leader's state.
const resetTimeout = 10 * time.Second

// Reset implements partition.Resetter: the log is replaced by an empty one with the leader's epochs and producer state, under a new log
// ID. The next pass hosts a partition over it, which subscribes from there.
//
// Crash windows: before ReplaceLog nothing has happened; after it the log is a new one that nobody counts on, and begins where it can go on.
func (h *host) Reset(p *partition.Partition, leader, epoch int32, offset int64) {
	ctx := p.Context()
	h.resets.Go(func() {
		err := h.reset(ctx, p, leader, epoch, offset)
		if err != nil && !p.Closed() {
			p.ResetFailed(err) // it asks again, less and less often
			return
		}
		if err != nil {
			// The partition that the next pass makes knows nothing of this one, and would come here again at once.
			_ = clock.Sleep(ctx, h.clk, hostInterval)
		}
		h.lookAgain()
	})
}

// errCountedOn: metadata that came meanwhile count on the log that was to be replaced, e.g. because somebody made it lead.
var errCountedOn = errors.New("the cluster counts on the log by now")

// reset leaves p closed, or returns an error, or both.
func (h *host) reset(ctx context.Context, p *partition.Partition, leader, epoch int32, offset int64) error {
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	ref := metadata.PartitionRef{TopicID: p.TopicID(), Partition: p.Number()}
	if h.starts == nil {
		return fmt.Errorf("broker %d cannot be reached", leader)
	}
	start, err := h.starts.StartState(ctx, leader, ref, epoch, offset)
	if err != nil {
		return fmt.Errorf("state of broker %d at offset %d: %w", leader, offset, err)
	}
	now := h.cache.Snapshot()
	if part, ok := now.Partition(ref.TopicID, ref.Partition); ok && h.counted(part, p.Log()) {
		return errCountedOn
	}
	t, ok := now.TopicByID(ref.TopicID)
	if l, here := h.store.Log(ref.TopicID, ref.Partition); !ok || p.Closed() || !here || l != p.Log() {
		return nil // gone meanwhile, or made anew for another partition over the same log
	}
	info, err := topicInfo(t.Name, t.Config)
	if err != nil {
		return err
	}
	p.Close()
	l, err := h.store.ReplaceLog(ctx, ref.TopicID, ref.Partition, info, start)
	if err != nil {
		h.lg.Warn("a log could not be made anew; will retry", "topic_id", ref.TopicID, "partition", ref.Partition, "error", err)
		return err // p is closed: the next pass makes another
	}
	h.lg.Info("a log begins anew at its leader's log start", "topic_id", ref.TopicID, "partition", ref.Partition, "offset", start.Offset, "log_id", l.LogID())
	return nil
}
