package sim

import (
	"slices"
	"time"

	"runnel.dev/runnel/broker/metadata"
)

// watcher is a watch of one range of keys. Its events arrive late and in order; it can break, and is then resumed where it was, or, when
// etcd has compacted that away, with a list.
type watcher struct {
	p         *proc
	index     int
	from, to  string
	next      int64
	scheduled bool
	broken    bool
	closed    bool
}

func (w *watcher) poke() {
	if w.scheduled || w.broken || w.closed || w.next == 0 {
		return
	}
	w.scheduled = true
	delay := w.p.between(200*time.Microsecond, 2*time.Millisecond)
	if w.p.chance(w.p.knobs.watchLag) {
		delay = w.p.between(10*time.Millisecond, 1500*time.Millisecond)
	}
	w.p.after(delay, w.deliver)
}

func (w *watcher) deliver() {
	w.scheduled = false
	e := w.p.etcd
	switch {
	case w.broken || w.closed || w.p.dead:
		return
	case w.p.node.etcdCut || e.down():
		w.lose()
		return
	}
	changes, ok := e.since(w.next, w.from, w.to)
	if !ok {
		w.p.do(w.p.relist)
		return
	}
	w.next = e.revision + 1
	reached := e.revision
	w.p.do(func() { w.p.cache.accept(w.index, changes, reached) })
}

// lose loses the watch; it comes back by itself.
func (w *watcher) lose() {
	if w.broken || w.closed {
		return
	}
	w.broken = true
	w.p.cov.hit(WatchBreaks)
	w.resume()
}

func (w *watcher) resume() {
	w.p.after(w.p.between(minBackOff, maxBackOff), func() {
		switch {
		case w.closed || w.p.dead:
		case w.p.node.etcdCut || w.p.etcd.down():
			w.resume()
		default:
			w.broken = false
			w.poke()
		}
	})
}

// cache is a broker's view of the metadata: the newest value of each key that it was told of, as the real State.
type cache struct {
	p        *proc
	entries  map[string]*cached
	sorted   []string
	watchers [2]*watcher
	reached  [2]int64
	listing  bool
	state    *metadata.State
}

type cached struct {
	revision int64
	contents metadata.Contents
}

func newCache(p *proc) *cache {
	c := &cache{p: p, entries: map[string]*cached{}, state: metadata.NewState(metadata.Contents{})}
	prefix := p.build.Prefix()
	for i, r := range [2][2]string{{prefix + "brokers/", prefix + "coord0"}, {prefix + "partitions/", prefix + "topics0"}} {
		c.watchers[i] = &watcher{p: p, index: i, from: r[0], to: r[1]}
		p.etcd.watchers = append(p.etcd.watchers, c.watchers[i])
	}
	return c
}

func (c *cache) close() {
	for _, w := range c.watchers {
		w.closed = true
	}
	c.p.etcd.watchers = slices.DeleteFunc(c.p.etcd.watchers, func(w *watcher) bool { return w.closed })
}

type listing struct {
	kvs      []metadata.KV
	revision int64
}

// relist reads everything at one revision and watches from there.
func (p *proc) relist() {
	c := p.cache
	if c.listing {
		return
	}
	c.listing = true
	if c.state.Loaded() {
		p.cov.hit(Relists)
	}
	get(p, func() listing {
		l := listing{revision: p.etcd.revision}
		for _, w := range c.watchers {
			l.kvs = append(l.kvs, p.etcd.list(w.from, w.to)...)
		}
		return l
	}, func(l listing) {
		c.listing = false
		c.replace(l)
		for i, w := range c.watchers {
			w.next = l.revision + 1
			c.reached[i] = max(c.reached[i], l.revision)
			if p.etcd.revision > l.revision {
				w.poke()
			}
		}
		c.publish()
	})
}

func (c *cache) replace(l listing) {
	listed := map[string]bool{}
	for _, kv := range l.kvs {
		listed[kv.Key] = true
		c.put(kv)
	}
	for _, key := range slices.Clone(c.sorted) {
		if !listed[key] && c.entries[key].revision <= l.revision {
			c.drop(key)
		}
	}
}

// accept takes what a watch delivered in. Without changes it is a progress notification.
func (c *cache) accept(index int, changes []change, reached int64) {
	for _, ch := range changes {
		if !ch.deleted {
			c.put(ch.KV)
		} else if old := c.entries[ch.Key]; old != nil && old.revision < ch.Revision {
			c.drop(ch.Key)
		}
	}
	before := min(c.reached[0], c.reached[1])
	c.reached[index] = max(c.reached[index], reached)
	if len(changes) > 0 || min(c.reached[0], c.reached[1]) > before {
		c.publish()
	}
}

func (c *cache) put(kv metadata.KV) {
	old := c.entries[kv.Key]
	if old != nil && old.revision >= kv.Revision {
		return
	}
	if old == nil {
		i, _ := slices.BinarySearch(c.sorted, kv.Key)
		c.sorted = slices.Insert(c.sorted, i, kv.Key)
	}
	c.entries[kv.Key] = &cached{revision: kv.Revision, contents: c.p.decode(kv)}
}

func (c *cache) drop(key string) {
	delete(c.entries, key)
	i, _ := slices.BinarySearch(c.sorted, key)
	c.sorted = slices.Delete(c.sorted, i, i+1)
}

// publish makes the next State and lets the broker act on it.
func (c *cache) publish() {
	all := metadata.Contents{Position: metadata.Position{ClusterID: "sim", EtcdClusterID: 1, Era: 1, Revision: min(c.reached[0], c.reached[1])}}
	for _, key := range c.sorted {
		one := &c.entries[key].contents
		if one.Cluster != nil {
			all.Cluster = one.Cluster
		}
		if one.Controller != nil {
			all.Controller = one.Controller
		}
		all.Brokers = append(all.Brokers, one.Brokers...)
		all.Storages = append(all.Storages, one.Storages...)
		all.Topics = append(all.Topics, one.Topics...)
		all.Partitions = append(all.Partitions, one.Partitions...)
	}
	c.state = metadata.NewState(all)
	c.p.stateChanged()
}

// decode reads one key. Decoded values are shared by all brokers, which the real ones do not do, and nobody changes them.
func (w *world) decode(kv metadata.KV) metadata.Contents {
	key := decodeKey{kv.Key, kv.Revision}
	if c, ok := w.decoded[key]; ok {
		return c
	}
	c, err := w.build.Decode(metadata.Position{}, []metadata.KV{kv})
	if err != nil {
		w.fail("codec", "value of %s at revision %d: %v", kv.Key, kv.Revision, err)
	}
	w.decoded[key] = c
	return c
}

type decodeKey struct {
	key      string
	revision int64
}
