package metadata

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// replicaModel is one broker's log of the one partition of a history: what is in memory, and what would be left after a crash.
type replicaModel struct {
	batches          []batchModel
	flushed          int
	adopted, durable int32
	// leads is the epoch that the broker believes to lead, 0: none. A deposed leader goes on believing.
	leads int32
	// acked is what it acknowledged in the present epoch, -1: nothing.
	acked int
}

type batchModel struct {
	epoch int32
	value int
}

// history is a partition on three brokers while etcd is still there.
type history struct {
	replicas  [3]replicaModel
	isr       []int
	leader    int
	epoch     int32
	start     int
	minISR    int
	committed []batchModel
	values    int
	topic     *Topic
	snapshots []*Snapshot
	revision  int64
}

func (h *history) ref() PartitionRef { return PartitionRef{TopicID: h.topic.ID} }

func (h *history) member(b int) Member {
	return Member{BrokerID: int32(b), StorageID: ids.StorageID{1, byte(b)}, LogID: ids.LogID{2, byte(b)}}
}

func (h *history) elect(b int) {
	h.epoch++
	h.leader, h.start = b, len(h.replicas[b].batches)
	for i := range h.replicas {
		h.replicas[i].acked = -1
	}
	h.replicas[b].leads, h.replicas[b].adopted = h.epoch, h.epoch
}

// follow truncates to where the leader's history diverges, and adopts its epoch.
func (h *history) follow(b int) {
	r, l := &h.replicas[b], &h.replicas[h.leader]
	n := 0
	for n < len(r.batches) && n < len(l.batches) && r.batches[n] == l.batches[n] {
		n++
	}
	r.batches, r.flushed, r.leads, r.adopted = r.batches[:n:n], min(r.flushed, n), 0, h.epoch
}

func (h *history) ack(b int) {
	r := &h.replicas[b]
	r.flushed, r.durable = len(r.batches), r.adopted
	if r.durable == h.epoch {
		r.acked = r.flushed
	}
}

// commit moves the high watermark as the leader would.
func (h *history) commit() {
	if h.leader < 0 || len(h.isr) < h.minISR {
		return
	}
	hw := len(h.replicas[h.leader].batches)
	for _, b := range h.isr {
		hw = min(hw, h.replicas[b].acked)
	}
	if hw > len(h.committed) {
		h.committed = slices.Clone(h.replicas[h.leader].batches[:hw])
	}
}

func (h *history) step(t *testing.T, random *rand.Rand) {
	b := random.IntN(3)
	r := &h.replicas[b]
	leads := h.leader >= 0 && h.leader != b
	steps := []string{
		"produce", "produce", "produce", "replicate", "ack", "ack", "ack", "follow", "follow", "fetch", "elect", "elect", "shrink", "grow", "crash", "snapshot",
	}
	switch steps[random.IntN(len(steps))] {
	case "elect":
		if slices.Contains(h.isr, b) {
			h.elect(b)
		}
	case "produce":
		if r.leads > 0 { // a deposed leader does so as well
			h.values++
			r.batches = append(slices.Clip(r.batches), batchModel{r.leads, h.values})
		}
	case "follow":
		// Without the last condition an empty follower could adopt an epoch that its leader, after a crash, has never heard of.
		if leads && r.adopted < h.epoch && h.replicas[h.leader].durable == h.epoch {
			h.follow(b)
		}
	case "fetch":
		if leads && r.adopted == h.epoch {
			l := h.replicas[h.leader].batches
			r.batches = append(slices.Clip(r.batches), l[len(r.batches):min(len(r.batches)+2, len(l))]...)
		}
	case "ack":
		h.ack(b)
		h.commit()
	case "replicate": // everything, everywhere
		for i := range h.replicas {
			if h.leader >= 0 {
				h.ack(h.leader)
				if i != h.leader {
					h.follow(i)
					h.replicas[i].batches = slices.Clone(h.replicas[h.leader].batches)
				}
				h.ack(i)
			}
		}
		h.commit()
	case "shrink":
		if leads && slices.Contains(h.isr, b) && len(h.isr) > h.minISR {
			h.isr = slices.DeleteFunc(slices.Clone(h.isr), func(m int) bool { return m == b })
			h.commit()
		}
	case "grow":
		if leads && !slices.Contains(h.isr, b) && r.acked >= max(len(h.committed), h.start) {
			h.isr = append(slices.Clone(h.isr), b)
		}
	case "crash":
		r.batches, r.adopted, r.leads = r.batches[:r.flushed:r.flushed], r.durable, 0
		if h.leader == b {
			h.leader = -1
		}
	case "snapshot":
		h.snapshot(t)
	}
}

func (h *history) snapshot(t *testing.T) {
	h.revision += 10
	p := &Partition{PartitionRef: h.ref(), Leader: NoLeader, LeaderEpoch: h.epoch, Replicas: []int32{0, 1, 2}}
	for _, b := range h.isr {
		p.ISR = append(p.ISR, h.member(b))
	}
	s := &Snapshot{Cluster: "c", Position: Position{ClusterID: "id", EtcdClusterID: 7, Era: 1, Revision: h.revision}, Taken: time.UnixMilli(h.revision)}
	put := func(key, value string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		s.Keys = append(s.Keys, KV{Key: key, Value: value, Revision: h.revision})
	}
	value, err := encodePartition(p)
	put(relative.keys.partition(h.topic.ID, 0), value, err)
	for id := range int32(3) {
		value, err = encodeStorage(&Storage{BrokerID: id, StorageID: h.member(int(id)).StorageID, State: StorageActive, EligibleEpoch: 5})
		put(relative.keys.storage(id), value, err)
	}
	value, err = encodeTopic(h.topic)
	put(relative.keys.topic(h.topic.Name), value, err)
	h.snapshots = append(h.snapshots, s)
}

func (h *history) inventory(b int) BrokerInventory {
	r := &h.replicas[b]
	l := LogInventory{
		TopicID: h.topic.ID, TopicName: h.topic.Name, LogID: h.member(b).LogID, AdoptedEpoch: r.durable, LatestEpoch: -1, End: int64(r.flushed),
		MaxProducerID: -1, Lineage: []EpochStart{},
	}
	for i, batch := range r.batches[:r.flushed] {
		if batch.epoch > l.LatestEpoch {
			l.LatestEpoch = batch.epoch
			l.Lineage = append(l.Lineage, EpochStart{batch.epoch, int64(i)})
		}
	}
	return BrokerInventory{
		BrokerID: int32(b), StorageID: h.member(b).StorageID, Logs: []LogInventory{l},
		Position: Position{ClusterID: "id", EtcdClusterID: 7, Era: 1, Revision: h.revision + 5},
	}
}

// TestRecoveryKeepsWhatWasAcknowledged, over random histories: elections, deposed leaders that go on writing, truncations, in-sync sets that
// shrink and grow, crashes that lose what was not flushed, and etcd lost at any moment with a snapshot from any earlier one, or none.
func TestRecoveryKeepsWhatWasAcknowledged(t *testing.T) {
	var committed, diverged, equal, warned int
	for seed := range uint64(6000) {
		random := rand.New(rand.NewPCG(seed, 1))
		h := &history{isr: []int{0, 1, 2}, leader: -1, minISR: 1 + random.IntN(2), topic: &Topic{
			Name: "t", ID: ids.TopicID{9}, State: TopicActive, Partitions: 1, ReadyPartitions: 1, Replicas: 3, Generation: 1,
		}}
		h.elect(0)
		for range 20 + random.IntN(180) {
			h.step(t, random)
		}
		var in RecoveryInput
		lost := random.IntN(12) - 9
		for b := range h.replicas {
			if b != lost {
				in.Inventories = append(in.Inventories, h.inventory(b))
			}
		}
		for _, s := range h.snapshots {
			if random.IntN(3) > 0 {
				b, err := EncodeSnapshot(s)
				if err != nil {
					t.Fatal(err)
				}
				in.Snapshots = append(in.Snapshots, b)
			}
		}
		r, err := PlanRecovery(in)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Partitions) != 1 || len(r.Partitions[0].ISR) == 0 {
			t.Fatalf("seed %d: %+v", seed, r)
		}
		p := r.Partitions[0]
		if p.LeaderEpoch <= h.epoch {
			t.Fatalf("seed %d: leader epoch %d again, %d was led", seed, p.LeaderEpoch, h.epoch)
		}
		first := h.replicas[p.ISR[0].BrokerID]
		chosen := first.batches[:first.flushed]
		missing := len(chosen) < len(h.committed) || !slices.Equal(chosen[:len(h.committed)], h.committed)
		if missing && lost < 0 {
			t.Fatalf("seed %d: acknowledged %v, broker %d was chosen, with %v", seed, h.committed, p.ISR[0].BrokerID, chosen)
		}
		if missing && len(in.Snapshots) > 0 {
			// With a disk lost as well it can happen, and is said.
			if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity != SeverityInfo }) || !slices.Equal(r.Missing, []int32{int32(lost)}) {
				t.Fatalf("seed %d: records are missing and nobody says so: %+v", seed, r)
			}
			warned++
		}
		for _, m := range p.ISR[1:] {
			other := h.replicas[m.BrokerID]
			if !slices.Equal(other.batches[:other.flushed], chosen) {
				t.Fatalf("seed %d: members of the first in-sync set differ: %v and %v", seed, chosen, other.batches)
			}
			equal++
		}
		if len(h.committed) > 0 {
			committed++
		}
		for b := range h.replicas {
			if n := min(h.replicas[b].flushed, len(chosen)); !slices.Equal(h.replicas[b].batches[:n], chosen[:n]) {
				diverged++
			}
		}
	}
	t.Logf("histories with acknowledged records %d, diverged logs %d, equal logs %d, losses with a lost disk that were reported %d", committed, diverged, equal, warned)
	if committed < 1000 || diverged < 100 || equal < 500 {
		t.Error("the histories are too tame to show anything")
	}
}
