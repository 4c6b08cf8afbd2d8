package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
)

// part is one replica on one broker: the thin shell around the real log and the real machine.
type part struct {
	*proc
	index int
	ref   metadata.PartitionRef
	held  held // the log
	// damage is why the log cannot serve; set aside once the record shows it out of the in-sync set.
	damage error

	machine *replica.Replica
	record  *metadata.Partition
	fed     fed
	status  replica.Status
	// inbox are events for the machine, outbox effects to be carried out in order; blocked while one of them takes its time.
	inbox    []replica.Event
	outbox   []output
	stepping bool
	blocked  bool

	// leader
	waiting     []waiting
	subs        []*sub
	lastSession replica.Session
	ghosts      map[int32]func() // by follower

	// follower
	session replica.Session
	stream  *stream
	ghost   func()
}

// held lets a log be replaced under the machine.
type held struct{ *log.Log }

// fed is what the machine was last told of.
type fed struct {
	record   *metadata.Partition
	epoch    int64
	self     replica.Member
	minISR   int
	usable   bool
	everFed  bool
	revision int64
}

type output struct {
	replica.Effect
	batches []byte
}

func (pt *part) log() *log.Log {
	if pt == nil {
		return nil
	}
	return pt.held.Log
}

func (pt *part) damaged() bool {
	return pt.damage != nil || pt.held.Log != nil && pt.held.State().Health == log.Quarantined
}

func (pt *part) name() string { return fmt.Sprintf("%d:%s", pt.node.id, pt.world.name(pt.ref)) }

func (pt *part) self() replica.Member {
	m := replica.Member{BrokerID: pt.node.id, StorageID: pt.node.disk.storage}
	if pt.held.Log != nil {
		m.LogID = pt.held.LogID()
	}
	return m
}

func logConfig() log.Config {
	c := log.DefaultConfig()
	c.SegmentBytes, c.IndexInterval, c.RetentionTime = 8<<10, 512, -1
	return c
}

func (p *proc) openConfig(ref metadata.PartitionRef) log.OpenConfig {
	return log.OpenConfig{
		FS: p.node.disk.fs, Dir: partitionDir(ref), Config: logConfig(), Host: p.host, Clock: simClock{w: p.world, node: p.node},
		Logger: quiet, Cache: p.files,
	}
}

var quiet = slog.New(slog.DiscardHandler)

// openPart opens the log of a partition if its directory is there.
func (p *proc) openPart(index int) {
	ref := p.refs[index]
	p.parts = append(p.parts, nil)
	if len(p.parts) != index+1 {
		p.fail("sim", "parts are opened out of order")
	}
	meta, err := log.ReadMeta(p.node.disk.fs, partitionDir(ref))
	if err != nil {
		return
	}
	oc := p.openConfig(ref)
	oc.Recovered = p.node.disk.journal.recovered(ref, meta.LogID)
	l, rep, err := log.Open(context.Background(), oc)
	if err != nil {
		p.fail("log-opens", "broker %d, %s: %v", p.node.id, p.name(ref), err)
	}
	if !rep.Clean {
		p.cov.hit(Recoveries)
		if rep.CutBytes > 0 {
			p.cov.hit(TornRecoveries)
		}
	}
	pt := p.adoptLog(index, l)
	pt.damage = rep.Quarantined
	p.tracef("open %s log %s: %d..%d hw %d epoch %d, cut %d, damage %v", pt.name(), short(l.LogID()), l.LogStart(), l.End(), l.HighWatermark(),
		l.LatestEpoch(), rep.CutBytes, rep.Quarantined != nil)
	p.check.opened(pt)
}

func (p *proc) adoptLog(index int, l *log.Log) *part {
	pt := p.parts[index]
	if pt == nil {
		pt = &part{proc: p, index: index, ref: p.refs[index], status: replica.Status{LeaderID: -1}}
		p.parts[index] = pt
	}
	pt.held.Log, pt.damage = l, nil
	if pt.machine == nil {
		pt.machine = replica.New(replica.Config{BrokerID: p.node.id}, &pt.held)
	}
	p.node.durable[pt.ref] = l.Flushed()
	l.OnFlushed(func(int64) {
		p.later(0, func() {
			if pt.held.Log == l {
				pt.step(replica.Event{Kind: replica.EventFlushed})
			}
		})
	})
	return pt
}

// create makes an empty log.
func (p *proc) create(index int, start log.StartState) {
	ref := p.refs[index]
	p.node.disk.journal.forget(ref)
	meta := log.Meta{TopicID: ref.TopicID, Partition: ref.Partition, LogID: ids.LogID(p.id16()), TopicName: "sim"}
	l, err := log.Create(context.Background(), p.openConfig(ref), meta, start)
	if err != nil {
		p.fail("log-creates", "broker %d, %s: %v", p.node.id, p.name(ref), err)
	}
	pt := p.adoptLog(index, l)
	p.tracef("create %s log %s at %d", pt.name(), short(l.LogID()), start.Offset)
	p.check.created(pt)
}

// setAside ends a log and takes its directory away.
func (pt *part) setAside() {
	if pt.held.Log != nil {
		pt.host.dirty = slices.DeleteFunc(pt.host.dirty, func(l *log.Log) bool { return l == pt.held.Log })
		_ = pt.held.Close()
		pt.held.Log = nil
	}
	pt.must(pt.node.disk.fs.RemoveAll(partitionDir(pt.ref)))
}

// reconcile makes the replica be what the record says, and tells the machine.
func (p *proc) reconcile(index int, record *metadata.Partition) {
	pt := p.parts[index]
	member, inSync := record.Member(p.node.id)
	mine := inSync && member.StorageID == p.node.disk.storage
	switch {
	case !record.HasReplica(p.node.id):
		if pt != nil && pt.machine != nil {
			pt.feed(record)
		}
		return
	case pt.log() == nil && mine && record.LeaderEpoch > 0:
		return // lost; mark reports it
	case pt.log() == nil:
		p.create(index, log.StartState{})
	case pt.damaged() && !inSync:
		p.tracef("replace %s", pt.name())
		pt.stepNow(replica.Event{Kind: replica.EventFailed})
		pt.dropAll()
		pt.setAside()
		p.create(index, log.StartState{})
	}
	p.parts[index].feed(record)
}

// feed tells the machine of its situation, if that has changed.
func (pt *part) feed(record *metadata.Partition) {
	now := fed{
		record: record, epoch: pt.epoch, self: pt.self(), minISR: pt.minISR(record), everFed: true, revision: record.Revision,
		usable: pt.held.Log != nil && !pt.damaged() && pt.held.State().Health == log.Online,
	}
	if now == pt.fed || pt.machine == nil {
		return
	}
	pt.fed, pt.record = now, record
	pt.step(pt.metadataEvent())
}

func (pt *part) metadataEvent() replica.Event {
	f := &pt.fed
	return replica.Event{
		Kind: replica.EventMetadata, Record: replicaRecord(f.record, f.minISR), BrokerEpoch: f.epoch, Self: f.self, Usable: f.usable,
	}
}

func replicaRecord(p *metadata.Partition, minISR int) *replica.Record {
	r := &replica.Record{
		Revision: p.Revision, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, LeaderBrokerEpoch: p.LeaderBrokerEpoch, Replicas: p.Replicas, MinISR: minISR,
	}
	for _, m := range p.ISR {
		r.ISR = append(r.ISR, replica.Member(m))
	}
	return r
}

// step gives the machine an event. Events that effects cause are taken afterwards, in order.
func (pt *part) step(ev replica.Event) {
	if pt.machine == nil || pt.dead {
		return
	}
	pt.inbox = append(pt.inbox, ev)
	pt.drain()
}

// stepNow is step for an event whose effects have to be over when it returns.
func (pt *part) stepNow(ev replica.Event) {
	pt.blocked = false
	pt.step(ev)
	pt.outbox = nil
}

func (pt *part) drain() {
	if pt.stepping {
		return
	}
	pt.stepping = true
	for !pt.dead {
		if len(pt.outbox) > 0 && !pt.blocked {
			out := pt.outbox[0]
			pt.outbox = pt.outbox[1:]
			pt.carryOut(&out)
			continue
		}
		if len(pt.inbox) == 0 {
			break
		}
		ev := pt.inbox[0]
		pt.inbox = pt.inbox[1:]
		pt.take(&ev, nil)
	}
	pt.stepping = false
}

// take runs the machine once and queues its effects.
func (pt *part) take(ev *replica.Event, batches []byte) {
	ev.Now = pt.now
	hw := pt.highWatermark()
	if ev.Kind != replica.EventTick && ev.Kind != replica.EventFlushed {
		pt.tracef("%s <- %s", pt.name(), describe(ev))
	}
	for _, e := range pt.machine.Step(ev) {
		pt.tracef("%s    -> %s", pt.name(), describeEffect(&e))
		pt.outbox = append(pt.outbox, output{Effect: e, batches: batches})
	}
	if after := pt.highWatermark(); after != hw {
		pt.check.highWatermark(pt, hw, after)
	}
}

func (pt *part) highWatermark() int64 {
	if pt.held.Log == nil {
		return -1
	}
	return pt.held.HighWatermark()
}

// blockFor carries a slow operation out and holds everything behind it up until then.
func (pt *part) blockFor(d time.Duration, f func()) {
	pt.blocked = true
	l := pt.held.Log
	pt.host.wait(d, func() {
		if pt.held.Log == l && pt.blocked {
			pt.blocked = false
			f()
		}
		pt.drain()
	})
}

// carryOut does what one effect says.
func (pt *part) carryOut(e *output) {
	switch e.Kind {
	case replica.EffectAssignEpoch:
		epoch := e.Epoch
		pt.blockFor(pt.between(0, 300*time.Microsecond), func() {
			err := pt.held.AssignEpoch(epoch)
			pt.step(replica.Event{Kind: replica.EventEpochAssigned, Epoch: epoch, Offset: pt.held.End(), Err: err})
		})
	case replica.EffectRole:
		pt.publishRole()
	case replica.EffectHighWatermark:
		pt.settle()
		pt.pumpAll()
	case replica.EffectPropose:
		pt.propose(&e.Effect)
	case replica.EffectGrant, replica.EffectDiverging, replica.EffectBelowStart, replica.EffectRefuse:
		pt.answerSub(&e.Effect)
	case replica.EffectSubscribe:
		pt.subscribe(&e.Effect)
	case replica.EffectUnsubscribe:
		if pt.session == e.Session {
			pt.unsubscribe()
		}
	case replica.EffectAppend:
		pt.appendAsFollower(e.batches)
	case replica.EffectTruncate:
		to := e.Offset
		pt.blockFor(pt.node.syncDelay(), func() { pt.truncate(to) })
	case replica.EffectReset:
		pt.reset(&e.Effect)
	case replica.EffectAck:
		pt.ack(&e.Effect)
	case replica.EffectJournalLogStart:
		to, l := e.Offset, pt.held.Log
		pt.host.wait(pt.node.syncDelay(), func() {
			if pt.held.Log != l {
				return
			}
			err := l.JournalLogStart(context.Background(), to)
			pt.step(replica.Event{Kind: replica.EventLogStartJournaled, Offset: to, Err: err})
			pt.pumpAll()
		})
	case replica.EffectPublishLogStart:
		pt.publishStart(e.Offset)
	default:
		pt.fail("effects", "%s: unknown effect %d", pt.name(), e.Kind)
	}
}

func (pt *part) publishRole() {
	old := pt.status
	pt.status = pt.machine.Status()
	if old.Leading && (!pt.status.Leading || pt.status.Epoch != old.Epoch) {
		pt.failWaiting()
	}
	if pt.status.Leading && (!old.Leading || pt.status.Epoch != old.Epoch) {
		pt.check.leads(pt)
	}
	pt.tracef("%s role: leading %v epoch %d leader %d writable %v isr %s effective %s %s", pt.name(), pt.status.Leading, pt.status.Epoch,
		pt.status.LeaderID, pt.status.Writable, replicaMembers(pt.status.ISR), replicaMembers(pt.status.Effective), pt.status.Following)
}

func (pt *part) truncate(to int64) {
	end, hw, cut := pt.held.End(), pt.held.HighWatermark(), pt.check.cutting(pt, to)
	err := pt.held.Truncate(context.Background(), to)
	if err == nil && pt.held.End() < end {
		pt.cov.hit(Truncations)
		pt.check.truncated(pt, hw, cut)
	}
	pt.node.durable[pt.ref] = min(pt.node.durable[pt.ref], pt.held.End())
	pt.tracef("%s truncated to %d: %d -> %d err %v", pt.name(), to, end, pt.held.End(), err)
	pt.step(replica.Event{Kind: replica.EventTruncated, Err: err})
}

// appendAsFollower appends what the leader pushed.
func (pt *part) appendAsFollower(batches []byte) {
	if _, err := pt.held.AppendAsFollower(slices.Clone(batches)); err != nil {
		pt.tracef("%s append failed: %v", pt.name(), err)
		pt.step(replica.Event{Kind: replica.EventAppendFailed, Err: err})
	}
}

func (pt *part) publishStart(to int64) {
	l := pt.held.Log
	before := l.LogStart()
	if err := l.PublishLogStart(context.Background(), to); err != nil {
		pt.tracef("%s publish log start %d: %v", pt.name(), to, err)
		return
	}
	if l.LogStart() > before {
		pt.cov.hit(LogStartMoves)
	}
	pt.check.logStart(pt, before)
	pt.pumpAll()
}

// reset asks the leader how its log begins, and begins a new one there.
func (pt *part) reset(e *replica.Effect) {
	pt.blocked = true
	done := false
	l := pt.held.Log
	finish := func(st log.StartState, err error) {
		if done || pt.held.Log != l {
			return
		}
		done, pt.blocked = true, false
		if err == nil {
			pt.cov.hit(Resets)
			pt.setAside()
			pt.proc.create(pt.index, st)
			pt.fed.self = pt.self()
			pt.step(pt.metadataEvent())
		}
		pt.step(replica.Event{Kind: replica.EventTruncated, Err: err})
		pt.drain()
	}
	pt.later(time.Second, func() { finish(log.StartState{}, errUnanswered) })
	leader := pt.record.Leader
	if leader < 0 {
		finish(log.StartState{}, errUnanswered)
		return
	}
	pt.net.send(pt.proc, pt.nodes[leader], func(q *proc) {
		other := q.parts[pt.index]
		if other == nil || !other.status.Leading {
			return
		}
		st, err := other.held.StartStateAt(other.held.LogStart())
		q.net.send(q, pt.node, func(back *proc) {
			if back == pt.proc {
				finish(st, err)
			}
		}, nil)
	}, nil)
}

var errUnanswered = errors.New("the leader did not answer")

func (pt *part) madeDurable(end int64) {
	pt.node.durable[pt.ref] = max(pt.node.durable[pt.ref], end)
}

func members(ms []metadata.Member) string {
	var b strings.Builder
	for _, m := range ms {
		fmt.Fprintf(&b, "%d/%s/%s ", m.BrokerID, short(m.StorageID)[:4], short(m.LogID)[:4])
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

func replicaMembers(ms []replica.Member) string {
	out := make([]metadata.Member, 0, len(ms))
	for _, m := range ms {
		out = append(out, metadata.Member(m))
	}
	return members(out)
}
