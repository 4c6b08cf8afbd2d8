package sim

import (
	"slices"
	"strings"
	"time"

	"runnel.dev/runnel/broker/metadata"
)

const leaseTTL = 5 * time.Second

// etcd is the model of the metadata store: linearizable, with revisions, leases and a history for watches. What clients see of it, late,
// twice or never, is etcdclient.go's.
type etcd struct {
	*world

	revision  int64
	compacted int64
	keys      map[string]*etcdKey
	sorted    []string
	history   []change // revisions compacted+1 …
	leases    map[int64]*lease
	leaseIDs  []int64
	nextLease int64
	watchers  []*watcher

	// down: requests are not served until then.
	downUntil time.Duration
}

type etcdKey struct {
	metadata.KV
	lease int64
}

// change is one change of one key. Changes of one transaction share the revision.
type change struct {
	metadata.KV
	deleted bool
}

type lease struct {
	id      int64
	expires time.Duration
	keys    []string
}

func newEtcd(w *world) *etcd {
	return &etcd{world: w, revision: 1, keys: map[string]*etcdKey{}, leases: map[int64]*lease{}}
}

func (e *etcd) down() bool { return e.now < e.downUntil }

func (e *etcd) get(key string) metadata.KV {
	if k := e.keys[key]; k != nil {
		return k.KV
	}
	return metadata.KV{Key: key}
}

// list returns the keys in [from, to) in order.
func (e *etcd) list(from, to string) []metadata.KV {
	i, _ := slices.BinarySearch(e.sorted, from)
	var out []metadata.KV
	for ; i < len(e.sorted) && e.sorted[i] < to; i++ {
		out = append(out, e.keys[e.sorted[i]].KV)
	}
	return out
}

func (e *etcd) holds(c metadata.Compare) bool {
	if c.Prefix {
		for _, kv := range e.list(c.Key, c.Key+"\xff") {
			if (kv.Revision == c.Revision) == c.Not {
				return false
			}
		}
		return true
	}
	return (e.get(c.Key).Revision == c.Revision) != c.Not
}

// apply carries a transaction out.
func (e *etcd) apply(tx *metadata.Tx) metadata.Answer {
	before := e.revision
	wrote := false
	a := e.applyTx(tx, before+1, &wrote)
	if wrote {
		e.revision = before + 1
		e.changed(before + 1)
	}
	e.stamp(&a)
	return a
}

func (e *etcd) stamp(a *metadata.Answer) {
	a.Revision = e.revision
	for i := range a.Nested {
		e.stamp(&a.Nested[i])
	}
}

func (e *etcd) applyTx(tx *metadata.Tx, revision int64, wrote *bool) metadata.Answer {
	for _, c := range tx.Compares {
		if !e.holds(c) {
			a := metadata.Answer{}
			for _, key := range tx.Reads {
				a.Reads = append(a.Reads, e.get(key))
			}
			return a
		}
	}
	a := metadata.Answer{Succeeded: true}
	for _, p := range tx.Then {
		if e.put(p, revision) {
			*wrote = true
		}
	}
	for i := range tx.Nested {
		a.Nested = append(a.Nested, e.applyTx(&tx.Nested[i], revision, wrote))
	}
	return a
}

func (e *etcd) put(p metadata.Put, revision int64) bool {
	old := e.keys[p.Key]
	if p.Delete {
		if old == nil {
			return false
		}
		e.remove(p.Key, revision)
		return true
	}
	if old == nil {
		i, _ := slices.BinarySearch(e.sorted, p.Key)
		e.sorted = slices.Insert(e.sorted, i, p.Key)
		old = &etcdKey{}
		e.keys[p.Key] = old
	}
	if old.lease != 0 && old.lease != p.Lease {
		e.detach(old.lease, p.Key)
	}
	if p.Lease != 0 && old.lease != p.Lease {
		if l := e.leases[p.Lease]; l != nil {
			l.keys = append(l.keys, p.Key)
		}
	}
	old.KV, old.lease = metadata.KV{Key: p.Key, Value: p.Value, Revision: revision}, p.Lease
	e.history = append(e.history, change{KV: old.KV})
	return true
}

func (e *etcd) remove(key string, revision int64) {
	i, _ := slices.BinarySearch(e.sorted, key)
	e.sorted = slices.Delete(e.sorted, i, i+1)
	if l := e.keys[key].lease; l != 0 {
		e.detach(l, key)
	}
	delete(e.keys, key)
	e.history = append(e.history, change{KV: metadata.KV{Key: key, Revision: revision}, deleted: true})
}

// leaseGone: a transaction that attaches a key to a lease which has expired is refused.
func (e *etcd) leaseGone(tx *metadata.Tx) bool {
	return slices.ContainsFunc(tx.Then, func(p metadata.Put) bool { return p.Lease != 0 && e.leases[p.Lease] == nil })
}

func (e *etcd) detach(id int64, key string) {
	if l := e.leases[id]; l != nil {
		l.keys = slices.DeleteFunc(l.keys, func(k string) bool { return k == key })
	}
}

// changed tells the checker and the watchers of a new revision.
func (e *etcd) changed(revision int64) {
	for i := len(e.history) - 1; i >= 0 && e.history[i].Revision == revision; i-- {
		e.check.recordChanged(&e.history[i])
	}
	for _, w := range e.watchers {
		w.poke()
	}
}

// since returns the changes of a range from a revision on, and false if they were compacted away.
func (e *etcd) since(revision int64, from, to string) ([]change, bool) {
	if revision <= e.compacted {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(e.history, revision, func(c change, r int64) int { return int(c.Revision - r) })
	for i > 0 && e.history[i-1].Revision >= revision {
		i--
	}
	var out []change
	for ; i < len(e.history); i++ {
		if k := e.history[i].Key; k >= from && k < to {
			out = append(out, e.history[i])
		}
	}
	return out, true
}

// compact drops the history up to the present revision.
func (e *etcd) compact() {
	e.compacted = e.revision
	e.history = e.history[:0:0]
	e.tracef("etcd compact %d", e.revision)
}

func (e *etcd) grant() int64 {
	e.nextLease++
	l := &lease{id: e.nextLease, expires: e.now + leaseTTL}
	e.leases[l.id] = l
	e.leaseIDs = append(e.leaseIDs, l.id)
	e.expireLater(l)
	return l.id
}

// expireLater looks at a lease when it is due. While etcd is down nothing expires, and whoever leads afterwards refreshes all leases.
func (e *etcd) expireLater(l *lease) {
	e.after(l.expires-e.now, func() {
		switch {
		case e.leases[l.id] != l:
		case e.down():
			l.expires = e.downUntil + leaseTTL
			e.expireLater(l)
		case e.now < l.expires:
			e.expireLater(l)
		default:
			e.cov.hit(LeaseExpiries)
			e.tracef("etcd lease %d expires: %s", l.id, strings.Join(l.keys, " "))
			e.revoke(l.id)
		}
	})
}

// keepAlive reports whether the lease is alive.
func (e *etcd) keepAlive(id int64) bool {
	l := e.leases[id]
	if l == nil {
		return false
	}
	l.expires = e.now + leaseTTL
	return true
}

func (e *etcd) revoke(id int64) {
	l := e.leases[id]
	if l == nil {
		return
	}
	delete(e.leases, id)
	e.leaseIDs = slices.DeleteFunc(e.leaseIDs, func(other int64) bool { return other == id })
	if len(l.keys) == 0 {
		return
	}
	revision := e.revision + 1
	for _, key := range slices.Clone(l.keys) {
		e.remove(key, revision)
	}
	e.revision = revision
	e.changed(revision)
}

// elect is a change of etcd's leader: a short outage, all leases refreshed, watches broken.
func (e *etcd) elect(outage time.Duration) {
	e.cov.hit(EtcdLeaderChanges)
	e.outage(outage)
	for _, id := range e.leaseIDs {
		e.leases[id].expires = e.now + outage + leaseTTL
	}
	for _, w := range e.watchers {
		if e.chance(0.5) {
			w.lose()
		}
	}
}

func (e *etcd) outage(d time.Duration) {
	e.tracef("etcd down for %s", d)
	e.downUntil = max(e.downUntil, e.now+d)
}
