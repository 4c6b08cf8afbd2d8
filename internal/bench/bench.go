// Package bench measures a cluster through the public client: how fast it takes records, how fast it gives them back, and how long
// a record is under way. It is behind `runnel bench` and behind the table of hack/bench.
package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Options say what to send or read.
type Options struct {
	// Topic has to exist.
	Topic string
	// Records is how many to send or read; 0: until Duration is over.
	Records int64
	// Duration bounds the run; 0: no bound.
	Duration time.Duration
	// RecordBytes is the size of a value, 16 B to 1 MiB.
	RecordBytes int
	// BytesPerSecond paces sending; 0: as fast as it goes.
	BytesPerSecond int64
}

// Validate reports all faults.
func (o Options) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Topic == "", "topic: want a name")
	fault(o.Records < 0, "records %d: want 0 or more", o.Records)
	fault(o.Duration < 0, "duration %v: want 0s or more", o.Duration)
	fault(o.Records == 0 && o.Duration == 0, "records and duration are both 0: the run would not end")
	fault(o.RecordBytes < minRecord || o.RecordBytes > 1<<20, "record size %d: want %d to %d bytes", o.RecordBytes, minRecord, 1<<20)
	fault(o.BytesPerSecond < 0, "rate %d: want 0 or more bytes per second", o.BytesPerSecond)
	return errors.Join(errs...)
}

// minRecord leaves room for the time of sending.
const minRecord = 16

// Result is what a run came to.
type Result struct {
	Records int64         `json:"records"`
	Bytes   int64         `json:"bytes"`
	Took    time.Duration `json:"took"`
	// Latency is of acks (produce) or from send to receipt (e2e); nil for consume. Of a run without a rate it is a sample.
	Latency *Latency `json:"latency,omitempty"`
}

// RecordsPerSecond is the mean over the run.
func (r Result) RecordsPerSecond() float64 { return float64(r.Records) / r.Took.Seconds() }

// MBPerSecond is the mean over the run, in 10^6 bytes of values.
func (r Result) MBPerSecond() float64 { return float64(r.Bytes) / 1e6 / r.Took.Seconds() }

// Latency summarises a distribution.
type Latency struct {
	Samples int64         `json:"samples"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Max     time.Duration `json:"max"`
}

// latencies collects times between 1 µs and 10 min. Not safe for concurrent use.
type latencies struct{ h *hdrhistogram.Histogram }

func newLatencies() latencies {
	return latencies{h: hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)}
}

func (l latencies) add(d time.Duration) {
	_ = l.h.RecordValue(max(1, d.Microseconds())) // a value beyond the range is no measurement
}

func (l latencies) summary() *Latency {
	at := func(q float64) time.Duration { return time.Duration(l.h.ValueAtQuantile(q)) * time.Microsecond }
	return &Latency{Samples: l.h.TotalCount(), P50: at(50), P99: at(99), Max: time.Duration(l.h.Max()) * time.Microsecond}
}

// randomBytes does not compress.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}
