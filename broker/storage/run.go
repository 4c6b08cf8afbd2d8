package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
)

// Run syncs what is appended, journals, applies retention and watches the disk until ctx ends, and then syncs what is there. It
// blocks until everything that it started has ended, and may be called once. After it, Close.
//
// It returns nil after ctx ended, or a *SyncFailedError as soon as a sync has failed: the process has to stop then, because nothing
// more will be acknowledged. The stop is recorded, and the third within ten minutes makes Open refuse.
func (s *Store) Run(ctx context.Context) error {
	s.mu.Lock()
	refused := s.mu.running || s.mu.closed
	s.mu.running = true
	s.mu.Unlock()
	if refused {
		return fmt.Errorf("storage: Run was called twice, or after Close: %w", ErrClosed)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := s.syncer.run(ctx)
		// Here, where no lock is held, and before the others have ended: one of them may hang on the same disk.
		if failed, ok := errors.AsType[*SyncFailedError](err); ok && s.cfg.OnSyncFailed != nil {
			s.cfg.OnSyncFailed(failed)
		}
		return err
	})
	group.Go(func() error { return s.runRetention(ctx) })
	group.Go(func() error { return s.runDiskWatch(ctx) })
	err := group.Wait()
	if failed, ok := errors.AsType[*SyncFailedError](err); ok {
		s.lg.Error("Stopping because a sync failed", "error", failed)
		if err := recordStop(s.fsys, s.cfg.DataDir, s.clk.Now()); err != nil {
			s.lg.Error("The stop could not be recorded", "error", err)
		}
		return failed
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// runRetention rolls old segments, and deletes them or asks for it.
func (s *Store) runRetention(ctx context.Context) error {
	ticker := s.clk.NewTicker(s.cfg.RetentionInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		for _, l := range s.Logs() {
			if ctx.Err() != nil {
				return nil
			}
			s.applyRetention(ctx, l)
		}
	}
}

func (s *Store) applyRetention(ctx context.Context, l *log.Log) {
	target, err := l.RetentionTarget(s.clk.Now())
	switch {
	case err != nil || target <= l.LogStart():
	case s.cfg.Retention != nil:
		s.cfg.Retention(l, target)
	default:
		err = l.PublishLogStart(ctx, target)
	}
	s.metrics.retired.Add(float64(l.TakeRetired()))
	if err == nil || errors.Is(err, log.ErrClosed) || errors.Is(err, log.ErrQuarantined) || errors.Is(err, ErrClosed) {
		return
	}
	s.lg.Warn("Retention failed; it is tried again",
		"topic_id", l.TopicID().String(), "partition", l.Partition(), "error", err)
}

func (s *Store) runDiskWatch(ctx context.Context) error {
	ticker := s.clk.NewTicker(s.cfg.DiskInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			s.lookAtDisk()
			s.lookAtRefusals(true)
		case <-s.refused:
			s.lookAtRefusals(false)
		}
	}
}

// lookAtDisk measures free space, and refuses or allows produce.
func (s *Store) lookAtDisk() {
	u, err := s.fsys.DiskUsage(s.cfg.DataDir)
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	if err != nil {
		s.lg.Warn("Free space is not known", "error", err)
		return
	}
	became, resumed := s.disk.observe(s.clk.Now(), u)
	s.full.Store(s.disk.check(s.cfg.DataDir))
	usage := s.disk.usage()
	switch {
	case became:
		s.lg.Error("The disk is full: produce is refused until there is space", "free_bytes", usage.Free, "reserve_bytes", usage.Reserve)
	case resumed:
		s.lg.Info("The disk has space again: produce resumes", "free_bytes", usage.Free, "reserve_bytes", usage.Reserve)
	}
}

// Close ends the store; Run must have returned, or never have been called. Unless a sync failed, everything is synced, each log is
// closed, and marks of a clean stop are written, with which the next Open needs no scan. The lock on the directory ends in any
// case. A second call does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.mu.Unlock()
	err := s.closeLogs()
	return errors.Join(err, s.journal.close(), s.closeDir())
}

func (s *Store) closeDir() error {
	s.metrics.unregister(s.reg)
	return s.dir.close()
}

func (s *Store) closeLogs() error {
	// Whoever appends during the stop is in time for this round, or gets no acknowledgement.
	drained := s.syncer.drain()
	logs := s.Logs()
	var group errgroup.Group
	group.SetLimit(s.cfg.OpenParallelism)
	closed := make([]error, len(logs)+1)
	closed[len(logs)] = drained
	for i, l := range logs {
		group.Go(func() error {
			closed[i] = l.Close()
			return nil
		})
	}
	_ = group.Wait() // the errors are in closed
	if err := errors.Join(closed...); err != nil {
		return fmt.Errorf("closing %s: %w", filepath.Clean(s.cfg.DataDir), err)
	}
	if slices.ContainsFunc(logs, func(l *log.Log) bool { return l.Flushed() < l.End() }) {
		return nil // an append came after the last round: the next Open scans
	}
	// The logs' own markers are not synced one by one.
	if s.dir.volume.Supported() {
		if err := s.dir.volume.Sync(); err != nil {
			return s.syncer.fail("the data volume", err)
		}
	}
	seal, err := s.journal.seal()
	if err != nil {
		return err
	}
	return writeClean(s.fsys, s.cfg.DataDir, seal)
}
