package partition

import (
	"fmt"

	"runnel.dev/runnel/broker/replica"
)

// Granted says that the leader of session s pushes from offset on, in epoch.
func (p *Partition) Granted(s replica.Session, epoch int32, offset int64) {
	p.step(replica.Event{Kind: replica.EventGranted, Session: s, Epoch: epoch, Offset: offset}, waitsForAppends)
}

// DivergingAt says that the leader's history has epoch last, at or below the epoch asked about, which ends at end; -1, -1: nothing.
func (p *Partition) DivergingAt(s replica.Session, epoch int32, end int64) {
	p.step(replica.Event{Kind: replica.EventDiverging, Session: s, Epoch: epoch, Offset: end}, waitsForAppends)
}

// BelowStartAt says that the leader's log begins at logStart, above what was asked for.
func (p *Partition) BelowStartAt(s replica.Session, logStart int64) {
	p.step(replica.Event{Kind: replica.EventBelowStart, Session: s, Offset: logStart}, waitsForAppends)
}

// Refused says that the leader does not serve session s, for a reason, or that the stream broke (0).
func (p *Partition) Refused(s replica.Session, reason replica.Reason) {
	p.step(replica.Event{Kind: replica.EventRefused, Session: s, Reason: reason}, waitsForAppends)
}

// Deliver takes in what the leader of session s pushed in epoch: whole batches from base on (none: only limits), the leader's high
// watermark, the log start that it wants and the one that it has published. Blocks for the write to the page cache; the caller serialises
// calls. batches is borrowed. What the session does not want any more is dropped without an error; an error says that the log did not
// take the batches, and the session is over.
func (p *Partition) Deliver(s replica.Session, epoch int32, hw, wanted, published, base int64, batches []byte) error {
	p.produceMu.Lock() // the role cannot change between the machine's word and the append
	n, mine, err := p.deliver(replica.Event{
		Kind: replica.EventData, Session: s, Epoch: epoch, Offset: base, Length: len(batches), HighWatermark: hw, LogStart: wanted, Published: published,
	}, batches)
	p.produceMu.Unlock()
	p.notify(n)
	if mine {
		p.drain(waitsForAppends)
	}
	return err
}

// deliver needs produceMu.
func (p *Partition) deliver(ev replica.Event, batches []byte) (n notes, mine bool, err error) {
	p.pending.mu.Lock()
	n, mine = p.stepLocked(ev)
	p.pending.mu.Unlock()
	if n&noteAppend == 0 {
		return n, mine, nil
	}
	if err = p.gate(); err == nil {
		_, err = p.log.AppendAsFollower(batches)
	}
	if err == nil {
		return n, mine, nil
	}
	p.pending.mu.Lock()
	more, also := p.stepLocked(replica.Event{Kind: replica.EventAppendFailed, Session: ev.Session, Err: err})
	p.pending.mu.Unlock()
	return n | more, mine || also, fmt.Errorf("append as follower at %d: %w", ev.Offset, err)
}
