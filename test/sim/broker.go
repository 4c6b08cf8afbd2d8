package sim

import (
	"fmt"
	"slices"
	"time"

	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replica"
)

const (
	beatInterval = 200 * time.Millisecond
	tickInterval = 100 * time.Millisecond
)

func short(id fmt.Stringer) string { return id.String()[:8] }

// info is what the broker registers.
func (p *proc) info() metadata.BrokerInfo {
	return metadata.BrokerInfo{ID: p.node.id, StorageID: p.node.disk.storage, Rack: p.node.rack(), Version: "sim"}
}

func (n *node) rack() string { return string(rune('a' + n.id%3)) }

func (p *proc) reg() metadata.RegRef {
	return metadata.RegRef{BrokerID: p.node.id, StorageID: p.node.disk.storage, Epoch: p.epoch}
}

// looked is what a registration looks at before it is written.
type looked struct {
	storage, broker metadata.KV
	lease           int64
}

// register announces the broker, the first time and after a lapse, as metadata.Registration does.
func (p *proc) register() {
	if p.registering {
		return
	}
	p.registering = true
	again := func() {
		p.registering = false
		p.later(p.between(100*time.Millisecond, 500*time.Millisecond), p.register)
	}
	get(p, func() looked {
		key := p.build.BrokerKey(p.node.id)
		l := looked{storage: p.etcd.get(p.build.Prefix() + fmt.Sprintf("storage/%d", p.node.id)), broker: p.etcd.get(key)}
		if l.broker.Revision > 0 {
			l.lease = p.etcd.keys[key].lease
		}
		return l
	}, func(l looked) {
		if p.epoch > 0 && l.storage.Revision > 0 && p.decode(l.storage).Storages[0].EligibleEpoch > p.epoch {
			p.superseded()
			return
		}
		if l.broker.Revision > 0 {
			live := p.decode(l.broker).Brokers[0]
			switch {
			case live.BootID == p.boot:
				p.lease = l.lease
				p.adopt(live.Epoch)
				return
			case p.epoch > 0:
				p.superseded()
				return
			case live.StorageID != p.node.disk.storage:
				again() // refused; whoever runs the process starts it again
				return
			}
			p.cov.hit(TakeOvers)
		}
		p.attempt(func() any { return p.etcd.grant() }, func(answer any, result metadata.Attempt) {
			id, ok := answer.(int64)
			if !ok || result != metadata.Answered {
				again()
				return
			}
			tx, err := p.build.Register(l.broker.Revision, p.info(), p.boot, id)
			p.must(err)
			p.commit(tx, requestTimeout, func(out metadata.Outcome, ok bool) {
				if ok && out.Applied {
					p.lease = id
					p.adopt(out.Revision)
					return
				}
				again()
			})
		})
	})
}

func (p *proc) adopt(epoch int64) {
	p.tracef("broker %d registered, epoch %d", p.node.id, epoch)
	if p.epoch > 0 && p.epoch != epoch {
		p.cov.hit(ReRegistrations)
	}
	p.registering = false
	p.epoch = epoch
	// Invariant: no stale start: nothing is acted on before the cache has reached the registration.
	if p.cache.state.Revision() < epoch {
		p.relist()
	}
	p.stateChanged()
}

func (p *proc) superseded() {
	p.tracef("broker %d is superseded", p.node.id)
	p.node.disk.journal.sync()
	p.node.end(p)
}

// keepAlive renews the lease, and registers anew when it has lapsed.
func (p *proc) keepAlive() {
	if p.epoch == 0 || p.registering {
		return
	}
	id := p.lease
	p.attempt(func() any { return p.etcd.keepAlive(id) }, func(answer any, result metadata.Attempt) {
		if alive, ok := answer.(bool); ok && result == metadata.Answered && !alive && id == p.lease {
			p.register()
		}
	})
}

// stateChanged acts on a new State.
func (p *proc) stateChanged() {
	s := p.cache.state
	if !s.Loaded() || p.epoch == 0 {
		return
	}
	if s.Revision() < p.epoch {
		return
	}
	if own, ok := s.Broker(p.node.id); ok && own.Epoch > p.epoch && own.BootID != p.boot {
		p.superseded()
		return
	} else if !ok {
		p.register()
	}
	var peers []liveness.Peer
	for _, b := range s.Brokers() {
		peers = append(peers, liveness.Peer{ID: b.ID, Epoch: b.Epoch})
	}
	p.detector.Peers(p.now, peers)
	p.look()
	for i, ref := range p.refs {
		if record, ok := s.Partition(ref.TopicID, ref.Partition); ok {
			p.reconcile(i, record)
		}
	}
	p.confirm()
	p.mark()
	p.act()
}

// lookAgain repeats what waits for nothing but time.
func (p *proc) lookAgain() {
	if p.epoch > 0 && p.cache.state.Revision() < p.epoch {
		p.relist()
	}
	p.stateChanged()
}

// confirm reports the directories of partitions that were never led.
func (p *proc) confirm() {
	if p.confirming {
		return
	}
	var all []metadata.Confirmation
	for i, ref := range p.refs {
		record, ok := p.cache.state.Partition(ref.TopicID, ref.Partition)
		pt := p.parts[i]
		if !ok || pt == nil || pt.log() == nil || record.LeaderEpoch != 0 || !record.HasReplica(p.node.id) {
			continue
		}
		if m, ok := record.Member(p.node.id); !ok || m.StorageID != p.node.disk.storage {
			all = append(all, metadata.Confirmation{Partition: record, LogID: pt.log().LogID()})
		}
	}
	if len(all) == 0 {
		return
	}
	txs, err := p.build.ConfirmReplicas(p.reg(), all)
	p.must(err)
	p.confirming = true
	p.commitAll(txs, func() {
		p.confirming = false
		p.later(p.between(5*time.Millisecond, 50*time.Millisecond), p.stateChanged)
	})
}

// mark reports logs that lost what they had acknowledged: damaged ones, absent ones, and those that an entry names by another log ID.
func (p *proc) mark() {
	if p.marking {
		return
	}
	s := p.cache.state
	storage, ok := s.Storage(p.node.id)
	if !ok {
		storage = &metadata.Storage{BrokerID: p.node.id, StorageID: p.node.disk.storage, State: metadata.StorageActive}
	}
	if storage.StorageID != p.node.disk.storage {
		return // the controller has yet to take the lost storage out of everything
	}
	var marks []metadata.Mark
	for i, ref := range p.refs {
		record, ok := s.Partition(ref.TopicID, ref.Partition)
		if !ok {
			continue
		}
		m, member := record.Member(p.node.id)
		if !member || m.StorageID != p.node.disk.storage || storage.Marked(ref) {
			continue
		}
		switch pt := p.parts[i]; {
		case pt == nil || pt.log() == nil:
			marks = append(marks, metadata.Mark{Partition: ref, Kind: metadata.MarkFailed, LogID: m.LogID})
		case pt.damaged():
			marks = append(marks, metadata.Mark{Partition: ref, Kind: metadata.MarkQuarantined, LogID: m.LogID})
		case pt.log().LogID() != m.LogID:
			marks = append(marks, metadata.Mark{Partition: ref, Kind: metadata.MarkFailed, LogID: m.LogID})
		}
	}
	tx, ok, err := p.build.MarkLogs(p.reg(), storage, marks)
	p.must(err)
	if !ok {
		return
	}
	p.tracef("broker %d marks %d logs", p.node.id, len(marks))
	p.marking = true
	p.commit(tx, requestTimeout, func(metadata.Outcome, bool) {
		p.marking = false
		p.later(p.between(5*time.Millisecond, 50*time.Millisecond), p.stateChanged)
	})
}

// commitAll carries transactions out one after the other; each may fail.
func (p *proc) commitAll(txs []metadata.Tx, done func()) {
	if len(txs) == 0 {
		done()
		return
	}
	p.commit(txs[0], requestTimeout, func(metadata.Outcome, bool) { p.commitAll(txs[1:], done) })
}

// beat sends the heartbeats of one interval.
func (p *proc) beat() {
	if p.epoch == 0 {
		return
	}
	p.detector.Beat(p.now, p.ownBeat())
	for _, b := range p.cache.state.Brokers() {
		if b.ID != p.node.id {
			p.beatTo(b.ID)
		}
	}
	p.look()
}

func (p *proc) ownBeat() liveness.Beat {
	return liveness.Beat{From: p.node.id, Epoch: p.epoch, SyncAge: p.host.syncAge(), Suspects: p.view.Suspects, Stopping: p.stopping}
}

func (p *proc) beatTo(id int32) {
	if int(id) >= len(p.nodes) || p.epoch == 0 || p.nodes[id].hostDown {
		return
	}
	b := p.ownBeat()
	p.net.send(p, p.nodes[id], func(q *proc) {
		q.detector.Beat(q.now, b)
		q.look()
	}, func() {
		p.detector.Refused(p.now, id)
		p.look()
	})
}

// tick lets time pass for the detector and the partitions.
func (p *proc) tick() {
	p.detector.Tick(p.now)
	p.look()
	for _, pt := range p.parts {
		if pt != nil && pt.machine != nil {
			pt.step(replica.Event{Kind: replica.EventTick})
			pt.pumpAll()
		}
	}
}

// look acts on a changed view of who is alive.
func (p *proc) look() {
	v := p.detector.View(p.now)
	old := p.view
	p.view = v
	if !slices.Equal(v.Suspects, old.Suspects) {
		p.tracef("broker %d suspects %v, confirmed %v, stopping %v, hears %d", p.node.id, v.Suspects, v.Confirmed, v.Stopping, v.Hears)
		p.later(0, p.beat)
	}
	if !slices.Equal(v.Confirmed, old.Confirmed) || !slices.Equal(v.Stopping, old.Stopping) || !slices.Equal(v.Beating, old.Beating) {
		if len(v.Confirmed) > len(old.Confirmed) {
			p.cov.hit(Suspicions)
		}
		p.later(0, p.act)
	}
}

// minISR is the effective minimum of a partition as this broker sees it.
func (p *proc) minISR(record *metadata.Partition) int {
	topic, ok := p.cache.state.TopicByID(record.TopicID)
	if !ok {
		return len(record.Replicas)
	}
	return controller.MinISR(topic, record, nil)
}
