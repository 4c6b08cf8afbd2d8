package storage

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs"
)

// noSpaceRetry is the time between two tries to journal a new epoch on a full disk.
const noSpaceRetry = 250 * time.Millisecond

type roundPoint struct {
	log   *log.Log
	point log.SyncPoint
}

func (s *syncer) runRound(dirty []*log.Log) error {
	s.round.Lock()
	defer s.round.Unlock()
	start := s.clk.Now()
	journaled, err := s.prepareLocked(dirty)
	if err != nil {
		s.completeLocked(err)
		return s.fail(journalName, err)
	}
	if !journaled && len(s.round.points) == 0 {
		return nil
	}
	if ackBeforeSync {
		s.completeLocked(nil)
	}
	s.syncingSince.Store(start.UnixNano())
	method, what, err := s.syncLocked(journaled)
	s.syncingSince.Store(0)
	if !ackBeforeSync {
		s.completeLocked(err)
	}
	if err != nil {
		return s.fail(what, err)
	}
	for _, p := range s.round.points {
		s.round.results[p.log] = struct{}{}
	}
	clear(s.round.points)
	s.round.points = s.round.points[:0]
	s.metrics.rounds.WithLabelValues(method).Inc()
	s.metrics.syncSeconds.Observe(s.clk.Since(start).Seconds())
	return nil
}

// prepareLocked captures the logs and writes the journal. With journaled the lock of the journal is still held, and syncLocked
// releases it: nobody else may write to the journal before it is synced.
//
// The captures are made under that lock as well. A truncation changes its log before it journals its bound, so it comes before the
// capture, which then knows nothing above the bound, or its record comes behind this frame and makes void what is above.
func (s *syncer) prepareLocked(dirty []*log.Log) (journaled bool, err error) {
	s.journal.mu.Lock()
	defer func() {
		if !journaled {
			s.journal.mu.Unlock()
		}
	}()
	s.round.points, s.round.records = s.round.points[:0], s.round.records[:0]
	for _, l := range dirty {
		if !s.registered(l) {
			continue
		}
		p := l.PrepareSync()
		s.round.points = append(s.round.points, roundPoint{l, p})
		if announces(p) {
			r := newProgress(l.JournalEntry())
			r.epochs = newestEpochs(p.NewEpochs()) // the log has checkpointed the others
			if p.NewAdopted() > 0 {
				r.kind = kindAdopted
			}
			s.round.records = append(s.round.records, r)
			delete(s.round.results, l)
		}
	}
	s.addResultsLocked()
	before := s.journal.mu.end
	err = s.journal.writeLocked(s.round.records)
	if err == nil {
		s.metrics.journalBytes.Add(float64(max(0, s.journal.mu.end-before)))
		clear(s.round.results)
		return len(s.round.records) > 0, nil
	}
	if !vfs.IsNoSpace(err) || s.journal.mu.failed != nil {
		return false, err
	}
	s.putOffLocked()
	return false, nil
}

// announces tells whether p has something that must be in the journal before the round counts.
func announces(p log.SyncPoint) bool { return len(p.NewEpochs()) > 0 || p.NewAdopted() > 0 }

// putOffLocked goes on with a round whose frame found no space. Results can wait for a later one: acknowledgements do not need them.
// Batches of a new epoch, and anything under a newly adopted one, may not be acknowledged before that is in the journal, so their logs
// leave the round, as if they had not been captured. Nobody waits for space with a lock: deleting a partition, which makes room,
// needs the round's.
func (s *syncer) putOffLocked() {
	kept := s.round.points[:0]
	for _, p := range s.round.points {
		if !announces(p.point) {
			kept = append(kept, p)
			continue
		}
		p.log.AbandonSync(p.point)
		s.round.results[p.log] = struct{}{}
		s.block(p.log)
	}
	clear(s.round.points[len(kept):])
	s.round.points = kept
}

// addResultsLocked adds what the rounds so far have made durable. It is read here, not when a round ends, because a truncation may
// have lowered it since.
func (s *syncer) addResultsLocked() {
	for l := range s.round.results {
		if s.registered(l) {
			s.round.records = append(s.round.records, newProgress(l.JournalEntry()))
		}
	}
}

// syncLocked syncs the journal (if it was written; its lock is released as soon as that is done) and the files at the same time.
func (s *syncer) syncLocked(journaled bool) (method, what string, err error) {
	s.round.journalErr = nil
	if journaled {
		s.round.journaling.Add(1)
		go s.syncJournal()
	}
	// (The mutant has let go of the files already.)
	if ackBeforeSync || len(s.round.points) > s.cfg.SyncfsThreshold && s.volume.Supported() {
		method, what = methodSyncfs, "the data volume"
		err = s.volume.Sync()
	} else {
		method = methodFdatasync
		what, err = s.syncFilesLocked()
	}
	s.round.journaling.Wait()
	if err == nil && s.round.journalErr != nil {
		what, err = journalName, s.round.journalErr
	}
	return method, what, err
}

// syncJournal syncs what prepareLocked wrote, and releases the lock of the journal that it left held.
func (s *syncer) syncJournal() {
	defer s.round.journaling.Done()
	defer s.journal.mu.Unlock()
	s.round.journalErr = s.journal.syncLocked()
}

// syncFilesLocked syncs the files of each log from a bounded pool.
func (s *syncer) syncFilesLocked() (what string, err error) {
	if len(s.round.points) == 1 {
		return s.round.points[0].sync()
	}
	var group errgroup.Group
	group.SetLimit(s.cfg.SyncWorkers)
	var failed struct {
		sync.Mutex
		what string
	}
	for _, p := range s.round.points {
		group.Go(func() error {
			what, err := p.sync()
			if err != nil {
				failed.Lock()
				failed.what = what
				failed.Unlock()
			}
			return err
		})
	}
	err = group.Wait()
	return failed.what, err
}

func (p roundPoint) sync() (what string, err error) {
	if err := p.point.SyncFiles(); err != nil {
		e := p.log.JournalEntry()
		return fmt.Sprintf("partition %s/%d", e.TopicID, e.Partition), err
	}
	return "", nil
}

// completeLocked tells the logs of the round how it went.
func (s *syncer) completeLocked(err error) {
	for _, p := range s.round.points {
		p.log.CompleteSync(p.point, err)
	}
}

func newProgress(e log.JournalEntry) journalRecord {
	r := journalRecord{
		key: partitionKey{e.TopicID, e.Partition}, logID: e.LogID, kind: kindProgress,
		flushed: e.Flushed, highWatermark: e.HighWatermark, logStart: e.LogStart,
		wantedStart: e.WantedStart, adopted: e.AdoptedEpoch, epochs: e.NewEpochs,
	}
	if e.Truncated {
		r.kind = kindTruncated
	}
	return r
}
