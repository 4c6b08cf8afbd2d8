package sim

import (
	"time"

	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/metadata"
)

// control is a broker's controller: the shell around controller.Decide.
type control struct {
	busy   bool
	tenure metadata.Tenure
	// wait is the revision that the cache has to show before the next decision.
	wait int64
	// balance is when leaders are to be balanced next.
	balance time.Duration
}

const balanceInterval = 5 * time.Second

// controls reports whether a process holds the controller key now.
func (e *etcd) controls(p *proc) bool {
	kv := e.get(p.build.Prefix() + "controller")
	if kv.Revision == 0 {
		return false
	}
	c := e.decode(kv).Controller
	return c.BrokerID == p.node.id && c.BrokerEpoch == p.epoch
}

// act campaigns, or decides and writes, one thing at a time.
func (p *proc) act() {
	c, s := &p.control, p.cache.state
	if c.busy || p.epoch == 0 || !s.Loaded() || s.Revision() < p.epoch || s.Revision() < c.wait {
		return
	}
	if _, alive := s.Broker(p.node.id); !alive {
		return
	}
	now := s.Controller()
	if now == nil || now.BrokerID != p.node.id || now.BrokerEpoch != p.epoch {
		p.campaign(now)
		return
	}
	c.tenure = metadata.Tenure{BrokerID: now.BrokerID, BrokerEpoch: now.BrokerEpoch, Epoch: now.Epoch}
	in := controller.Input{Self: p.node.id, Health: controller.HealthOf(p.view)}
	if in.Balance = p.now >= c.balance; in.Balance {
		c.balance = p.now + balanceInterval
	}
	plan := controller.Decide(s, nil, in)
	if plan.Empty() {
		return
	}
	p.carryOut(&plan)
}

// campaign takes the controller key if it is free, or if its holder is dead by the witnesses' word.
func (p *proc) campaign(seen *metadata.ControllerInfo) {
	s := p.cache.state
	free, witness := metadata.ControllerFree(s), false
	if !free {
		for _, id := range p.view.Confirmed {
			witness = witness || id == seen.BrokerID
		}
	}
	if !free && !witness || p.stopping {
		return
	}
	c := &p.control
	c.busy = true
	key := p.build.Prefix() + "controller"
	get(p, func() metadata.KV { return p.etcd.get(key) }, func(kv metadata.KV) {
		var named *metadata.ControllerInfo
		if kv.Revision > 0 {
			named = p.decode(kv).Controller
		}
		var tx metadata.Tx
		var err error
		switch {
		case named != nil && named.BrokerID == p.node.id && named.BrokerEpoch == p.epoch, witness && (named == nil || *named != *seen):
			p.rest(kv.Revision)
			return
		case witness:
			tx, err = p.build.TakeController(named, p.reg())
		default:
			tx, err = p.build.AcquireController(named, p.reg())
		}
		p.must(err)
		p.commit(tx, requestTimeout, func(out metadata.Outcome, ok bool) {
			if !ok || !out.Applied {
				p.rest(0)
				return
			}
			p.tracef("broker %d controls, epoch %d, as witness: %v", p.node.id, out.Revision, witness)
			p.cov.hit(ControllerChanges)
			if witness {
				p.cov.hit(WitnessTakeovers)
			}
			p.rest(out.Revision)
		})
	})
}

// rest ends what act began; the next decision waits for the cache to show a revision.
func (p *proc) rest(revision int64) {
	p.control.busy, p.control.wait = false, max(p.control.wait, revision)
	if revision == 0 {
		p.later(200*time.Millisecond, p.act)
		return
	}
	p.later(0, p.act)
}

// carryOut writes a plan in its order and stops at the first failure.
func (p *proc) carryOut(plan *controller.Plan) {
	t, b := p.control.tenure, p.build
	var txs []metadata.Tx
	add := func(tx metadata.Tx, err error) {
		p.must(err)
		txs = append(txs, tx)
	}
	addAll := func(more []metadata.Tx, err error) {
		p.must(err)
		txs = append(txs, more...)
	}
	if len(plan.Update) > 0 {
		for _, next := range plan.Update {
			p.tracef("controller %d updates %s: leader %d epoch %d isr %s", p.node.id, p.name(next.PartitionRef), next.Leader, next.LeaderEpoch, members(next.ISR))
		}
		addAll(b.UpdatePartitions(t, plan.Update))
	}
	for _, d := range plan.Clear {
		if len(d.Stale) > 0 {
			add(b.DropMarks(t, d.Storage, d.Stale))
			continue
		}
		add(b.ClearMarks(t, d.Storage, d.Partitions))
	}
	for _, st := range plan.Eligible {
		add(b.DeclareEligible(t, st))
	}
	for _, work := range plan.Create {
		addAll(b.CreatePartitions(t, work.Topic, work.Partitions))
	}
	for _, topic := range plan.Finish {
		add(b.FinishTopic(t, topic))
	}
	if len(plan.Moves) > 0 {
		addAll(b.UpdatePartitions(t, plan.Moves))
	}
	if len(plan.Reassign) > 0 {
		addAll(b.SetReassignment(t, plan.Reassign))
	}
	p.control.busy = true
	p.writePlan(txs, 0)
}

func (p *proc) writePlan(txs []metadata.Tx, reached int64) {
	if len(txs) == 0 {
		p.rest(reached)
		return
	}
	p.commit(txs[0], requestTimeout, func(out metadata.Outcome, ok bool) {
		if !ok {
			p.rest(0)
			return
		}
		p.writePlan(txs[1:], max(reached, out.Answer.Revision))
	})
}
