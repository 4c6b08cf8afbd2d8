package sim

import (
	"slices"
	"time"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/segment"
)

// node is a machine: what a broker process runs on and what outlives it.
type node struct {
	*world
	id   int32
	proc *proc // nil while none runs
	disk *disk

	// hostDown: the machine itself is off, so that nobody refuses connections.
	hostDown    bool
	paused      bool
	backlog     []func()
	etcdCut     bool
	clockOffset time.Duration
	slowDisk    time.Duration
	hungUntil   time.Duration
	failSync    bool
	// durable is what really is on the disk of each log, by the syncs that were done.
	durable map[metadata.PartitionRef]int64
}

func (n *node) syncDelay() time.Duration {
	return n.between(60*time.Microsecond, 800*time.Microsecond) + n.slowDisk
}

// proc is a broker process.
type proc struct {
	*world
	node     *node
	boot     metadata.BootID
	dead     bool
	stopping bool
	host     *host
	cache    *cache
	files    *segment.Cache
	streams  []*stream
	parts    []*part // in the order of world.refs

	// epoch is the broker epoch, 0 before the first registration.
	epoch       int64
	lease       int64
	registering bool
	marking     bool
	confirming  bool

	detector *liveness.Detector
	view     liveness.View
	control  control
}

// do runs f in the process: now, after a pause, or never.
func (p *proc) do(f func()) {
	switch {
	case p.dead:
	case p.node.paused:
		p.node.backlog = append(p.node.backlog, f)
	default:
		f()
	}
}

// later runs f in the process after a while.
func (p *proc) later(d time.Duration, f func()) { p.after(d, func() { p.do(f) }) }

// every runs f in the process again and again.
func (p *proc) every(d time.Duration, f func()) {
	p.later(d, func() {
		f()
		p.every(d, f)
	})
}

// start runs a new process.
func (n *node) start() {
	if n.proc != nil {
		return
	}
	n.hostDown, n.failSync = false, false
	p := &proc{world: n.world, node: n, boot: metadata.BootID(n.id16()), files: segment.NewCache(0, 0)}
	p.host = &host{p: p}
	p.detector = liveness.New(liveness.Config{Self: n.id})
	n.proc = p
	n.tracef("broker %d starts, storage %s", n.id, short(n.disk.storage))
	for i := range n.refs {
		p.openPart(i)
	}
	p.cache = newCache(p)
	p.relist()
	p.later(0, p.register)
	p.every(leaseTTL/3, p.keepAlive)
	p.later(n.between(0, beatInterval), func() { p.every(beatInterval, p.beat) })
	p.later(n.between(0, tickInterval), func() { p.every(tickInterval, p.tick) })
	p.every(time.Second, p.lookAgain)
}

// crash kills the process. With power the page cache goes with it.
func (n *node) crash(power bool) {
	p := n.proc
	if p == nil {
		return
	}
	n.cov.hit(Crashes)
	n.tracef("broker %d crashes, power failure: %v", n.id, power)
	if n.etcd.controls(p) {
		n.cov.hit(ControllerKills)
	}
	if power {
		n.cov.hit(PowerFailures)
		n.disk.journal.crash(n.sched)
		n.disk.fs = n.disk.fs.CrashClone(n.rng)
	} else {
		n.disk.journal.sync() // a killed process leaves its writes to the kernel
	}
	n.end(p)
}

// end removes the process.
func (n *node) end(p *proc) {
	p.dead = true
	n.proc, n.paused, n.backlog, n.hungUntil = nil, false, nil, 0
	p.cache.close()
	for _, st := range slices.Clone(p.streams) {
		for end, q := range st.ends {
			if q == p {
				st.hangUp(end)
			}
		}
	}
	for _, other := range n.nodes {
		if q := other.proc; q != nil && !n.hostDown && !n.net.severed(n, other) {
			n.after(n.net.delay(n, other), func() {
				q.do(func() {
					q.detector.Broken(q.now, n.id)
					q.beatTo(n.id)
					q.look()
				})
			})
		}
	}
}

// pause stops the process for a while; everything that reaches it waits.
func (n *node) pause(d time.Duration) {
	if n.proc == nil || n.paused {
		return
	}
	n.cov.hit(Pauses)
	n.tracef("broker %d pauses for %s", n.id, d)
	n.paused = true
	p := n.proc
	n.after(d, func() {
		if n.proc == p {
			n.resume()
		}
	})
}

func (n *node) resume() {
	if !n.paused {
		return
	}
	n.tracef("broker %d resumes with %d events", n.id, len(n.backlog))
	n.paused = false
	backlog := n.backlog
	n.backlog = nil
	p := n.proc
	if n.chance(0.3) { // threads wake up in any order; what one stream brought stays in order only roughly
		n.rng.Shuffle(len(backlog)/2, func(i, j int) { backlog[2*i], backlog[2*j] = backlog[2*j], backlog[2*i] })
	}
	for _, f := range backlog {
		p.do(f)
	}
}

// stop ends the process as a rolling restart does: leaderships are handed over, files closed, the registration revoked.
func (p *proc) stop() {
	if p.stopping {
		return
	}
	p.cov.hit(CleanStops)
	p.tracef("broker %d stops", p.node.id)
	p.stopping = true
	p.beat()
	deadline := p.now + 3*time.Second
	var wait func()
	wait = func() {
		if p.leads() && p.now < deadline {
			p.later(50*time.Millisecond, wait)
			return
		}
		p.close()
	}
	p.later(0, wait)
}

func (p *proc) leads() bool {
	return slices.ContainsFunc(p.parts, func(pt *part) bool { return pt != nil && pt.status.Leading })
}

func (p *proc) close() {
	n := p.node
	for _, pt := range p.parts {
		if pt == nil || pt.log() == nil || pt.log().State().Health != log.Online {
			continue
		}
		if err := pt.log().SyncNow(func(e log.JournalEntry) error { return p.host.JournalNow(nil, e) }); err == nil { //nolint:staticcheck // unused context
			n.disk.journal.write(pt.log().JournalEntry())
			_ = pt.log().Close()
		}
	}
	n.disk.journal.sync()
	n.disk.fs.SyncAll()
	lease := p.lease
	if !n.etcdCut && !n.etcd.down() {
		n.after(n.between(time.Millisecond, 5*time.Millisecond), func() { n.etcd.revoke(lease) })
	}
	n.tracef("broker %d stopped", n.id)
	n.end(p)
}

func (p *proc) forget(st *stream) {
	p.streams = slices.DeleteFunc(p.streams, func(other *stream) bool { return other == st })
}

func (p *proc) hosting(l *log.Log) *part {
	for _, pt := range p.parts {
		if pt != nil && pt.log() == l {
			return pt
		}
	}
	return nil
}
