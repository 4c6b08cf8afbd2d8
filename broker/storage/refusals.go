package storage

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"runnel.dev/runnel/broker/log"
)

// MaxRefusedLogs is the most logs that Refusals lists.
const MaxRefusedLogs = 1024

// Refusals are what the data directory takes no writes for. A refusal stands until writes have been possible again for a while, the longer
// the more often it came back, so that whoever moves leaderships because of it does not move them to and fro. Values are immutable.
type Refusals struct {
	// Volume is why the whole volume takes no writes, nil if it does: *DiskFullError while free space is below the reserve, or the error
	// of a write that found no space or a read-only file system.
	Volume error
	// Logs are those that take no writes for a reason of their own, such as a bad place of the disk: at most MaxRefusedLogs, ordered.
	Logs []PartitionRef
}

const (
	// calm is how long writes have to be possible again before a refusal is over: calm << level.
	calm = 5 * time.Second
	// maxCalmLevel bounds it to 160 s.
	maxCalmLevel = 5
	// relapse is the time after the end of a refusal within which the next one raises the level.
	relapse = 5 * time.Minute
	// maxProbes bounds the logs that are tried in one look at the disk.
	maxProbes = 256
)

// grudge is one refusal, standing or over.
type grudge struct {
	err   error // of the last write; nil: over
	last  time.Time
	level int
}

// see notes that writes are refused now.
func (g *grudge) see(now time.Time, err error) {
	if g.err == nil {
		if !g.last.IsZero() && now.Sub(g.last) < relapse {
			g.level = min(g.level+1, maxCalmLevel)
		} else {
			g.level = 0
		}
	}
	g.err, g.last = err, now
}

// miss notes that nothing refuses writes now, which ends the refusal if it has lasted.
func (g *grudge) miss(now time.Time) {
	if g.err != nil && now.Sub(g.last) >= calm<<g.level {
		g.err, g.last = nil, now
	}
}

// refusalWatch remembers refusals. It does no I/O, and is not safe for concurrent use.
type refusalWatch struct {
	volume grudge
	logs   map[partitionKey]*grudge
}

// observe takes in what refuses writes at one moment, and returns what stands.
func (w *refusalWatch) observe(now time.Time, volume error, logs map[partitionKey]error) Refusals {
	if volume != nil {
		w.volume.see(now, volume)
	} else {
		w.volume.miss(now)
	}
	for k, err := range logs {
		g := w.logs[k]
		if g == nil {
			if w.logs == nil {
				w.logs = map[partitionKey]*grudge{}
			}
			g = &grudge{}
			w.logs[k] = g
		}
		g.see(now, err)
	}
	out := Refusals{Volume: w.volume.err}
	var standing []partitionKey
	for k, g := range w.logs {
		if logs[k] == nil {
			g.miss(now)
		}
		switch {
		case g.err != nil:
			standing = append(standing, k)
		case now.Sub(g.last) >= relapse:
			delete(w.logs, k)
		}
	}
	slices.SortFunc(standing, compareKeys)
	for _, k := range standing[:min(len(standing), MaxRefusedLogs)] {
		out.Logs = append(out.Logs, k.ref())
	}
	return out
}

// Refusals returns what the data directory takes no writes for, as of the last look of Run, which is at most DiskInterval ago, or follows
// at once a write that fails. It takes no lock.
func (s *Store) Refusals() Refusals {
	if r := s.refusals.Load(); r != nil {
		return *r
	}
	return Refusals{}
}

// volumeWide tells whether an error of one log's files is one of the volume: of its space, or of how it is mounted.
func volumeWide(err error) bool {
	return errors.Is(err, log.ErrNoSpace) || errors.Is(err, log.ErrReadOnlyFS)
}

// noteRefusal has Run look at a write that failed, unless it is known to. It does not block.
func (s *Store) noteRefusal(l *log.Log, err error) (known bool) {
	standing := s.Refusals()
	if volumeWide(err) && standing.Volume != nil {
		return true
	}
	_, listed := slices.BinarySearchFunc(standing.Logs, partitionKey{l.TopicID(), l.Partition()}, func(r PartitionRef, k partitionKey) int {
		return compareKeys(partitionKey(r), k)
	})
	if listed {
		return true
	}
	select {
	case s.refused <- struct{}{}:
	default:
	}
	return false
}

// lookAtRefusals finds out what takes no writes. With probe, logs that are read-only are tried first: nobody may be appending to them any
// more, since whoever leads is elsewhere. Below the reserve nothing is tried; what there is, is for recovery and metadata.
func (s *Store) lookAtRefusals(probe bool) {
	readOnly := s.readOnlyLogs()
	var volume error
	if full := s.full.Load(); full != nil {
		volume = full
	} else if probe {
		probeLogs(readOnly)
	}
	if volume == nil && s.syncer.starved() {
		volume = fmt.Errorf("the journal: %w", log.ErrNoSpace)
	}
	var logs map[partitionKey]error
	for _, l := range readOnly {
		st := l.State()
		switch {
		case st.Health != log.ReadOnly:
		case volumeWide(st.Err):
			if volume == nil {
				volume = st.Err
			}
		default:
			if logs == nil {
				logs = map[partitionKey]error{}
			}
			logs[partitionKey{l.TopicID(), l.Partition()}] = st.Err
		}
	}
	before := s.Refusals()
	now := s.refusal.observe(s.clk.Now(), volume, logs)
	s.refusals.Store(&now)
	switch {
	case before.Volume == nil && now.Volume != nil:
		s.lg.Warn("The data volume takes no writes: leaderships are given up to brokers that can write", "error", now.Volume)
	case before.Volume != nil && now.Volume == nil:
		s.lg.Info("The data volume takes writes again")
	}
	if len(before.Logs) != len(now.Logs) {
		s.lg.Warn("The number of partitions that take no writes for reasons of their own has changed", "partitions", len(now.Logs))
	}
}

// readOnlyLogs returns the logs whose last write failed, ordered.
func (s *Store) readOnlyLogs() []*log.Log {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found map[partitionKey]*log.Log
	for k, p := range s.mu.partitions {
		if p.log == nil || p.log.State().Health != log.ReadOnly {
			continue
		}
		if found == nil {
			found = map[partitionKey]*log.Log{}
		}
		found[k] = p.log
	}
	logs := make([]*log.Log, 0, len(found))
	for _, k := range sortedKeys(found) {
		logs = append(logs, found[k])
	}
	return logs
}

// probeLogs tries logs. Once one finds the volume full or read-only, others that did are not tried.
func probeLogs(logs []*log.Log) {
	refuses := false
	for _, l := range logs[:min(len(logs), maxProbes)] {
		wide := volumeWide(l.State().Err)
		if wide && refuses {
			continue
		}
		if err := l.TryResume(); err != nil && volumeWide(err) {
			refuses = true
		}
	}
}
