package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// noise does not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}

// latencies collects the time from when a record was due to its acknowledgement.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

func (l *latencies) at(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return l.all[min(len(l.all)-1, int(q*float64(len(l.all))))]
}

// each calls send for every record at the rate of w, with the time at which it was due.
func each(ctx context.Context, w workload, send func(i int64, due time.Time) error) error {
	began := time.Now()
	for i := range w.records {
		due := time.Now()
		if w.rate > 0 {
			due = began.Add(time.Duration(float64(i*int64(w.size)) / float64(w.rate) * 1e9))
			if wait := time.Until(due); wait > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(wait):
				}
			}
		}
		if err := send(i, due); err != nil {
			return err
		}
	}
	return nil
}
