package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// What every run has to reach.
const (
	// MinTime is how long every run lasts at least.
	MinTime = 60 * time.Second
	// MinLeaderChanges is how often leaders change in every run at least.
	MinLeaderChanges = 3

	faultsUntil = 45 * time.Second
	// maxFaults ends the faults even if the leaders would not change.
	maxFaults = 150 * time.Second
	// healTime is how long a healed cluster has to be whole again.
	healTime = 60 * time.Second
)

// Options say what to run.
type Options struct {
	Seed uint64
	// Trace gets every line of the trace; nil: only the last ones are kept.
	Trace io.Writer
}

// Result is what became of a run.
type Result struct {
	Seed uint64
	// Invariant is the one that was violated, "" if none was, and Detail how.
	Invariant, Detail string
	// Time is the virtual time at the end.
	Time time.Duration
	// Hash is that of the whole trace.
	Hash          uint64
	Steps         int
	LeaderChanges int
	// Tail are the last lines of the trace.
	Tail     []string
	Coverage Coverage
}

// Failed reports whether an invariant was violated.
func (r *Result) Failed() bool { return r.Invariant != "" }

// Report says all about a failed run that helps to look at it again.
func (r *Result) Report() string {
	var b strings.Builder
	for _, line := range r.Tail {
		b.WriteString("  " + line + "\n")
	}
	fmt.Fprintf(&b, "seed %d: at %s: violated: %s\n  %s\n  replay: make sim SEED=%d TRACE=1\n", r.Seed, r.Time, r.Invariant, r.Detail, r.Seed)
	return b.String()
}

// Run runs one seed. It is safe for concurrent use: runs share nothing.
func Run(o Options) (res Result) {
	cov := &Coverage{}
	s := &sched{rng: rand.New(rand.NewPCG(o.Seed, 0x52756e6e656c)), trace: newTrace(o.Trace), cov: cov} // #nosec G404 -- repeatable on purpose
	w := &world{sched: s, decoded: map[decodeKey]metadata.Contents{}, build: metadata.NewBuilder("sim")}
	defer func() {
		if r := recover(); r != nil {
			if v, ok := r.(violation); ok {
				res.Invariant, res.Detail = v.invariant, v.detail
			} else {
				res.Invariant, res.Detail = invMachinePanicked, fmt.Sprintf("%v\n%s", r, debug.Stack())
			}
		}
		res.Seed, res.Time, res.Hash, res.Steps, res.Coverage = o.Seed, s.now, s.trace.hash, s.steps, *cov
		if w.check != nil {
			res.LeaderChanges = w.check.leaderChanges
		}
		if res.Failed() {
			res.Tail = s.trace.lines()
		}
	}()
	w.setUp()
	w.run()
	return res
}

// world is everything in a run.
type world struct {
	*sched
	knobs   knobs
	class   class
	build   metadata.Builder
	etcd    *etcd
	net     *network
	nodes   []*node
	refs    []metadata.PartitionRef
	check   *checker
	decoded map[decodeKey]metadata.Contents

	producers []*producer
	consumers []*consumer
	faults    *faults
}

func (w *world) name(ref metadata.PartitionRef) string {
	for i, r := range w.refs {
		if r == ref {
			return fmt.Sprintf("p%d", i)
		}
	}
	return "?"
}

// setUp founds the cluster.
func (w *world) setUp() {
	w.choose()
	w.etcd = newEtcd(w)
	w.check = newChecker(w)
	brokers := 3 + w.rng.IntN(3)
	w.net = newNetwork(w, brokers)
	for i := range brokers {
		n := &node{world: w, id: int32(i), durable: map[metadata.PartitionRef]int64{}} // #nosec G115 -- small
		n.disk = w.newDisk()
		w.nodes = append(w.nodes, n)
	}
	w.apply(w.build.CreateCluster(&metadata.Cluster{ID: "sim", Era: 1, FormatVersion: 1, Created: wallStart}))
	for i := range 1 + w.rng.IntN(2) {
		w.newTopic(fmt.Sprintf("topic%d", i), brokers)
	}
	for _, n := range w.nodes {
		w.after(w.between(0, 500*time.Millisecond), n.start)
	}
	for i := range w.refs {
		lane := int32(2 * i) // #nosec G115 -- small
		w.producers = append(w.producers, w.newProducer(i, lane, true), w.newProducer(i, lane+1, false))
		w.consumers = append(w.consumers, w.newConsumer(i))
	}
	w.faults = newFaults(w)
}

func (w *world) newTopic(name string, brokers int) {
	replicas := min(3, brokers)
	if w.chance(0.3) {
		replicas = 2 + w.rng.IntN(brokers-1)
	}
	replicas = min(replicas, 4)
	minISR := int32(min(2, replicas)) // #nosec G115 -- small
	if w.chance(0.35) {
		minISR = int32(1 + w.rng.IntN(replicas)) // #nosec G115 -- small
	}
	t := &metadata.Topic{
		Name: name, ID: ids.TopicID(w.id16()), State: metadata.TopicCreating, Partitions: int32(1 + w.rng.IntN(2)), // #nosec G115 -- small
		Replicas: int32(replicas), Config: &runnelv1.TopicConfig{MinInSyncReplicas: &minISR}, Generation: 1, Created: wallStart, // #nosec G115 -- small
	}
	w.tracef("topic %s: %d partitions, %d replicas, minimum %d", name, t.Partitions, replicas, minISR)
	w.apply(w.build.CreateTopic(t))
	for p := range t.Partitions {
		ref := metadata.PartitionRef{TopicID: t.ID, Partition: p}
		w.refs = append(w.refs, ref)
		w.check.ledgers = append(w.check.ledgers, &ledger{ref: ref, min: int(minISR), leaders: map[int32]incarnation{}, reached: map[int32]int64{}, wholeSince: -1})
	}
}

// apply writes something before the brokers start.
func (w *world) apply(tx metadata.Tx, err error) {
	w.must(err)
	if !w.etcd.apply(&tx).Succeeded {
		w.fail("sim", "%s was refused", tx.Op)
	}
}

// run is one run: faults, then healing, then everything has to be well.
func (w *world) run() {
	w.until(faultsUntil, func() bool { return false })
	if w.check.leaderChanges < MinLeaderChanges {
		w.after(0, w.faults.unseat)
		w.until(maxFaults, func() bool { return w.check.leaderChanges >= MinLeaderChanges })
	}
	w.faults.heal()
	healed := w.now
	w.until(max(healed+healTime, MinTime), func() bool { return w.now >= healed+2*time.Second && w.unwell() == "" })
	if why := w.unwell(); why != "" {
		w.fail(invConverges, "%s after healing: %s", w.now-healed, why)
	}
	if w.check.leaderChanges < MinLeaderChanges {
		w.fail("sim", "the leaders changed %d times only", w.check.leaderChanges)
	}
	w.until(max(MinTime, w.now+time.Second), func() bool { return false })
	for _, p := range w.producers {
		p.stopped = true
	}
	w.until(w.now+10*time.Second, func() bool { return w.unfinished() == "" && w.unwell() == "" })
	if why := w.unwell() + w.unfinished(); why != "" {
		w.fail(invConverges, "%s after healing, without load: %s", w.now-healed, why)
	}
	w.judge()
	w.tracef("end after %d steps", w.steps)
}

func (w *world) until(t time.Duration, done func() bool) {
	next := w.now
	for w.now < t {
		if w.now >= next {
			if done() {
				return
			}
			next = w.now + 200*time.Millisecond
		}
		if !w.step() {
			w.fail("sim", "nothing is left to happen")
		}
	}
}
