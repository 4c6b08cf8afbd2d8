package sim

import (
	"time"

	"runnel.dev/runnel/broker/replica"
)

// network connects brokers. Clients reach every broker that lives.
type network struct {
	*world
	// cut[a][b]: nothing from a reaches b.
	cut  [][]bool
	slow [][]time.Duration
}

func newNetwork(w *world, n int) *network {
	net := &network{world: w, cut: make([][]bool, n), slow: make([][]time.Duration, n)}
	for i := range n {
		net.cut[i], net.slow[i] = make([]bool, n), make([]time.Duration, n)
	}
	return net
}

func (n *network) severed(a, b *node) bool { return n.cut[a.id][b.id] }

func (n *network) delay(a, b *node) time.Duration {
	d := n.between(50*time.Microsecond, 500*time.Microsecond) + n.slow[a.id][b.id]
	if n.chance(n.knobs.netTail) {
		d += n.between(time.Millisecond, 60*time.Millisecond)
	}
	return d
}

// send delivers a message of its own, which may be lost. It tells the sender when the other end refuses connections, if it wants to know.
func (n *network) send(from *proc, to *node, deliver func(*proc), refused func()) {
	if n.severed(from.node, to) || n.chance(n.knobs.netLoss) {
		return
	}
	n.after(n.delay(from.node, to), func() {
		switch p := to.proc; {
		case p != nil:
			p.do(func() { deliver(p) })
		case refused != nil && !n.severed(to, from.node):
			n.after(n.delay(to, from.node), func() { from.do(refused) })
		}
	})
}

// client carries a client's request to a broker; nothing comes of it when the broker is down.
func (n *network) client(to *node, delay time.Duration, deliver func(*proc)) {
	n.after(delay, func() {
		if p := to.proc; p != nil {
			p.do(func() { deliver(p) })
		}
	})
}

// Ends of a stream.
const (
	toLeader = iota
	toFollower
)

// stream is one subscription's connection: ordered, until it breaks. Both ends learn of that, each in its own time; what was sent before
// still arrives, unless it was lost.
type stream struct {
	*world
	ends    [2]*proc // leader, follower
	last    [2]time.Duration
	newest  [2]func()
	broken  bool
	told    [2]bool
	onBreak [2]func()
	// What the subscription was made with: its number at the leader, and the follower's registration.
	session   replica.Session
	peerEpoch int64
	// The two replicas, as far as the leader's is known already.
	leader, follower *part
}

func (w *world) newStream(leader, follower *proc) *stream {
	st := &stream{world: w, ends: [2]*proc{leader, follower}}
	leader.streams, follower.streams = append(leader.streams, st), append(follower.streams, st)
	return st
}

// send delivers a message to one end. A message that the network loses, or that comes twice or too late, breaks the stream a while later: a
// real connection would never hand it over like that, but the machines have to be safe even then.
func (st *stream) send(end int, deliver func()) {
	from, to := st.ends[1-end], st.ends[end]
	if st.broken {
		st.remember(end, deliver)
		if !st.told[1-end] && !st.faults.calmed && st.chance(0.3) {
			st.cov.hit(LateMessages) // on the way while the other end hung up
			st.after(st.between(0, time.Second), func() { to.do(deliver) })
		}
		return
	}
	if st.net.severed(from.node, to.node) {
		st.remember(end, deliver)
		st.tear(st.between(300*time.Millisecond, 3*time.Second))
		return
	}
	if to.dead {
		st.tear(st.net.delay(to.node, from.node))
		return
	}
	handle := func() {
		if !st.told[end] {
			deliver()
		}
	}
	at := max(st.last[end], st.now+st.net.delay(from.node, to.node))
	if st.chance(st.knobs.wild) {
		switch st.rng.IntN(3) {
		case 0:
			st.tear(st.between(200*time.Millisecond, 3*time.Second))
			return
		case 1:
			st.cov.hit(Duplicates)
			st.after(at-st.now+st.between(0, 20*time.Millisecond), func() { to.do(handle) })
		default:
			st.cov.hit(Reorders)
			st.after(at-st.now+st.between(0, 20*time.Millisecond), func() { to.do(handle) })
			return
		}
	}
	st.last[end], st.newest[end] = at, deliver
	st.after(at-st.now, func() { to.do(handle) })
}

// haunt delivers the newest message of a stream that has ended once more, much later: whoever gets it has to know that it is of the past.
func (st *stream) haunt() {
	st.remember(toLeader, st.newest[toLeader])
	for end, deliver := range st.newest {
		if to := st.ends[end]; deliver != nil && !st.faults.calmed && st.chance(0.5) {
			st.cov.hit(LateMessages)
			st.after(st.between(0, 3*time.Second), func() { to.do(deliver) })
		}
	}
}

// remember keeps a message that did not arrive: it comes when the next stream between the two has just been granted.
func (st *stream) remember(end int, deliver func()) {
	switch {
	case deliver == nil || st.leader == nil:
	case end == toFollower && st.follower.ghost == nil:
		st.follower.ghost = deliver
	case end == toLeader:
		if st.leader.ghosts == nil {
			st.leader.ghosts = map[int32]func(){}
		}
		st.leader.ghosts[st.follower.node.id] = deliver
	}
}

// comeBack delivers what was remembered, now and then.
func (pt *part) comeBack(deliver func()) {
	if deliver != nil && !pt.faults.calmed && pt.chance(0.4) {
		pt.cov.hit(LateMessages)
		pt.later(pt.between(0, 3*time.Millisecond), deliver)
	}
}

// tear breaks the stream; both ends learn of it after up to twice the given time.
func (st *stream) tear(after time.Duration) {
	if st.broken {
		return
	}
	st.broken = true
	st.haunt()
	st.cov.hit(StreamBreaks)
	for end := range st.ends {
		st.tell(end, st.between(after/2, 2*after))
	}
}

// hangUp ends the stream from one end, which needs not be told.
func (st *stream) hangUp(end int) {
	st.told[end] = true
	st.ends[end].forget(st)
	if !st.broken {
		st.broken = true
		st.haunt()
		after := st.net.delay(st.ends[end].node, st.ends[1-end].node)
		if st.net.severed(st.ends[end].node, st.ends[1-end].node) || st.ends[end].node.hostDown {
			after = st.between(300*time.Millisecond, 3*time.Second)
		}
		st.tell(1-end, max(after, st.last[1-end]-st.now))
	}
}

func (st *stream) tell(end int, after time.Duration) {
	st.after(after, func() {
		st.ends[end].do(func() {
			if st.told[end] {
				return
			}
			st.told[end] = true
			st.ends[end].forget(st)
			if st.onBreak[end] != nil {
				st.onBreak[end]()
			}
		})
	})
}
