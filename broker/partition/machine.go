package partition

import (
	"runnel.dev/runnel/broker/replica"
)

// notes are what has to be told to others once the locks are released.
type notes uint8

const (
	noteReaders   notes = 1 << iota // offsets or role changed
	noteFollowers                   // there is something to push
	noteAppend                      // the machine wants the batches of this event
)

// effect is what the machine wants done, as of one step.
type effect struct {
	replica.Effect
	// self and brokerEpoch are what the machine took this replica for.
	self        replica.Member
	brokerEpoch int64
}

// effects are those that nobody has carried out yet, oldest first. Whoever sets draining does so, in order.
type effects struct {
	queue    []effect
	head     int
	draining bool
}

func (q *effects) pop() (e effect, ok bool) {
	if q.head == len(q.queue) {
		q.queue, q.head = q.queue[:0], 0
		return e, false
	}
	e = q.queue[q.head]
	q.queue[q.head] = effect{} // drop references
	q.head++
	return e, true
}

// patience says what a goroutine that carries effects out may wait for.
type patience uint8

const (
	waitsForNothing patience = iota // the sync goroutine
	waitsForAppends                 // an append to the page cache
	waitsForDisk                    // a worker
)

// needs says what an effect may wait for.
func needs(k replica.EffectKind) patience {
	switch k { //nolint:exhaustive // the others do not wait
	case replica.EffectAssignEpoch:
		return waitsForAppends
	case replica.EffectTruncate, replica.EffectJournalLogStart, replica.EffectPublishLogStart:
		return waitsForDisk
	}
	return waitsForNothing
}

// step gives the machine an event and does what it asks for. Events that can begin or end leading or following need produceMu beside it.
func (p *Partition) step(ev replica.Event, how patience) {
	p.pending.mu.Lock()
	n, mine := p.stepLocked(ev)
	p.pending.mu.Unlock()
	p.notify(n)
	if mine {
		p.drain(how)
	}
}

// stepLocked steps the machine. Roles and the high watermark, which are only memory, take effect at once, so that nothing is done
// in a role that the machine has left; the rest is queued. mine: the caller has to drain. Needs pending.mu.
func (p *Partition) stepLocked(ev replica.Event) (n notes, mine bool) {
	if p.role.Load().closed != nil {
		return 0, false
	}
	ev.Now = p.clk.Since(p.cfg.Origin)
	p.event = ev // the machine gets a pointer: this one lives in the heap already
	settle := ev.Kind == replica.EventFlushed
	steps := p.machine.Step(&p.event)
	for i := range steps {
		switch e := &steps[i]; e.Kind {
		case replica.EffectAppend:
			n |= noteAppend
		case replica.EffectHighWatermark:
			settle = true
			n |= noteFollowers
		case replica.EffectRole:
			settle = true
			n |= p.publishRoleLocked()
		case replica.EffectJournalLogStart:
			p.wanted.Store(p.machine.Status().LogStartWanted)
			p.pushLocked(e)
			n |= noteFollowers
		default:
			p.pushLocked(e)
		}
	}
	switch ev.Kind { //nolint:exhaustive // the others carry no record
	case replica.EventMetadata, replica.EventProposalSettled:
		settle = true
		n |= p.publishRoleLocked()
	}
	if settle {
		n |= p.settleLocked()
	}
	mine = !p.effects.draining && p.effects.head < len(p.effects.queue)
	p.effects.draining = p.effects.draining || mine
	return n, mine
}

func (p *Partition) pushLocked(e *replica.Effect) {
	p.effects.queue = append(p.effects.queue, effect{Effect: *e, self: p.selfLocked(), brokerEpoch: p.update.BrokerEpoch})
}

// notify tells readers and followers.
func (p *Partition) notify(n notes) {
	if n&noteReaders != 0 {
		p.wake()
	}
	if n&noteFollowers != 0 {
		p.progress()
	}
}

// drain carries queued effects out until there is none. What may wait longer than the caller can goes on on a worker, in order.
func (p *Partition) drain(how patience) {
	for {
		p.pending.mu.Lock()
		e, ok := p.effects.pop()
		if !ok {
			p.effects.draining = false
			p.pending.mu.Unlock()
			return
		}
		p.pending.mu.Unlock()
		if needs(e.Kind) > how && p.cfg.Workers != nil {
			job := e // a copy, or every effect would live in the heap
			p.cfg.Workers.Go(func() {
				p.carryOut(&job)
				p.drain(waitsForDisk)
			})
			return
		}
		p.carryOut(&e)
	}
}
