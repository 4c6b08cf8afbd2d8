package partition

import (
	"log/slog"

	"runnel.dev/runnel/broker/replica"
)

// carryOut does what one effect says. Those that are done within stepLocked never come here.
func (p *Partition) carryOut(e *effect) {
	switch e.Kind {
	case replica.EffectAssignEpoch:
		p.assignEpoch(e.Epoch)
	case replica.EffectPropose:
		if p.cfg.Metadata != nil {
			p.cfg.Metadata.ProposeISR(p, e.Proposal, e.Revision, e.ISR, e.Added)
		}
	case replica.EffectGrant, replica.EffectDiverging, replica.EffectBelowStart, replica.EffectRefuse:
		p.answer(e)
	case replica.EffectSubscribe, replica.EffectUnsubscribe, replica.EffectAck:
		if p.cfg.Transport != nil {
			p.tell(e)
		}
	case replica.EffectTruncate:
		p.truncate(e.Offset)
	case replica.EffectReset:
		if p.cfg.Reset != nil {
			p.cfg.Reset.Reset(p, p.Role().LeaderID, e.Epoch, e.Offset)
		}
	case replica.EffectJournalLogStart:
		err := p.log.JournalLogStart(p.cfg.Context, e.Offset)
		p.report("journal the log start", err)
		p.step(replica.Event{Kind: replica.EventLogStartJournaled, Offset: e.Offset, Err: err}, waitsForDisk)
	case replica.EffectPublishLogStart:
		p.report("move the log start", p.log.PublishLogStart(p.cfg.Context, e.Offset))
		p.notify(noteReaders | noteFollowers)
	case replica.EffectRole, replica.EffectHighWatermark, replica.EffectAppend: // done within stepLocked
	}
}

func (p *Partition) report(step string, err error) {
	if err != nil && p.cfg.Logger != nil {
		p.cfg.Logger.Warn("replication met an error; will retry", slog.String("step", step), slog.Any("topic_id", p.TopicID()),
			slog.Int("partition", int(p.Number())), slog.Any("error", err))
	}
}

// assignEpoch begins a leader epoch at the log end.
func (p *Partition) assignEpoch(epoch int32) {
	p.produceMu.Lock()
	err := p.log.AssignEpoch(epoch)
	ev := replica.Event{Kind: replica.EventEpochAssigned, Epoch: epoch, Offset: p.log.End(), Err: err}
	p.pending.mu.Lock()
	n, _ := p.stepLocked(ev) // this goroutine drains already
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	p.report("begin a leader epoch", err)
	p.notify(n)
}

// truncate cuts the log; what waits fails first, and nothing is appended meanwhile.
func (p *Partition) truncate(to int64) {
	p.produceMu.Lock()
	p.pending.mu.Lock()
	p.pending.held = true
	p.failPendingLocked(errTruncated)
	p.pending.mu.Unlock()
	err := p.log.Truncate(p.cfg.Context, to)
	p.pending.mu.Lock()
	p.pending.held = false
	p.wokenAt = min(p.wokenAt, p.log.HighWatermark())
	n, _ := p.stepLocked(replica.Event{Kind: replica.EventTruncated, Err: err}) // this goroutine drains already
	n |= p.settleLocked()                                                       // refusals that came meanwhile
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	p.report("truncate to the leader's history", err)
	p.notify(n)
}

// tell says something to the leader.
func (p *Partition) tell(e *effect) {
	switch e.Kind { //nolint:exhaustive // the others are not the follower's
	case replica.EffectSubscribe:
		p.cfg.Transport.Subscribe(p, Subscription{
			Session: e.Session, Leader: e.Leader, Self: e.self, BrokerEpoch: e.brokerEpoch,
			Epoch: e.Epoch, LastEpoch: e.LastEpoch, Offset: e.Offset, LogStart: e.LogStart,
		})
	case replica.EffectUnsubscribe:
		p.cfg.Transport.Unsubscribe(p, e.Session)
	case replica.EffectAck:
		p.cfg.Transport.Ack(p, e.Session, e.Epoch, e.Offset, e.LogStart)
	}
}

// ProposalSettled answers MetadataWriter.ProposeISR: the change was applied and record is the partition's after it, or it was not, and
// record, unless nil, is what overtook it. Blocks for an append that is in progress.
func (p *Partition) ProposalSettled(proposal uint64, applied bool, record *replica.Record) {
	p.produceMu.Lock()
	p.pending.mu.Lock()
	if record != nil && p.update.Record != nil && record.Revision > p.update.Record.Revision {
		p.update.Record = record
	}
	n, mine := p.stepLocked(replica.Event{
		Kind: replica.EventProposalSettled, Proposal: proposal, Applied: applied, Record: record,
		BrokerEpoch: p.update.BrokerEpoch, Self: p.selfLocked(), Usable: p.update.Usable,
	})
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	p.notify(n)
	if mine {
		p.drain(waitsForAppends)
	}
}

// ResetFailed answers Resetter.Reset.
func (p *Partition) ResetFailed(err error) {
	p.report("begin the log anew", err)
	p.step(replica.Event{Kind: replica.EventTruncated, Err: err}, waitsForAppends)
}

// Tick tells the machine that time has passed, about every 100 ms. It costs nothing for a partition that waits for nobody.
func (p *Partition) Tick() {
	if !p.ticks.Load() {
		return
	}
	p.step(replica.Event{Kind: replica.EventTick}, waitsForAppends)
}
