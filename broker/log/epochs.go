package log

import (
	"slices"
	"sort"
)

// lineage says which leader epoch wrote each offset: epochs and starts both increase strictly... except that an epoch
// without a batch may share its start with the next one, which then hides it.
//
// A lineage is immutable once published; every change makes a new one.
type lineage []EpochStart

// at returns the epoch that an offset was written in, and false if it lies before the first.
func (g lineage) at(offset int64) (int32, bool) {
	i := sort.Search(len(g), func(i int) bool { return g[i].Start > offset })
	if i == 0 {
		return -1, false
	}
	return g[i-1].Epoch, true
}

// latest returns the newest epoch, -1 if there is none.
func (g lineage) latest() int32 {
	if len(g) == 0 {
		return -1
	}
	return g[len(g)-1].Epoch
}

// with returns the lineage after epoch e started: entries of this or a newer epoch, or that start at or behind it,
// never came to hold a batch that is still in the log.
func (g lineage) with(e EpochStart) lineage {
	n := len(g)
	for n > 0 && (g[n-1].Epoch >= e.Epoch || g[n-1].Start >= e.Start) {
		n--
	}
	return append(slices.Clone(g[:n]), e)
}

// before returns the lineage of the offsets below end: what a truncation to end leaves.
func (g lineage) before(end int64) lineage {
	n := len(g)
	for n > 0 && g[n-1].Start >= end {
		n--
	}
	return slices.Clone(g[:n])
}

// from returns the lineage of the offsets at and above start, and of the one below: what deleting segments leaves. start is the base of
// the first segment and not the log start, which may lie behind batches that are still in the file. The epoch that ends at start stays
// because a replica that has everything up to start, and nothing of a later epoch, asks about it.
func (g lineage) from(start int64) lineage {
	i := sort.Search(len(g), func(i int) bool { return g[i].Start >= start })
	return slices.Clone(g[max(0, i-1):])
}

// end returns the largest epoch ≤ epoch that the log knows and the offset at which it ends; logEnd ends the latest.
// (-1, -1) if the log knows of none so old.
func (g lineage) end(epoch int32, logEnd int64) (int32, int64) {
	i := sort.Search(len(g), func(i int) bool { return g[i].Epoch > epoch })
	if i == 0 {
		return -1, -1
	}
	if i == len(g) {
		return g[i-1].Epoch, logEnd
	}
	return g[i-1].Epoch, g[i].Start
}

// merge joins epoch starts of several sources, such as checkpoint and journal. Where they contradict each other the
// newer epoch is right: it was assigned at a log end that the older entry had been truncated from.
func merge(sources ...[]EpochStart) lineage {
	all := slices.Concat(sources...)
	slices.SortStableFunc(all, func(a, b EpochStart) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	var g lineage
	for _, e := range all {
		if n := len(g); n > 0 && g[n-1].Epoch == e.Epoch {
			g[n-1].Start = min(g[n-1].Start, e.Start)
			continue
		}
		g = g.with(e)
	}
	return g
}

// AssignEpoch records that a new leader epoch starts at the log end. A repeated call for the current epoch does
// nothing; an older epoch is ErrFenced. The start is journaled in the sync round of the epoch's first batch.
func (l *Log) AssignEpoch(epoch int32) error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	// A full disk is no reason: nothing is written before the epoch's first batch (epochs without one that begin at the same
	// offset replace each other, so they do not add up either), and until then its leader can be read from.
	if s := l.state.Load(); s.Health != Online && s.Health != ReadOnly {
		return s.Err
	}
	return l.assignEpochLocked(epoch)
}

// assignEpochLocked needs appendMu.
func (l *Log) assignEpochLocked(epoch int32) error {
	g := *l.epochs.Load()
	switch latest := g.latest(); {
	case epoch == latest:
		return nil
	case epoch < latest || epoch < 0:
		return fencedError(epoch, latest)
	}
	l.addEpoch(EpochStart{Epoch: epoch, Start: l.end.Load()})
	return nil
}

// maxUncheckpointed is how many epochs with batches the journal alone may hold of a log. It keeps the newest 64 of each.
const maxUncheckpointed = 32

// boundEpochs writes the checkpoint early if leadership has changed often since the last roll, and the batch at base is the first one
// of its epoch. Needs appendMu.
func (l *Log) boundEpochs(base int64) error {
	if g := *l.epochs.Load(); len(g) == 0 || g[len(g)-1].Start != base {
		return nil
	}
	l.mu.Lock()
	n := len(l.mu.uncheckpointed)
	l.mu.Unlock()
	if n <= maxUncheckpointed {
		return nil
	}
	return l.saveEpochs()
}

func (l *Log) addEpoch(e EpochStart) {
	g := (*l.epochs.Load()).with(e)
	l.mu.Lock()
	l.epochs.Store(&g)
	l.mu.unjournaled = append(lineage(l.mu.unjournaled).before(e.Start), e)
	l.mu.uncheckpointed = append(lineage(l.mu.uncheckpointed).before(e.Start), e)
	l.mu.Unlock()
}

// EndOffsetForEpoch returns the largest epoch ≤ epoch that wrote to this log and the offset behind its last record;
// (-1, -1) if the log knows of none. Takes no lock.
func (l *Log) EndOffsetForEpoch(epoch int32) (found int32, end int64) {
	g := *l.epochs.Load()
	return g.end(epoch, l.end.Load())
}

// LatestEpoch returns the newest leader epoch that the log knows, -1 if none.
func (l *Log) LatestEpoch() int32 { return (*l.epochs.Load()).latest() }

// Epochs returns the epoch starts, oldest first. The caller owns the slice.
func (l *Log) Epochs() []EpochStart { return slices.Clone(*l.epochs.Load()) }

// upTo returns the lineage without entries that start above end.
func (g lineage) upTo(end int64) lineage {
	n := len(g)
	for n > 0 && g[n-1].Start > end {
		n--
	}
	return slices.Clone(g[:n])
}
