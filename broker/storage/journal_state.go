package storage

import (
	"slices"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
)

// maxJournalEpochs is how many epoch starts the journal keeps per log, and a record holds. Older ones are in the log's own epoch
// checkpoint: a log writes it, durably, before more than half as many are missing from it.
const maxJournalEpochs = 64

// newestEpochs returns what the journal keeps of epochs.
func newestEpochs(epochs []log.EpochStart) []log.EpochStart {
	return epochs[max(0, len(epochs)-maxJournalEpochs):]
}

// logState is what the journal knows about one log.
//
// Invariant: epochs rise strictly in both epoch and start.
type logState struct {
	logID         ids.LogID
	flushed       int64 // recovery's lower bound: everything below was synced
	highWatermark int64
	logStart      int64 // published: files below it may be gone
	wantedStart   int64 // journaled, perhaps not published: nothing below it is needed for the cluster's sake
	adopted       int32
	epochs        []log.EpochStart
}

// journalState is the sum of the journal's records.
type journalState map[partitionKey]logState

// apply folds one record in. Records are applied in the order of the journal.
func (s journalState) apply(r journalRecord) {
	if r.kind == kindRemoved {
		// A removal names the log that was deleted; one that took its place meanwhile is not meant.
		if old, ok := s[r.key]; ok && old.logID == r.logID {
			delete(s, r.key)
		}
		return
	}
	old, known := s[r.key]
	if !known || old.logID != r.logID || r.kind == kindState {
		old = logState{logID: r.logID, flushed: r.flushed, highWatermark: r.highWatermark}
	}
	switch r.kind {
	case kindTruncated:
		old.flushed = r.flushed
		old.highWatermark = min(old.highWatermark, r.flushed)
		old.epochs = dropEpochsFrom(old.epochs, r.flushed)
	default:
		old.flushed = max(old.flushed, r.flushed)
		old.highWatermark = max(old.highWatermark, r.highWatermark)
	}
	old.logStart = max(old.logStart, r.logStart)
	old.wantedStart = max(old.wantedStart, r.wantedStart, old.logStart)
	old.adopted = max(old.adopted, r.adopted)
	for _, e := range r.epochs {
		old.epochs = addEpoch(old.epochs, e)
	}
	s[r.key] = old
}

// dropEpochsFrom removes the epochs that begin at or above end.
func dropEpochsFrom(epochs []log.EpochStart, end int64) []log.EpochStart {
	n := len(epochs)
	for n > 0 && epochs[n-1].Start >= end {
		n--
	}
	return epochs[:n:n]
}

// addEpoch adds e as the newest epoch. What contradicts it was cut off: epochs that are not older, or that begin no earlier. The
// slice is copied, because snapshots of the state share it.
func addEpoch(epochs []log.EpochStart, e log.EpochStart) []log.EpochStart {
	n := len(epochs)
	for n > 0 && (epochs[n-1].Epoch >= e.Epoch || epochs[n-1].Start >= e.Start) {
		n--
	}
	kept := epochs[max(0, n+1-maxJournalEpochs):n]
	return append(slices.Clone(kept), e)
}

// records returns the state as kindState records, in a stable order.
func (s journalState) records() []journalRecord {
	out := make([]journalRecord, 0, len(s))
	for k, st := range s {
		out = append(out, journalRecord{
			key: k, logID: st.logID, kind: kindState,
			flushed: st.flushed, highWatermark: st.highWatermark, logStart: st.logStart,
			wantedStart: st.wantedStart, adopted: st.adopted, epochs: st.epochs,
		})
	}
	slices.SortFunc(out, func(a, b journalRecord) int { return compareKeys(a.key, b.key) })
	return out
}
