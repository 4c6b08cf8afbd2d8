package sim

import (
	"time"

	"runnel.dev/runnel/broker/replica"
)

// subscribe asks the leader for a subscription.
func (pt *part) subscribe(e *replica.Effect) {
	pt.unsubscribe()
	pt.session = e.Session
	session := e.Session
	ev := replica.Event{
		Epoch: e.Epoch, Peer: pt.self(), PeerEpoch: pt.epoch, Offset: e.Offset, LastEpoch: e.LastEpoch, LogStart: pt.held.JournaledLogStart(),
	}
	refused := func(after time.Duration) {
		pt.later(after, func() { pt.step(replica.Event{Kind: replica.EventRefused, Session: session}) })
	}
	if int(e.Leader) >= len(pt.nodes) || e.Leader < 0 {
		refused(time.Millisecond)
		return
	}
	leader := pt.nodes[e.Leader]
	if leader.proc == nil || pt.net.severed(pt.node, leader) || pt.net.severed(leader, pt.node) {
		refused(pt.between(time.Millisecond, 300*time.Millisecond))
		return
	}
	st := pt.newStream(leader.proc, pt.proc)
	pt.stream, st.peerEpoch, st.follower = st, pt.epoch, pt
	st.onBreak[toFollower] = func() {
		if pt.stream == st {
			pt.stream = nil
		}
		pt.step(replica.Event{Kind: replica.EventRefused, Session: session})
	}
	st.send(toLeader, func() {
		if other := leader.proc.parts[pt.index]; other != nil && other.machine != nil {
			other.accept(pt, session, st, ev)
			return
		}
		st.send(toFollower, func() {
			pt.fromLeader(replica.Event{Kind: replica.EventRefused, Session: session, Reason: replica.ReasonNotLeader}, nil)
		})
	})
}

func (pt *part) unsubscribe() {
	if st := pt.stream; st != nil {
		pt.stream = nil
		st.hangUp(toFollower)
	}
}

// fromLeader takes a message of the leader's in. Data is appended at once if the machine says so.
func (pt *part) fromLeader(ev replica.Event, batches []byte) {
	if pt.machine == nil || pt.dead {
		return
	}
	if batches == nil {
		if ev.Kind == replica.EventGranted {
			pt.comeBack(pt.ghost)
			pt.ghost = nil
		}
		pt.step(ev)
		return
	}
	pt.drain()
	pt.take(&ev, batches)
	pt.drain()
}

// ack tells the leader how far this replica is durable.
func (pt *part) ack(e *replica.Effect) {
	st := pt.stream
	if st == nil || pt.session != e.Session {
		return
	}
	ev := replica.Event{Kind: replica.EventAck, Epoch: e.Epoch, Peer: pt.self(), PeerEpoch: st.peerEpoch, Offset: e.Offset, LogStart: e.LogStart}
	pt.check.sendsAck(pt, e.Epoch, st.peerEpoch, e.Offset)
	leader := st.ends[toLeader]
	st.send(toLeader, func() {
		other := leader.parts[pt.index]
		if other == nil {
			return
		}
		ev.Session = st.session
		other.step(ev)
	})
}
