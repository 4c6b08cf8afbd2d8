package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

// noSpaceRetry is the time between two tries to journal the epochs of a round on a full disk.
const noSpaceRetry = 250 * time.Millisecond

// syncer turns appends into durable appends. One round runs at a time, and everything appended while it runs is covered by the
// next: under load a round collects what many producers wrote, and an idle broker syncs at once. There is no artificial delay.
//
// A round
//
//  1. takes the set of dirty logs, and of each its end and truncation generation: what it will publish was captured before the
//     sync begins, never read afterwards;
//  2. journals the results of the round before, and the epoch starts that this round covers;
//  3. syncs the journal and the files, each or all at once with syncfs;
//  4. publishes the captured ends.
//
// A crash after 2 leaves a journal with epochs that have no batches yet, which is harmless; after 3 synced bytes above the journaled
// bound, which recovery checks and keeps. A sync that fails ends everything: the round publishes nothing, and no later one runs.
type syncer struct {
	cfg     Config
	volume  vfs.Volume
	journal *journal
	clk     clock.Clock
	metrics *metrics
	// registered tells whether a log is still one of the store's. A log that was deleted must not be journaled again.
	registered func(*log.Log) bool

	wake chan struct{} // holds a token while there is something to do

	mu struct {
		sync.Mutex
		dirty  []*log.Log
		marked map[*log.Log]struct{}
	}

	// round serialises rounds. It is held over data syncs; detaching a log waits for it, nothing on the path of a produce does.
	round struct {
		sync.Mutex
		results map[*log.Log]struct{} // logs whose latest results are not journaled
		points  []roundPoint
		records []journalRecord
	}

	// failure is the first failed sync, of a round or of anything else. No round runs after it.
	failure atomic.Pointer[SyncFailedError]

	// syncingSince is when the sync of the present round began, in Unix nanoseconds; 0 between rounds.
	syncingSince atomic.Int64
}

type roundPoint struct {
	log   *log.Log
	point log.SyncPoint
}

func newSyncer(cfg Config, volume vfs.Volume, j *journal, clk clock.Clock, m *metrics, registered func(*log.Log) bool) *syncer {
	s := &syncer{cfg: cfg, volume: volume, journal: j, clk: clk, metrics: m, registered: registered, wake: make(chan struct{}, 1)}
	s.mu.marked = map[*log.Log]struct{}{}
	s.round.results = map[*log.Log]struct{}{}
	return s
}

// markDirty adds l to the next round.
func (s *syncer) markDirty(l *log.Log) {
	s.mu.Lock()
	_, marked := s.mu.marked[l]
	if !marked {
		s.mu.marked[l] = struct{}{}
		s.mu.dirty = append(s.mu.dirty, l)
	}
	s.mu.Unlock()
	if !marked {
		s.poke()
	}
}

func (s *syncer) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take swaps the dirty set out.
func (s *syncer) take() []*log.Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty := s.mu.dirty
	s.mu.dirty = nil
	clear(s.mu.marked)
	return dirty
}

func (s *syncer) dirtyCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.dirty)
}

// detach takes l out of all future rounds and waits for the present one.
func (s *syncer) detach(l *log.Log) {
	s.round.Lock()
	defer s.round.Unlock()
	delete(s.round.results, l)
}

// run syncs until ctx ends, and then what is dirty at that moment. It returns a *SyncFailedError if a sync failed.
func (s *syncer) run(ctx context.Context) error {
	idle := s.clk.NewTimer(s.cfg.JournalIdle)
	defer idle.Stop()
	for {
		ran, err := s.flush(ctx)
		if err != nil {
			return err
		}
		if ran {
			idle.Reset(s.cfg.JournalIdle)
			if ctx.Err() == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return s.drain(ctx)
		case <-s.wake:
		case <-idle.C():
			left, err := s.journalResults()
			if err != nil {
				return err
			}
			if left {
				idle.Reset(s.cfg.JournalIdle)
			}
		}
	}
}

// drain makes everything appended so far durable, and journals it. ctx may have ended: it only bounds the wait for space.
func (s *syncer) drain(ctx context.Context) error {
	if _, err := s.flush(ctx); err != nil {
		return err
	}
	_, err := s.journalResults()
	return err
}

// flush runs one round if a log is dirty, and tells whether it did.
func (s *syncer) flush(ctx context.Context) (ran bool, err error) {
	if f := s.failure.Load(); f != nil {
		return false, f
	}
	dirty := s.take()
	if len(dirty) == 0 {
		return false, nil
	}
	return true, s.runRound(ctx, dirty)
}

// fail notes that what could not be synced, ends all rounds, and returns the error for Run. Nil stays nil.
func (s *syncer) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	f := &SyncFailedError{What: what, Err: err}
	if s.failure.CompareAndSwap(nil, f) {
		s.metrics.syncFailures.Inc()
	}
	s.poke()
	return f
}

func (s *syncer) runRound(ctx context.Context, dirty []*log.Log) error {
	s.round.Lock()
	defer s.round.Unlock()
	start := s.clk.Now()
	journaled, err := s.prepareLocked(ctx, dirty)
	if err != nil {
		s.completeLocked(err)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return err // stopped while it waited for space; nothing failed, and nothing was acknowledged
		}
		return s.fail(journalName, err)
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
func (s *syncer) prepareLocked(ctx context.Context, dirty []*log.Log) (journaled bool, err error) {
	s.journal.mu.Lock()
	defer func() {
		if !journaled {
			s.journal.mu.Unlock()
		}
	}()
	s.round.points, s.round.records = s.round.points[:0], s.round.records[:0]
	needed := false
	for _, l := range dirty {
		if !s.registered(l) {
			continue
		}
		p := l.PrepareSync()
		s.round.points = append(s.round.points, roundPoint{l, p})
		if epochs := p.NewEpochs(); len(epochs) > 0 {
			needed = true
			r := newProgress(l.JournalEntry())
			r.epochs = epochs
			s.round.records = append(s.round.records, r)
			delete(s.round.results, l)
		}
	}
	s.addResultsLocked()
	for {
		before := s.journal.mu.end
		err := s.journal.writeLocked(s.round.records)
		switch {
		case err == nil:
			s.metrics.journalBytes.Add(float64(max(0, s.journal.mu.end-before)))
			clear(s.round.results)
			return len(s.round.records) > 0, nil
		case !vfs.IsNoSpace(err) || s.journal.mu.failed != nil:
			return false, err
		case !needed:
			return false, nil // results can wait for a later round, acks need not wait for them
		}
		// Batches of a new epoch may not be acknowledged before the epoch is in the journal. The lock is kept: what was captured
		// must not be overtaken by a truncation.
		if err := clock.Sleep(ctx, s.clk, noSpaceRetry); err != nil {
			return false, err
		}
	}
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
	var journalErr error
	done := make(chan struct{})
	if journaled {
		go func() {
			defer close(done)
			defer s.journal.mu.Unlock()
			journalErr = s.journal.syncLocked()
		}()
	} else {
		close(done)
	}
	// (The mutant has let go of the files already.)
	if ackBeforeSync || len(s.round.points) > s.cfg.SyncfsThreshold && s.volume.Supported() {
		method, what = methodSyncfs, "the data volume"
		err = s.volume.Sync()
	} else {
		method = methodFdatasync
		what, err = s.syncFilesLocked()
	}
	<-done
	if err == nil && journalErr != nil {
		what, err = journalName, journalErr
	}
	return method, what, err
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

// journalResults journals what was made durable since the last frame, with a sync of its own. left tells that a full disk made it
// put that off.
func (s *syncer) journalResults() (left bool, err error) {
	s.round.Lock()
	defer s.round.Unlock()
	if f := s.failure.Load(); f != nil {
		return false, f
	}
	if len(s.round.results) == 0 {
		return false, nil
	}
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.round.records = s.round.records[:0]
	s.addResultsLocked()
	err = s.journal.writeLocked(s.round.records)
	if err != nil && vfs.IsNoSpace(err) && s.journal.mu.failed == nil {
		return true, nil
	}
	if err == nil {
		clear(s.round.results)
		err = s.journal.syncLocked()
	}
	return false, s.fail(journalName, err)
}

// age is how long the present sync has been running; 0 between rounds.
func (s *syncer) age() time.Duration {
	since := s.syncingSince.Load()
	if since == 0 {
		return 0
	}
	return max(0, s.clk.Since(time.Unix(0, since)))
}

func newProgress(e log.JournalEntry) journalRecord {
	r := journalRecord{
		key: partitionKey{e.TopicID, e.Partition}, logID: e.LogID, kind: kindProgress,
		flushed: e.Flushed, highWatermark: e.HighWatermark, logStart: e.LogStart, epochs: e.NewEpochs,
	}
	if e.Truncated {
		r.kind = kindTruncated
	}
	return r
}
