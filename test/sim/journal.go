package sim

import (
	"slices"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// journal is the model of a broker's journal: entries are appended, become durable with the next sync, and a crash leaves the durable ones
// and any number of the others, in order. (The real one, its codec and its damage are storage's own tests' business.)
type journal struct {
	durable map[metadata.PartitionRef]journaled
	pending []log.JournalEntry
}

// journaled is what the journal says of one log.
type journaled struct {
	logID ids.LogID
	log.Recovered
}

func newJournal() *journal { return &journal{durable: map[metadata.PartitionRef]journaled{}} }

func (j *journal) write(e log.JournalEntry) { j.pending = append(j.pending, e) }

func (j *journal) sync() {
	for i := range j.pending {
		j.replay(&j.pending[i])
	}
	j.pending = j.pending[:0]
}

// crash keeps a prefix of what was not synced.
func (j *journal) crash(s *sched) {
	j.pending = j.pending[:s.rng.IntN(len(j.pending)+1)]
	j.sync()
}

func (j *journal) forget(ref metadata.PartitionRef) {
	j.sync()
	delete(j.durable, ref)
}

// recovered is what the journal tells a log that is opened.
func (j *journal) recovered(ref metadata.PartitionRef, id ids.LogID) log.Recovered {
	j.sync()
	if st, ok := j.durable[ref]; ok && st.logID == id {
		return st.Recovered
	}
	return log.Recovered{}
}

func (j *journal) replay(e *log.JournalEntry) {
	ref := metadata.PartitionRef{TopicID: e.TopicID, Partition: e.Partition}
	st, ok := j.durable[ref]
	if !ok || st.logID != e.LogID {
		st = journaled{logID: e.LogID}
		st.Known = true
	}
	r := &st.Recovered
	if e.Truncated {
		r.Flushed, r.HighWatermark = e.Flushed, min(r.HighWatermark, e.Flushed)
		r.Epochs = slices.DeleteFunc(slices.Clone(r.Epochs), func(s log.EpochStart) bool { return s.Start >= e.Flushed })
	} else {
		r.Flushed, r.HighWatermark = max(r.Flushed, e.Flushed), max(r.HighWatermark, e.HighWatermark)
	}
	r.LogStart, r.AdoptedEpoch = max(r.LogStart, e.LogStart), max(r.AdoptedEpoch, e.AdoptedEpoch)
	r.WantedStart = max(r.WantedStart, e.WantedStart)
	for _, s := range e.NewEpochs {
		n := len(r.Epochs)
		for n > 0 && (r.Epochs[n-1].Epoch >= s.Epoch || r.Epochs[n-1].Start >= s.Start) {
			n--
		}
		r.Epochs = append(slices.Clone(r.Epochs[:n]), s)
	}
	j.durable[ref] = st
}
