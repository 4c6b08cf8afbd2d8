package replica

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// control is the controller: it takes lost storage out, makes registrations eligible, and elects from the in-sync set.
func (w *world) control(prefer int) {
	kept := slices.DeleteFunc(slices.Clone(w.rec.ISR), func(m Member) bool { return w.self[m.BrokerID] != m && w.eligible[m.BrokerID] != w.reg[m.BrokerID] })
	if len(kept) < len(w.rec.ISR) && len(kept) > 0 {
		w.setISR(kept)
		w.put("lost storage")
	}
	for i := range w.nodes {
		w.eligible[i] = w.reg[i]
	}
	for i := range w.nodes {
		b := (prefer + i) % len(w.nodes)
		if slices.Contains(w.rec.ISR, w.self[b]) {
			w.rec.Leader, w.rec.LeaderBrokerEpoch = int32(b), w.reg[b]
			w.rec.LeaderEpoch++
			w.put("election")
			return
		}
	}
}

func (w *world) restart(n *node, log *memLog) {
	w.revision++
	w.reg[n.id], w.self[n.id] = w.revision, log.id
	w.mail = slices.DeleteFunc(w.mail, func(l *letter) bool { return l.to == n.id })
	w.changes = slices.DeleteFunc(w.changes, func(c *change) bool { return c.from == n.id && c.done })
	n.start(log)
}

// mayWipe: a disk may be lost while another member of the in-sync set has what this one has, and no other loss is being dealt with.
func (w *world) mayWipe(n *node) bool {
	others := 0
	for _, m := range w.rec.ISR {
		if w.self[m.BrokerID] != m {
			return false
		}
		if m.BrokerID != n.id {
			others++
		}
	}
	return others > 0
}

func (w *world) act() {
	n := w.nodes[w.rng.IntN(3)]
	switch a := w.rng.IntN(1000); {
	case a < 400:
		if k := len(w.mail); k > 0 {
			i := w.rng.IntN(3*k + 1)
			if i >= k {
				i = 0 // mostly in order
			}
			l := w.mail[i]
			if w.rng.IntN(16) > 0 {
				w.mail = slices.Delete(w.mail, i, i+1)
			}
			w.deliver(l)
		}
	case a < 410:
		if k := len(w.mail); k > 0 {
			i := w.rng.IntN(k)
			l := w.mail[i]
			w.mail = slices.Delete(w.mail, i, i+1)
			w.lose(l)
		}
	case a < 500:
		w.now += 100 * time.Millisecond
		for _, n := range w.nodes {
			n.step(Event{Kind: EventTick}, nil)
		}
	case a < 620:
		w.say("%d syncs", n.id)
		n.log.sync()
		n.step(Event{Kind: EventFlushed}, nil)
	case a < 720:
		for _, n := range w.nodes {
			if st := n.r.Status(); st.Leading && st.Writable {
				w.value++
				w.say("%d appends %d at %d", n.id, w.value, n.log.End())
				n.log.append(logEntry{st.Epoch, w.value})
			}
		}
	case a < 860:
		n.push()
	case a < 920:
		if n.known < w.rec.Revision {
			w.say("%d learns revision %d", n.id, w.rec.Revision)
			w.tell(n, w.rec)
		}
	case a < 970:
		w.settle()
	case a < 980:
		w.control(w.rng.IntN(3))
	case a < 985:
		w.say("%d crashes", n.id)
		w.seen["crash"]++
		w.restart(n, n.log.crashed())
	case a < 988:
		if w.mayWipe(n) {
			w.say("%d loses its disk", n.id)
			w.seen["wipe"]++
			n.gens++
			w.restart(n, newMemLog(id(n.id, byte(n.gens)), 0))
		}
	case a < 995:
		n.step(Event{Kind: EventWantLogStart, Offset: n.log.hw}, nil)
	default:
		w.now += 500 * time.Millisecond
	}
}

// settle carries a change out, or answers one that was.
func (w *world) settle() {
	if len(w.changes) == 0 {
		return
	}
	i := w.rng.IntN(len(w.changes))
	c := w.changes[i]
	if !c.done {
		w.tryChange(c)
		return
	}
	w.changes = slices.Delete(w.changes, i, i+1)
	rec := w.rec
	w.say("%d hears that proposal %d was applied: %v", c.from, c.effect.Proposal, c.applied)
	if w.reg[c.from] == c.reg {
		w.nodes[c.from].step(Event{Kind: EventProposalSettled, Proposal: c.effect.Proposal, Applied: c.applied, Record: &rec}, nil)
	}
}

// Three replicas, any order of events: what was committed stays, on every replica that says it has it and on every leader; the high watermark
// does not go back; nobody leaves the in-sync set below the minimum who has lost nothing.
func TestModel(t *testing.T) {
	const seeds = 3000
	seen := map[string]int{}
	for seed := range uint64(seeds) {
		w, why := play(seed, false)
		if why != nil {
			w, why = play(seed, true)
			t.Fatalf("seed %d: %v\nafter:\n%s", seed, why, strings.Join(w.history[max(0, len(w.history)-2000):], "\n"))
		}
		for k, v := range w.seen {
			seen[k] += v
		}
	}
	for _, what := range []string{"election", "commit", "proposal", "truncation", "crash", "wipe", "publish", "reset", "healed"} {
		if seen[what] < seeds/100 {
			t.Errorf("%s: only %d in the whole run", what, seen[what])
		}
	}
	t.Logf("%v", seen)
}

// play runs one seed, and returns what broke: a rule of the model, or an invariant of the machine.
func play(seed uint64, telling bool) (w *world, why any) {
	defer func() { why = recover() }()
	lastSession = 0
	w = newWorld(seed, telling)
	for _, n := range w.nodes {
		w.tell(n, w.rec)
	}
	for range 400 + w.rng.IntN(1200) {
		w.act()
	}
	w.heal()
	return w, nil
}

// heal lets everything work for a while: everybody is in the in-sync set again and everything is committed.
func (w *world) heal() {
	w.control(0)
	for range 200 {
		w.now += 100 * time.Millisecond
		for range 2 {
			for _, n := range w.nodes {
				if n.known < w.rec.Revision {
					w.tell(n, w.rec)
				}
				n.log.sync()
				n.step(Event{Kind: EventFlushed}, nil)
				n.push()
			}
			for len(w.mail) > 0 {
				l := w.mail[0]
				w.mail = w.mail[1:]
				w.deliver(l)
			}
			changes := w.changes
			w.changes = nil
			for _, c := range changes {
				w.tryChange(c)
				if w.reg[c.from] == c.reg {
					rec := w.rec
					w.nodes[c.from].step(Event{Kind: EventProposalSettled, Proposal: c.effect.Proposal, Applied: c.applied, Record: &rec}, nil)
				}
			}
		}
		for _, n := range w.nodes {
			n.step(Event{Kind: EventTick}, nil)
		}
		if lead := w.nodes[max(w.rec.Leader, 0)]; len(w.rec.ISR) == 3 && lead.r.role == roleLeading && lead.log.hw == lead.log.End() {
			w.seen["healed"]++
			return
		}
	}
	for _, n := range w.nodes {
		w.say("%d: role %d %s log %d..%d hw %d", n.id, n.r.role, n.r.Status().Following, n.log.start, n.log.End(), n.log.hw)
	}
	w.fail("it did not heal: isr %s", names(w.rec.ISR))
}
