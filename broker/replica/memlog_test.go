package replica

import (
	"fmt"
	"slices"
)

// entry is a record of the model: who wrote it, and what.
type logEntry struct {
	epoch int32
	value int
}

type epochStart struct {
	epoch int32
	start int64
}

// disk is what a crash leaves of a memLog.
type disk struct {
	base    int64
	entries []logEntry
	epochs  []epochStart
	start   int64
	hw      int64
	adopted int32
}

// memLog is a log in memory, with the semantics of broker/log as far as the machine sees them. One record is one batch.
type memLog struct {
	id       Member
	base     int64 // of entries[0]
	entries  []logEntry
	epochs   []epochStart
	start    int64
	journal  int64 // journaled log start
	hw       int64
	flushed  int64
	adopted  int32
	durable  int32
	onDisk   disk
	batchLow int64 // where ReplicaStart is below start, 0: equal
}

func newMemLog(id Member, base int64) *memLog {
	l := &memLog{id: id, base: base, start: base, journal: base, hw: base, flushed: base}
	l.sync()
	return l
}

func (l *memLog) LogStart() int64 { return l.start }
func (l *memLog) ReplicaStart() int64 {
	if l.batchLow > 0 {
		return min(l.batchLow, l.start)
	}
	return l.start
}
func (l *memLog) HighWatermark() int64 { return l.hw }
func (l *memLog) Flushed() int64       { return l.flushed }
func (l *memLog) End() int64           { return l.base + int64(len(l.entries)) }
func (l *memLog) LatestEpoch() int32 {
	if len(l.epochs) == 0 {
		return -1
	}
	return l.epochs[len(l.epochs)-1].epoch
}

func (l *memLog) EndOffsetForEpoch(epoch int32) (found int32, end int64) {
	found, end = -1, -1
	for i, e := range l.epochs {
		if e.epoch > epoch {
			break
		}
		found, end = e.epoch, l.End()
		if i+1 < len(l.epochs) {
			end = l.epochs[i+1].start
		}
	}
	return found, end
}
func (l *memLog) JournaledLogStart() int64        { return l.journal }
func (l *memLog) SetHighWatermark(offset int64)   { l.hw = max(l.hw, min(offset, l.End())) }
func (l *memLog) AdoptEpoch(epoch int32)          { l.adopted = max(l.adopted, epoch) }
func (l *memLog) AdoptedDurable() int32           { return l.durable }
func (l *memLog) at(offset int64) logEntry        { return l.entries[offset-l.base] }
func (l *memLog) slice(from, to int64) []logEntry { return l.entries[from-l.base : to-l.base] }

func (l *memLog) addEpoch(epoch int32, at int64) {
	for n := len(l.epochs); n > 0 && (l.epochs[n-1].epoch >= epoch || l.epochs[n-1].start >= at); n-- {
		l.epochs = l.epochs[:n-1]
	}
	l.epochs = append(slices.Clone(l.epochs), epochStart{epoch, at})
}

// assign is log.AssignEpoch.
func (l *memLog) assign(epoch int32) error {
	switch latest := l.LatestEpoch(); {
	case epoch == latest:
		return nil
	case epoch < latest:
		return fmt.Errorf("epoch %d, the log has %d", epoch, latest)
	}
	l.addEpoch(epoch, l.End())
	return nil
}

func (l *memLog) append(entries ...logEntry) {
	for _, e := range entries {
		if e.epoch > l.LatestEpoch() {
			l.addEpoch(e.epoch, l.End())
		}
		l.entries = append(slices.Clip(l.entries), e)
	}
}

// fill appends n records of an epoch and flushes them.
func (l *memLog) fill(epoch int32, n int) *memLog {
	for range n {
		l.append(logEntry{epoch, int(l.End())})
	}
	l.sync()
	return l
}

func (l *memLog) truncate(to int64) error {
	if to < l.start {
		return fmt.Errorf("truncate to %d below the start %d", to, l.start)
	}
	to = min(to, l.End())
	l.entries = slices.Clone(l.entries[:to-l.base])
	for n := len(l.epochs); n > 0 && l.epochs[n-1].start >= to; n-- {
		l.epochs = slices.Clone(l.epochs[:n-1])
	}
	l.hw, l.flushed = min(l.hw, to), min(l.flushed, to)
	l.sync()
	return nil
}

// sync makes everything durable.
func (l *memLog) sync() {
	l.flushed, l.durable = l.End(), l.adopted
	l.onDisk = disk{
		base: l.base, entries: slices.Clone(l.entries), epochs: slices.Clone(l.epochs), start: l.start, hw: min(l.hw, l.flushed), adopted: l.adopted,
	}
}

// crashed returns the log as a new process finds it.
func (l *memLog) crashed() *memLog {
	d := l.onDisk
	n := &memLog{
		id: l.id, base: d.base, entries: slices.Clone(d.entries), epochs: slices.Clone(d.epochs), start: l.start, journal: l.journal,
		hw: max(d.hw, l.start), adopted: d.adopted, durable: d.adopted,
	}
	n.flushed = n.End()
	for k := len(n.epochs); k > 0 && n.epochs[k-1].start > n.End(); k-- {
		n.epochs = n.epochs[:k-1]
	}
	n.sync()
	return n
}
