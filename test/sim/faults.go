package sim

import (
	"time"
)

// knobs are what the models do at any time. All are off once the cluster heals.
type knobs struct {
	netTail, netLoss, wild       float64
	etcdLoss, etcdLate, watchLag float64
	produceGap                   time.Duration
}

// class is what may happen in a run, beside what always may.
type class struct {
	losses, reassigns, unclean, rollbacks bool
	gap                                   time.Duration
}

// choose draws the kind of run.
func (w *world) choose() {
	k := &w.knobs
	k.netTail = pick(w.sched, []float64{0, 0.02, 0.1})
	k.netLoss = pick(w.sched, []float64{0, 0, 0.01, 0.05})
	k.wild = pick(w.sched, []float64{0, 0, 0, 0.001, 0.01})
	k.etcdLoss = pick(w.sched, []float64{0, 0.01, 0.05, 0.15})
	k.etcdLate = pick(w.sched, []float64{0, 0.01, 0.05})
	k.watchLag = pick(w.sched, []float64{0, 0.05, 0.3})
	k.produceGap = pick(w.sched, []time.Duration{30 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond})
	w.class = class{
		losses: w.chance(0.6), reassigns: w.chance(0.4), unclean: w.chance(0.08), rollbacks: w.chance(0.1),
		gap: pick(w.sched, []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, 2500 * time.Millisecond}),
	}
	w.tracef("knobs %+v class %+v", *k, w.class)
}

// faults makes things go wrong.
type faults struct {
	*world
	// calmed: nothing new happens by chance; over: nothing at all.
	calmed, over bool
	menu         []fault
	sum          int
}

type fault struct {
	weight int
	strike func()
}

func newFaults(w *world) *faults {
	f := &faults{world: w}
	for _, x := range []fault{
		{8, f.killLeader},
		{6, f.killAny},
		{4, f.killController},
		{4, f.stopAny},
		{8, f.pauseAny},
		{4, f.pauseLeader},
		{6, f.cutPair},
		{4, f.isolate},
		{5, f.cutEtcd},
		{4, f.etcdOutage},
		{4, f.etcdElection},
		{3, f.compaction},
		{3, f.slowDisk},
		{2, f.hungDisk},
		{2, f.syncFailure},
		{2, f.slowLink},
		{2, f.clockStep},
		{5, f.deleteRecords},
		{6, f.loseDisk},
		{6, f.loseLog},
		{3, f.nearby},
		{12, f.rollBack},
		{4, f.reassign},
		{2, f.drain},
		{3, f.forceLeader},
		{2, f.bounceLeader},
	} {
		f.menu = append(f.menu, x)
		f.sum += x.weight
	}
	w.after(3*time.Second, f.next)
	f.watch()
	return f
}

func (f *faults) watch() {
	f.check.watchWhole()
	f.after(time.Second, f.watch)
}

func (f *faults) next() {
	if f.calmed {
		return
	}
	n := f.rng.IntN(f.sum)
	for _, x := range f.menu {
		if n -= x.weight; n < 0 {
			x.strike()
			break
		}
	}
	f.after(f.between(f.class.gap/4, f.class.gap*7/4), f.next)
}

func (f *faults) node() *node { return pick(f.sched, f.nodes) }

// leader is the machine that the metadata call the leader of some partition.
func (f *faults) leader() *node {
	if l := pick(f.sched, f.check.ledgers); l.record != nil && l.record.Leader >= 0 {
		return f.nodes[l.record.Leader]
	}
	return f.node()
}

// nearby makes a follower that is not in sync come close to its leader while no change can be written, and then the leader die: the next one has
// not heard of all that was committed, and the follower does not have it.
func (f *faults) nearby() {
	i := f.rng.IntN(len(f.check.ledgers))
	p := f.check.ledgers[i].record
	if p == nil || p.Leader < 0 || len(p.ISR) < 3 {
		return
	}
	leader := f.nodes[p.Leader]
	behind := f.nodes[pick(f.sched, p.ISR).BrokerID]
	if behind == leader || behind.proc == nil || leader.proc == nil {
		return
	}
	f.tracef("script: %d comes close to %d", behind.id, leader.id)
	for _, n := range f.nodes {
		if n != behind && n != leader {
			f.net.slow[leader.id][n.id] = f.between(10*time.Millisecond, 80*time.Millisecond)
		}
	}
	f.net.slow[leader.id][behind.id] = f.between(60*time.Millisecond, 200*time.Millisecond)
	behind.pause(3800 * time.Millisecond)
	f.after(3700*time.Millisecond, func() { f.cutFromEtcd(leader, f.between(500*time.Millisecond, 1500*time.Millisecond)) })
	f.after(f.between(4200*time.Millisecond, 4500*time.Millisecond), func() {
		f.kill(leader, nil)
		for _, n := range f.nodes {
			f.net.slow[leader.id][n.id] = 0
		}
	})
}

// kill crashes a broker; it comes back within its lease, or after.
func (f *faults) kill(n *node, meanwhile func()) {
	if n.proc == nil {
		return
	}
	n.hostDown = f.chance(0.3)
	n.crash(n.hostDown || f.chance(0.3))
	if meanwhile != nil {
		meanwhile()
	}
	back := f.between(50*time.Millisecond, 800*time.Millisecond)
	if f.chance(0.4) {
		back = f.between(time.Second, 12*time.Second)
	}
	f.after(back, n.start)
}

// unseat takes leaders away for so long that others are elected, in a run in which that has not happened by chance.
func (f *faults) unseat() {
	if f.over {
		return
	}
	f.calm()
	f.undrain()
	f.etcd.downUntil = min(f.etcd.downUntil, f.now)
	for _, n := range f.nodes {
		n.start()
	}
	n := f.leader()
	if n.proc != nil && f.unwell() == "" {
		n.crash(f.chance(0.5))
		f.after(5500*time.Millisecond, n.start)
	}
	f.after(6*time.Second, f.unseat)
}

func (f *faults) killLeader() { f.kill(f.leader(), nil) }
func (f *faults) killAny()    { f.kill(f.node(), nil) }

func (f *faults) killController() {
	for _, n := range f.nodes {
		if n.proc != nil && f.etcd.controls(n.proc) {
			f.cov.hit(ControllerKills)
			f.kill(n, nil)
			return
		}
	}
}

// bounceLeader kills a leader and starts it again before anybody could be elected.
func (f *faults) bounceLeader() {
	n := f.leader()
	if n.proc == nil {
		return
	}
	n.crash(f.chance(0.7))
	f.after(f.between(10*time.Millisecond, 100*time.Millisecond), n.start)
}

func (f *faults) stopAny() {
	n := f.node()
	if p := n.proc; p != nil && !n.paused {
		p.stop()
		f.after(f.between(3500*time.Millisecond, 8*time.Second), n.start)
	}
}

func (f *faults) pauseFor() time.Duration {
	if f.chance(0.5) {
		return f.between(100*time.Millisecond, 1500*time.Millisecond)
	}
	return f.between(1500*time.Millisecond, 9*time.Second)
}

func (f *faults) pauseAny()    { f.node().pause(f.pauseFor()) }
func (f *faults) pauseLeader() { f.leader().pause(f.pauseFor()) }

func (f *faults) cut(a, b *node, both bool, d time.Duration) {
	if a == b {
		return
	}
	f.cov.hit(Cuts)
	f.tracef("cut %d -> %d both %v for %s", a.id, b.id, both, d)
	f.net.cut[a.id][b.id] = true
	f.net.cut[b.id][a.id] = f.net.cut[b.id][a.id] || both
	f.after(d, func() {
		f.net.cut[a.id][b.id] = false
		if both {
			f.net.cut[b.id][a.id] = false
		}
	})
}

func (f *faults) cutPair() {
	f.cut(f.leader(), f.node(), f.chance(0.7), f.between(200*time.Millisecond, 8*time.Second))
}

func (f *faults) isolate() {
	n, d := f.leader(), f.between(500*time.Millisecond, 9*time.Second)
	for _, other := range f.nodes {
		f.cut(n, other, true, d)
	}
	if f.chance(0.5) {
		f.cutFromEtcd(n, d)
	}
}

func (f *faults) cutFromEtcd(n *node, d time.Duration) {
	f.tracef("cut %d from etcd for %s", n.id, d)
	n.etcdCut = true
	f.after(d, func() { n.etcdCut = false })
}

func (f *faults) cutEtcd() { f.cutFromEtcd(f.node(), f.between(300*time.Millisecond, 9*time.Second)) }

func (f *faults) etcdOutage() {
	f.cov.hit(EtcdOutages)
	f.etcd.outage(f.between(200*time.Millisecond, 8*time.Second))
}

func (f *faults) etcdElection() { f.etcd.elect(f.between(100*time.Millisecond, 2*time.Second)) }

// compaction loses the place of watches that are broken, some of which it breaks.
func (f *faults) compaction() {
	for _, w := range f.etcd.watchers {
		if f.chance(0.4) {
			w.lose()
		}
	}
	f.after(f.between(0, 300*time.Millisecond), f.etcd.compact)
}

func (f *faults) slowDisk() {
	n, d := f.node(), f.between(5*time.Millisecond, 300*time.Millisecond)
	f.cov.hit(SlowDisks)
	f.tracef("disk of %d is slow: %s", n.id, d)
	n.slowDisk = d
	f.after(f.between(time.Second, 10*time.Second), func() { n.slowDisk = 0 })
}

func (f *faults) hungDisk() {
	n, d := f.node(), f.between(500*time.Millisecond, 8*time.Second)
	f.cov.hit(HungDisks)
	f.tracef("disk of %d hangs for %s", n.id, d)
	n.hungUntil = f.now + d
}

// syncFailure makes the next sync fail, which stops the broker.
func (f *faults) syncFailure() {
	n := f.node()
	if n.proc == nil {
		return
	}
	f.tracef("the next sync of %d fails", n.id)
	n.failSync = true
	var again func()
	again = func() { // its service manager
		if n.proc == nil {
			n.start()
			return
		}
		if !f.over && n.failSync {
			f.after(time.Second, again)
		}
	}
	f.after(f.between(2*time.Second, 5*time.Second), again)
}

func (f *faults) slowLink() {
	a, b, d := f.node(), f.node(), f.between(time.Millisecond, 150*time.Millisecond)
	f.tracef("link %d -> %d is slow: %s", a.id, b.id, d)
	f.net.slow[a.id][b.id] = d
	f.after(f.between(time.Second, 8*time.Second), func() { f.net.slow[a.id][b.id] = 0 })
}

func (f *faults) clockStep() {
	n, d := f.node(), f.between(-time.Hour, time.Hour)
	f.cov.hit(ClockSteps)
	f.tracef("clock of %d steps by %s", n.id, d)
	n.clockOffset = d
}

// heal ends all faults.
func (f *faults) heal() {
	f.over = true
	f.tracef("heal")
	f.calm()
	f.etcd.downUntil = min(f.etcd.downUntil, f.now+time.Second)
	f.revive()
}

// calm ends the faults that are in force.
func (f *faults) calm() {
	f.calmed = true
	gap := f.knobs.produceGap
	f.knobs = knobs{produceGap: max(gap, 100*time.Millisecond)}
	for _, n := range f.nodes {
		n.etcdCut, n.slowDisk, n.hungUntil, n.failSync = false, 0, 0, false
		for _, other := range f.nodes {
			f.net.cut[n.id][other.id], f.net.slow[n.id][other.id] = false, 0
		}
		n.resume()
	}
}

// revive starts what does not run, and takes back what an administrator did for the time of the faults.
func (f *faults) revive() {
	for _, n := range f.nodes {
		if n.proc == nil {
			n.start()
		}
	}
	f.undrain()
	f.after(2*time.Second, f.revive)
}
