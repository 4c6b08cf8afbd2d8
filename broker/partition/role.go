package partition

import (
	"context"
	"fmt"
)

// Role is what the cluster's metadata says of a partition at one moment.
type Role struct {
	// Leading: this broker leads in Epoch, under its current registration.
	Leading bool
	// LeaderID is the leader's broker id, -1 while there is none.
	LeaderID int32
	// Epoch is the leader epoch; 0 before the first election.
	Epoch int32
	// Replicas and ISR are broker ids. They are not changed after the call.
	Replicas, ISR []int32
	// MinISR is how many in-sync replicas an append needs.
	MinISR int32
	// Damage, when set, is why this broker cannot lead with what it has; requests are told that instead of who leads.
	Damage error
}

// role is the snapshot that requests look at.
type role struct {
	Role
	// epochStart is the log end when leadership began.
	epochStart int64
	closed     error
}

// admit checks the epoch that a request names and that this broker leads. Epochs begin at 1; 0, which is what a plain client sends
// that does not set the field, and -1 stand for any.
func (r *role) admit(epoch int32) error {
	switch {
	case r.closed != nil:
		return r.closed
	case r.Damage != nil:
		return r.Damage
	case epoch > r.Epoch:
		return &UnknownEpochError{Asked: epoch, Known: r.Epoch}
	case !r.Leading || epoch > 0 && epoch < r.Epoch:
		return &NotLeaderError{LeaderID: r.LeaderID, LeaderEpoch: r.Epoch}
	}
	return nil
}

// SetRole applies metadata. A role of an older epoch than the known one is ignored. When leadership begins, the epoch is recorded
// at the log end; an error means that it could not be, and nothing is led then. When leadership ends, everything that waits fails
// with ErrOutcomeUnknown. Readers are woken either way. Blocks for an append that is in progress.
func (p *Partition) SetRole(next Role) error {
	p.produceMu.Lock()
	defer p.produceMu.Unlock()
	old := p.role.Load()
	if old.closed != nil {
		return old.closed
	}
	if next.Epoch < old.Epoch {
		return nil
	}
	var err error
	r := &role{Role: next}
	if next.Leading {
		r.epochStart = old.epochStart
		if !old.Leading || old.Epoch != next.Epoch {
			// Whatever comes of it, what was led before is over: a newer epoch, or registration, exists.
			if err = p.log.AssignEpoch(next.Epoch); err != nil {
				err = fmt.Errorf("lead epoch %d: %w", next.Epoch, err)
				r.Leading = false
			}
			r.epochStart = p.log.End()
		}
	}
	p.role.Store(r)
	if old.Leading && (!r.Leading || old.Epoch != next.Epoch) {
		p.failPending(&NotLeaderError{LeaderID: next.LeaderID, LeaderEpoch: next.Epoch})
	}
	p.settle()
	p.wake()
	return err
}

// Role returns the role in force. Its slices must not be changed.
func (p *Partition) Role() Role { return p.role.Load().Role }

// Fail ends everything that waits with ErrOutcomeUnknown and cause, e.g. because the log failed; the partition stays.
func (p *Partition) Fail(cause error) {
	p.failPending(cause)
	p.wake()
}

// Close ends the partition: waiting produces fail with ErrOutcomeUnknown, later calls with ErrClosed. The log is its owner's to
// close, afterwards.
func (p *Partition) Close() {
	p.produceMu.Lock()
	defer p.produceMu.Unlock()
	r := *p.role.Load()
	r.Leading, r.closed = false, ErrClosed
	p.role.Store(&r)
	p.failPending(ErrClosed)
	p.wake()
}

// Truncate cuts the log; what waits fails first. Used by followers.
func (p *Partition) Truncate(ctx context.Context, to int64) error {
	p.produceMu.Lock()
	defer p.produceMu.Unlock()
	p.pending.hold(true)
	defer func() {
		p.pending.hold(false)
		p.settle() // refusals that came meanwhile
	}()
	p.failPending(errTruncated)
	return p.log.Truncate(ctx, to)
}
