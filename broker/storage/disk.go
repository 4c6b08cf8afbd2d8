package storage

import (
	"math"
	"sync"
	"time"

	"runnel.dev/runnel/internal/vfs"
)

// Usage is the space of the data directory's volume.
type Usage struct {
	Total   int64 // bytes; 0 where the platform cannot tell
	Free    int64 // bytes that this process may use
	Reserve int64 // bytes below which produce is refused
	// FullIn is the time until free space reaches the reserve at the present rate of filling: 0 when it has, Never when the volume
	// does not fill up.
	FullIn time.Duration
}

// Never as Usage.FullIn: free space does not shrink.
const Never = time.Duration(math.MaxInt64)

const (
	maxDefaultReserve = 1 << 30
	// fillWindow is the time over which the rate of filling is averaged.
	fillWindow = 2 * time.Minute
	// maxFullIn caps the estimate: at such a rate nobody has to act.
	maxFullIn = 10 * 365 * 24 * time.Hour
)

// diskWatch judges the free space that observe tells it about. It does no I/O.
type diskWatch struct {
	configured int64 // bytes of reserve; 0: derived from the total

	mu struct {
		sync.Mutex
		usage  Usage
		full   bool
		at     time.Time
		rate   float64 // bytes per second that free space shrinks by
		looked bool
	}
}

// observe takes a measurement and tells whether the disk went from usable to full (became) or back (resumed).
//
// Produce resumes an eighth of the reserve above it, so that a disk at the brink does not refuse every other request.
func (d *diskWatch) observe(now time.Time, u vfs.Usage) (became, resumed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reserve := d.configured
	if reserve == 0 {
		reserve = min(maxDefaultReserve, u.Total/50)
	}
	if elapsed := now.Sub(d.mu.at).Seconds(); d.mu.looked && elapsed > 0 {
		rate := float64(d.mu.usage.Free-u.Free) / elapsed
		weight := 1 - math.Exp(-elapsed/fillWindow.Seconds())
		d.mu.rate += weight * (rate - d.mu.rate)
	}
	was := d.mu.full
	d.mu.full = u.Free < reserve || was && u.Free < reserve+reserve/8
	d.mu.at, d.mu.looked = now, true
	d.mu.usage = Usage{Total: u.Total, Free: u.Free, Reserve: reserve, FullIn: fullIn(u.Free-reserve, d.mu.rate)}
	return d.mu.full && !was, was && !d.mu.full
}

// fullIn divides the room that is left by the rate (bytes per second).
func fullIn(room int64, rate float64) time.Duration {
	if room <= 0 {
		return 0
	}
	if rate <= 0 {
		return Never
	}
	seconds := float64(room) / rate
	if seconds > maxFullIn.Seconds() {
		return Never
	}
	return time.Duration(seconds * float64(time.Second))
}

func (d *diskWatch) usage() Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.usage
}

// check is nil while there is room for produce in dir.
func (d *diskWatch) check(dir string) *DiskFullError {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.full {
		return nil
	}
	return &DiskFullError{Dir: dir, Free: d.mu.usage.Free, Reserve: d.mu.usage.Reserve}
}
