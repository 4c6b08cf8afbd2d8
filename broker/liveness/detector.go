package liveness

import (
	"maps"
	"slices"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// Config are a detector's settings; zero durations take their defaults.
type Config struct {
	// Self is the own broker id.
	Self int32
	// Interval between two beats. Default 200 ms. Tick has to be called at least as often.
	Interval time.Duration
	// SuspectAfter is the silence that makes a suspect. Default 600 ms, at least two intervals.
	SuspectAfter time.Duration
	// HungSync is the age of an unfinished sync at which a disk counts as hanging. Default 3 s.
	HungSync time.Duration
}

const (
	// lateAfter is how much later than Interval a tick may come before the own timer counts as late.
	lateAfter = 300 * time.Millisecond
	// firstBeat is how long a new registration has for its first beat: connections have to be made.
	firstBeat = 2 * time.Second
	// maxLevel bounds the back-off: silence of SuspectAfter << maxLevel always makes a suspect.
	maxLevel = 3
	// calm is how long a broker has to be free of false suspicions for the back-off to fall by one level.
	calm = 30 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Interval <= 0 {
		c.Interval = 200 * time.Millisecond
	}
	if c.SuspectAfter <= 0 {
		c.SuspectAfter = 600 * time.Millisecond
	}
	c.SuspectAfter = max(c.SuspectAfter, 2*c.Interval)
	if c.HungSync <= 0 {
		c.HungSync = 3 * time.Second
	}
	return c
}

// Peer is a live registration.
type Peer struct {
	ID int32
	// Epoch is the broker epoch.
	Epoch int64
}

// Beat is what a broker says of itself, about every Interval. The own broker's is fed too: it never falls silent, but it may be stopping,
// or have a disk that hangs.
type Beat struct {
	From  int32
	Epoch int64
	// SyncAge is the age of the sender's oldest unfinished sync; 0: none.
	SyncAge time.Duration
	// Suspects is the sender's View.Suspects. It is copied.
	Suspects []int32
	// Stopping: the sender is shutting down and hands its leaderships over. It holds for the rest of the registration.
	Stopping bool
	// Unwritable: the sender's data volume takes no writes. Reads go on, so it is no suspect.
	Unwritable bool
	// UnwritableLogs are logs of the sender that take no writes although its volume does, ordered. The slice is kept: it must not be changed.
	UnwritableLogs []Log
}

// Log names a partition's log on a broker.
type Log struct {
	TopicID   ids.TopicID
	Partition int32
}

// View is what a detector concludes. Lists are sorted and belong to the caller.
type View struct {
	// Suspects are this broker's own suspicions, which its beats tell the others. Confirmed are those to act on.
	Suspects, Confirmed []int32
	// Stopping are live registrations that said so, the own one included.
	Stopping []int32
	// Beating are brokers whose beats arrive and whose disks do not hang, whether they are registered or not. The own broker is one.
	Beating []int32
	// Unwritable are live registrations whose data volumes take no writes by their own last word, the own one included.
	Unwritable []int32
	// UnwritableLogs are single logs of live registrations that take no writes, by broker. The slices are shared: they must not be changed.
	UnwritableLogs map[int32][]Log
	// Hears is the number of other live registrations whose beats arrive.
	Hears int
}

// Equal reports whether two views say the same.
func (v View) Equal(o View) bool {
	return v.Hears == o.Hears && slices.Equal(v.Suspects, o.Suspects) && slices.Equal(v.Confirmed, o.Confirmed) &&
		slices.Equal(v.Stopping, o.Stopping) && slices.Equal(v.Beating, o.Beating) && v.SameWrites(o)
}

// SameWrites reports whether two views say the same of what takes no writes.
func (v View) SameWrites(o View) bool {
	return slices.Equal(v.Unwritable, o.Unwritable) && maps.EqualFunc(v.UnwritableLogs, o.UnwritableLogs, slices.Equal[[]Log])
}

// Detector is the failure detector of one broker. It is not safe for concurrent use. Every method takes the time as the duration since
// a fixed point of the process; it never goes back.
type Detector struct {
	cfg Config
	// peers has one entry per broker id: the live registration, or else one that beats without being registered (any more).
	peers map[int32]*peer
	// early has beats of registrations that are newer than the one in peers.
	early map[int32]*peer
	// lastTick is -1 before the first.
	lastTick time.Duration
}

// peer is what is known of one registration.
type peer struct {
	epoch      int64
	registered bool
	// since is when the registration became known.
	since time.Duration
	// timer runs from the last beat, or from when it was started anew; beat is when the last one really came, -1: never.
	timer, beat time.Duration
	// broken: no connection brings beats. refused: and a new one was refused since.
	broken, refused bool
	hung, stopping  bool
	suspects        []int32
	// unwritable and logs are the broker's last word on what takes no writes. A pause of this process does not make it void: what it moves
	// are leaderships, which costs little when it was wrong.
	unwritable bool
	logs       []Log
	silences   backOff
	refusals   backOff
}

// backOff counts false suspicions of one kind.
type backOff struct {
	level int
	// at is when the level last changed.
	at time.Duration
}

func (b *backOff) raise(now time.Duration) { b.level, b.at = min(b.level+1, maxLevel), now }

func (b *backOff) decay(now time.Duration) {
	for b.level > 0 && now-b.at >= calm {
		b.level, b.at = b.level-1, b.at+calm
	}
}

// New returns a detector that knows nobody yet.
func New(cfg Config) *Detector {
	return &Detector{cfg: cfg.withDefaults(), peers: map[int32]*peer{}, early: map[int32]*peer{}, lastTick: -1}
}

// Peers tells which registrations are alive, the own one included. It is called whenever that changes.
func (d *Detector) Peers(now time.Duration, peers []Peer) {
	d.punctual(now)
	alive := make(map[int32]bool, len(peers))
	for _, p := range peers {
		alive[p.ID] = true
		known := d.peers[p.ID]
		if early := d.early[p.ID]; early != nil && early.epoch <= p.Epoch {
			delete(d.early, p.ID)
			if early.epoch == p.Epoch {
				known = early
			}
		}
		if known == nil || known.epoch != p.Epoch {
			if known != nil && known.epoch > p.Epoch {
				d.early[p.ID] = known // the sender is ahead of the caller
			}
			known = &peer{epoch: p.Epoch, timer: now, beat: -1, broken: true}
		}
		if !known.registered {
			known.registered, known.since = true, now
		}
		d.peers[p.ID] = known
	}
	for id, p := range d.peers {
		if !alive[id] {
			p.registered = false
		}
	}
	d.forget(now)
}

// forget drops what is neither registered nor beating.
func (d *Detector) forget(now time.Duration) {
	for _, m := range []map[int32]*peer{d.peers, d.early} {
		maps.DeleteFunc(m, func(_ int32, p *peer) bool { return !p.registered && (p.beat < 0 || d.silent(now, p)) })
	}
}

// Beat takes a beat. Beats of an earlier registration than the known one are ignored.
func (d *Detector) Beat(now time.Duration, b Beat) {
	d.punctual(now)
	p := d.peers[b.From]
	switch {
	case p == nil, !p.registered && p.epoch < b.Epoch:
		p = &peer{epoch: b.Epoch, timer: now, beat: -1}
		d.peers[b.From] = p
	case p.epoch > b.Epoch:
		return
	case p.epoch < b.Epoch:
		// The registration is not known here yet; once it is, this has been its beat.
		if p = d.early[b.From]; p == nil || p.epoch < b.Epoch {
			p = &peer{epoch: b.Epoch, timer: now, beat: -1}
			d.early[b.From] = p
		} else if p.epoch > b.Epoch {
			return
		}
	}
	d.clear(now, p)
	p.timer, p.beat, p.broken, p.refused = now, now, false, false
	p.hung = b.SyncAge >= d.cfg.HungSync
	p.stopping = p.stopping || b.Stopping
	p.suspects = slices.Clone(b.Suspects)
	p.unwritable, p.logs = b.Unwritable, b.UnwritableLogs
}

// clear learns from a suspicion that a beat ends: one that ends soon was a mistake. A broker that was silent for much longer really was
// away, and is to be suspected as quickly the next time.
func (d *Detector) clear(now time.Duration, p *peer) {
	p.silences.decay(now)
	p.refusals.decay(now)
	if p.beat < 0 {
		return
	}
	age := now - p.timer
	if d.silent(now, p) && age < 2*d.silence(p) {
		p.silences.raise(now)
	}
	if d.isRefused(now, p) && age < 2*max(d.persistence(p), d.cfg.SuspectAfter) {
		p.refusals.raise(now)
	}
}

// Broken tells that the stream which brings a broker's beats has ended. That alone suspects nobody.
func (d *Detector) Broken(now time.Duration, id int32) {
	d.punctual(now)
	if p := d.peers[id]; p != nil {
		p.broken = true
	}
}

// Refused tells that a broker's host has refused a connection: nobody listens there. It is told again for each attempt. It does not
// count while beats arrive, nor right after a registration became known, when it may be about the process before.
func (d *Detector) Refused(now time.Duration, id int32) {
	d.punctual(now)
	p := d.peers[id]
	if p == nil || !p.broken && now-p.timer < d.cfg.Interval*3/2 || p.beat < 0 && now-p.since < d.cfg.Interval {
		return
	}
	p.refused = true
}

// Tick lets time pass.
func (d *Detector) Tick(now time.Duration) {
	d.punctual(now)
	d.lastTick = now
	for _, p := range d.peers {
		p.silences.decay(now)
		p.refusals.decay(now)
	}
	d.forget(now)
}

// punctual starts all timers anew when the own one was late: what was not heard meanwhile says nothing about the others. Every method
// begins with it, since after a pause any of them may be the first to run.
func (d *Detector) punctual(now time.Duration) {
	if d.lastTick < 0 || now-d.lastTick <= d.cfg.Interval+lateAfter {
		return
	}
	d.lastTick = now
	for _, m := range []map[int32]*peer{d.peers, d.early} {
		for _, p := range m {
			p.timer, p.refused, p.hung, p.suspects = now, false, false, nil
		}
	}
}

// silence is how long a registration may be silent.
func (d *Detector) silence(p *peer) time.Duration {
	limit := d.cfg.SuspectAfter << p.silences.level
	if p.beat < 0 {
		return max(limit, firstBeat)
	}
	return limit
}

// persistence is how long a refused broker has to be silent too; nothing, unless refusals have been wrong before.
func (d *Detector) persistence(p *peer) time.Duration {
	if p.refusals.level == 0 {
		return 0
	}
	return d.cfg.SuspectAfter << (p.refusals.level - 1)
}

func (d *Detector) silent(now time.Duration, p *peer) bool { return now-p.timer >= d.silence(p) }

func (d *Detector) isRefused(now time.Duration, p *peer) bool {
	return p.refused && now-p.timer >= d.persistence(p)
}

// fresh: a beat really came a moment ago.
func (d *Detector) fresh(now time.Duration, p *peer) bool {
	return p.beat >= 0 && now-p.beat < d.cfg.SuspectAfter && !p.refused
}

// suspected is this broker's own opinion.
func (d *Detector) suspected(now time.Duration, id int32, p *peer) bool {
	return p.hung || id != d.cfg.Self && (d.silent(now, p) || d.isRefused(now, p))
}

// View returns the conclusions as of now.
func (d *Detector) View(now time.Duration) View {
	d.punctual(now)
	var v View
	registered := 0
	for _, id := range slices.Sorted(maps.Keys(d.peers)) {
		p := d.peers[id]
		if id == d.cfg.Self {
			if !p.hung {
				v.Beating = append(v.Beating, id)
			}
		} else if p.beat >= 0 && !d.suspected(now, id, p) {
			v.Beating = append(v.Beating, id)
		}
		if !p.registered {
			continue
		}
		registered++
		if id != d.cfg.Self && d.fresh(now, p) {
			v.Hears++
		}
		if p.stopping {
			v.Stopping = append(v.Stopping, id)
		}
		if p.unwritable {
			v.Unwritable = append(v.Unwritable, id)
		}
		if len(p.logs) > 0 {
			if v.UnwritableLogs == nil {
				v.UnwritableLogs = map[int32][]Log{}
			}
			v.UnwritableLogs[id] = p.logs
		}
		if d.suspected(now, id, p) {
			v.Suspects = append(v.Suspects, id)
		}
	}
	if self := d.peers[d.cfg.Self]; self == nil || !self.registered {
		return v // who is not registered has no say
	}
	for _, id := range v.Suspects {
		if d.confirmed(now, id, registered, v.Hears) {
			v.Confirmed = append(v.Confirmed, id)
		}
	}
	return v
}

// confirmed applies the rules of the package comment to a suspect.
func (d *Detector) confirmed(now time.Duration, id int32, registered, hears int) bool {
	p := d.peers[id]
	switch {
	case registered < 2:
		return false
	case registered == 2:
		return p.hung || d.isRefused(now, p)
	case 2*hears < registered-1:
		return false
	}
	for other, w := range d.peers {
		if other == id || other == d.cfg.Self || !w.registered {
			continue
		}
		if d.fresh(now, w) && !d.suspected(now, other, w) && slices.Contains(w.suspects, id) {
			return true
		}
	}
	return false
}
