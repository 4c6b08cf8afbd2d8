package sim

import (
	"context"
	"maps"
	"strings"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/ids"
)

// rollBack gives a broker its disk back as it was some time ago, under the same identities. Nothing is promised then, except that whoever notices
// says so, and that all comes to rest in the end.
func (f *faults) rollBack() {
	n := f.node()
	if !f.class.rollbacks || n.proc == nil {
		return
	}
	past := disk{fs: n.disk.fs.StrictCrashClone(), storage: n.disk.storage, journal: &journal{durable: maps.Clone(n.disk.journal.durable)}}
	f.after(f.between(200*time.Millisecond, 2*time.Second), func() {
		if f.calmed || n.disk.storage != past.storage {
			return
		}
		n.crash(true)
		f.tracef("disk of %d is rolled back", n.id)
		n.disk = &past
		refs, logIDs := n.logs()
		for i, ref := range refs {
			f.check.ledger(ref).forced = true
			delete(f.check.lost, logIDs[i]) // what was lost since is there again
		}
		f.after(f.between(20*time.Millisecond, 200*time.Millisecond), n.start)
	})
}

// logs are the logs on a machine's disk.
func (n *node) logs() (refs []metadata.PartitionRef, logIDs []ids.LogID) {
	for _, ref := range n.refs {
		if m, err := log.ReadMeta(n.disk.fs, partitionDir(ref)); err == nil {
			refs, logIDs = append(refs, ref), append(logIDs, m.LogID)
		}
	}
	return refs, logIDs
}

// loseDisk replaces a whole disk while its broker is down.
func (f *faults) loseDisk() {
	n := f.node()
	if !f.class.losses || n.proc == nil {
		return
	}
	refs, logIDs := n.logs()
	for _, ref := range refs {
		if !f.check.mayLose(n, ref) {
			return
		}
	}
	f.kill(n, func() {
		f.cov.hit(StorageLosses)
		f.tracef("disk of %d is replaced", n.id)
		for i, ref := range refs {
			f.check.loses(n, ref, logIDs[i])
		}
		n.disk = f.newDisk()
	})
}

// loseLog loses one log while its broker is down: its directory, some of its bytes, or its end and its identity.
func (f *faults) loseLog() {
	n := f.node()
	refs, logIDs := n.logs()
	if !f.class.losses || n.proc == nil || len(refs) == 0 {
		return
	}
	i := f.rng.IntN(len(refs))
	ref := refs[i]
	if !f.check.mayLose(n, ref) || f.check.lost[logIDs[i]] {
		return
	}
	how := f.rng.IntN(3)
	f.kill(n, func() {
		switch how {
		case 0:
			f.cov.hit(EmptiedLogs)
			f.tracef("directory of %s on %d is removed", f.name(ref), n.id)
			f.must(n.disk.fs.RemoveAll(partitionDir(ref)))
			n.disk.fs.SyncAll()
		case 1:
			if !n.damage(ref) {
				return
			}
			f.cov.hit(DamagedLogs)
		default:
			if !n.rebuild(ref, logIDs[i]) {
				return
			}
			f.cov.hit(RebuiltLogs)
		}
		f.check.loses(n, ref, logIDs[i])
	})
}

// damage flips a byte of the newest segment, below what was flushed. It reports whether there was one.
func (n *node) damage(ref metadata.PartitionRef) bool {
	dir := partitionDir(ref)
	entries, err := n.disk.fs.ReadDir(dir)
	n.must(err)
	name, base := "", int64(0)
	for _, e := range entries {
		if strings.HasSuffix(e.Name, ".log") && e.Size > 0 {
			name, base = e.Name, 0
			for _, c := range strings.TrimSuffix(e.Name, ".log") {
				base = base*10 + int64(c-'0')
			}
		}
	}
	st, known := n.disk.journal.durable[ref]
	if name == "" || !known || base >= st.Flushed {
		return false
	}
	n.tracef("log of %s on %d is damaged in %s", n.name(ref), n.id, name)
	f, err := n.disk.fs.OpenRW(dir + "/" + name)
	n.must(err)
	var b [1]byte
	_, err = f.ReadAt(b[:], 40)
	n.must(err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], 40)
	n.must(err)
	n.must(f.Close())
	_ = n.disk.fs.Remove(dir + "/clean") // whether there is one
	n.disk.fs.SyncAll()
	return true
}

// rebuild makes a log out of the beginning of another one, as a person does who accepts the loss of the rest. It
// reports whether the log could be read.
func (n *node) rebuild(ref metadata.PartitionRef, was ids.LogID) bool {
	oc := log.OpenConfig{
		FS: n.disk.fs, Dir: partitionDir(ref), Config: logConfig(), Host: &host{p: &proc{world: n.world, node: n, dead: true}},
		Clock: simClock{w: n.world, node: n}, Logger: quiet, Cache: segment.NewCache(0, 0), Recovered: n.disk.journal.recovered(ref, was),
	}
	old, rep, err := log.Open(context.Background(), oc)
	n.must(err)
	if rep.Quarantined != nil {
		return false
	}
	st, err := old.StartStateAt(old.LogStart())
	n.must(err)
	upTo := st.Offset + n.rng.Int64N(old.End()-st.Offset+1)
	var batches []byte
	for at := st.Offset; at < upTo; {
		b, next, err := readBatches(old, at, 1)
		n.must(err)
		batches, at = append(batches, b...), next
	}
	_ = old.Close()
	n.must(n.disk.fs.RemoveAll(oc.Dir))
	n.disk.journal.forget(ref)
	oc.Recovered, oc.Cache = log.Recovered{}, segment.NewCache(0, 0)
	meta := log.Meta{TopicID: ref.TopicID, Partition: ref.Partition, LogID: ids.LogID(n.id16()), TopicName: "sim"}
	l, err := log.Create(context.Background(), oc, meta, st)
	n.must(err)
	if len(batches) > 0 {
		_, err = l.AppendAsFollower(batches)
		n.must(err)
	}
	n.must(l.SyncNow(func(e log.JournalEntry) error { return oc.Host.JournalNow(context.Background(), e) }))
	n.disk.journal.write(l.JournalEntry())
	n.disk.journal.sync()
	n.disk.fs.SyncAll()
	n.tracef("log of %s on %d is rebuilt: %d of %d, %s", n.name(ref), n.id, l.End(), upTo, short(l.LogID()))
	return true
}

// controllerProc is the broker that controls.
func (f *faults) controllerProc() *proc {
	for _, n := range f.nodes {
		if p := n.proc; p != nil && !n.paused && f.etcd.controls(p) && p.control.tenure.Epoch != 0 {
			return p
		}
	}
	return nil
}

// aPartition is a partition as some broker sees it.
func (f *faults) aPartition(p *proc) *metadata.Partition {
	ref := pick(f.sched, f.refs)
	record, ok := p.cache.state.Partition(ref.TopicID, ref.Partition)
	if !ok || record.LeaderEpoch == 0 {
		return nil
	}
	return record
}

// deleteRecords asks a leader to begin its log later.
func (f *faults) deleteRecords() {
	for _, n := range f.nodes {
		if n.proc == nil || n.paused {
			continue
		}
		for i, pt := range n.proc.parts {
			if pt == nil || !pt.status.Leading || f.chance(0.5) {
				continue
			}
			hw := pt.held.HighWatermark()
			start := pt.held.LogStart()
			if hw <= start {
				continue
			}
			to := start + f.rng.Int64N(hw-start) + 1
			f.tracef("delete records of %s below %d", f.name(f.refs[i]), to)
			l := f.check.ledgers[i]
			l.asked = max(l.asked, to)
			pt.wantLogStart(to)
			return
		}
	}
}
