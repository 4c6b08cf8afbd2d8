package storage

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

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
	cache   *segment.Cache
	clk     clock.Clock
	metrics *metrics
	// registered tells whether a log is still one of the store's. A log that was deleted must not be journaled again.
	registered func(*log.Log) bool

	wake chan struct{} // holds a token while there is something to do

	mu struct {
		sync.Mutex
		dirty  []*log.Log
		spare  []*log.Log // emptied, to become dirty again
		marked map[*log.Log]struct{}
		// blocked logs have a new, or newly adopted, epoch that a full disk kept out of the journal at blockedAt.
		blocked   []*log.Log
		blockedAt time.Time
	}

	// round serialises rounds. It is held over data syncs; detaching a log waits for it, nothing on the path of a produce does.
	round struct {
		sync.Mutex
		results map[*log.Log]struct{} // logs whose latest results are not journaled
		points  []roundPoint
		records []journalRecord
		// journaling is the sync of the journal beside that of the files, and journalErr how it went.
		journaling sync.WaitGroup
		journalErr error
	}

	// failure is the first failed sync, of a round or of anything else. No round runs after it.
	failure atomic.Pointer[SyncFailedError]

	// syncingSince is when the sync of the present round began, in Unix nanoseconds; 0 between rounds.
	syncingSince atomic.Int64
}

func newSyncer(
	cfg Config, volume vfs.Volume, j *journal, cache *segment.Cache, clk clock.Clock, m *metrics, registered func(*log.Log) bool,
) *syncer {
	s := &syncer{cfg: cfg, volume: volume, journal: j, cache: cache, clk: clk, metrics: m, registered: registered, wake: make(chan struct{}, 1)}
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
	s.mu.dirty, s.mu.spare = s.mu.spare, nil
	clear(s.mu.marked)
	return dirty
}

// recycle gives back what take returned.
func (s *syncer) recycle(dirty []*log.Log) {
	clear(dirty)
	s.mu.Lock()
	s.mu.spare = dirty[:0]
	s.mu.Unlock()
}

// block puts l off until there may be space for its epoch.
func (s *syncer) block(l *log.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.blocked) == 0 {
		s.mu.blockedAt = s.clk.Now()
	}
	if !slices.Contains(s.mu.blocked, l) {
		s.mu.blocked = append(s.mu.blocked, l)
	}
}

// unblock makes blocked logs dirty again, if all or if their time has come, and tells whether some still wait.
func (s *syncer) unblock(all bool) (waiting bool) {
	s.mu.Lock()
	blocked := s.mu.blocked
	if len(blocked) > 0 && !all && s.clk.Since(s.mu.blockedAt) < noSpaceRetry {
		s.mu.Unlock()
		return true
	}
	s.mu.blocked = nil
	s.mu.Unlock()
	for _, l := range blocked {
		s.markDirty(l)
	}
	return false
}

// starved tells whether a log waits for space in the journal.
func (s *syncer) starved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.blocked) > 0
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
	retry := s.clk.NewTimer(noSpaceRetry)
	defer retry.Stop()
	for {
		if s.unblock(false) {
			retry.Reset(noSpaceRetry)
		}
		ran, err := s.flush()
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
			return s.drain()
		case <-s.wake:
		case <-retry.C():
		case <-idle.C():
			left, err := s.whenIdle()
			if err != nil {
				return err
			}
			if left {
				idle.Reset(s.cfg.JournalIdle)
			}
		}
	}
}

// whenIdle closes the files that the last rounds needed beyond what the cache may keep, and journals their results. While rounds
// follow each other the files of one are those of the next, and stay open.
func (s *syncer) whenIdle() (left bool, err error) {
	s.cache.Trim()
	return s.journalResults()
}

// drain makes everything appended so far durable, and journals it, as far as there is space.
func (s *syncer) drain() error {
	s.unblock(true)
	if _, err := s.flush(); err != nil {
		return err
	}
	_, err := s.journalResults()
	return err
}

// flush runs one round if a log is dirty, and tells whether it did.
func (s *syncer) flush() (ran bool, err error) {
	if f := s.failure.Load(); f != nil {
		return false, f
	}
	dirty := s.take()
	defer s.recycle(dirty)
	if len(dirty) == 0 {
		return false, nil
	}
	return true, s.runRound(dirty)
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
