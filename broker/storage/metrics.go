package storage

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is the table of what a store tells Prometheus. Units are last in the names.
type metrics struct {
	rounds       *prometheus.CounterVec
	syncSeconds  prometheus.Histogram
	syncFailures prometheus.Counter
	journalBytes prometheus.Counter
	journalSize  prometheus.GaugeFunc
	dirtyLogs    prometheus.GaugeFunc
	logs         prometheus.GaugeFunc
	quarantined  prometheus.GaugeFunc
	diskFree     prometheus.GaugeFunc
	diskTotal    prometheus.GaugeFunc
	diskReserve  prometheus.GaugeFunc
	retired      prometheus.Counter
}

// gauges are read when Prometheus asks, from any goroutine.
type gauges struct {
	journalSize, dirtyLogs, logs, quarantined func() float64
	usage                                     func() Usage
}

const (
	methodFdatasync = "fdatasync"
	methodSyncfs    = "syncfs"
)

func newMetrics(reg prometheus.Registerer, g gauges) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "runnel", Subsystem: "storage", Name: name, Help: help}
	}
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), f)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &metrics{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts(opts("sync_rounds_total", "Sync rounds that succeeded, by method.")),
			[]string{"method"}),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "runnel", Subsystem: "storage", Name: "sync_duration_seconds",
			Help:    "Time from the start of a sync round to its success: what every acknowledgement waits for.",
			Buckets: prometheus.ExponentialBuckets(0.000_025, 2, 18), // 25 µs to 3.3 s
		}),
		syncFailures: counter("sync_failures_total", "Syncs that failed. The broker stops at the first."),
		journalBytes: counter("journal_written_bytes_total", "Bytes written to the journal."),
		retired:      counter("retention_deleted_segments_total", "Segments deleted by retention."),
		journalSize:  gauge("journal_size_bytes", "Size of the journal file.", g.journalSize),
		dirtyLogs:    gauge("dirty_logs", "Logs with bytes that wait for the next sync round.", g.dirtyLogs),
		logs:         gauge("partitions", "Partition directories that are open.", g.logs),
		quarantined: gauge("quarantined_partitions",
			"Partitions that are damaged below their flushed offset, or missing, and untouched until they are recovered.", g.quarantined),
		diskFree:    gauge("disk_free_bytes", "Free space of the data volume.", func() float64 { return float64(g.usage().Free) }),
		diskTotal:   gauge("disk_size_bytes", "Size of the data volume.", func() float64 { return float64(g.usage().Total) }),
		diskReserve: gauge("disk_reserve_bytes", "Free space below which produce is refused.", func() float64 { return float64(g.usage().Reserve) }),
	}
	m.rounds.WithLabelValues(methodFdatasync)
	m.rounds.WithLabelValues(methodSyncfs)
	if reg == nil {
		return m, nil
	}
	return m, m.register(reg)
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.rounds, m.syncSeconds, m.syncFailures, m.journalBytes, m.retired,
		m.journalSize, m.dirtyLogs, m.logs, m.quarantined, m.diskFree, m.diskTotal, m.diskReserve,
	}
}

func (m *metrics) register(reg prometheus.Registerer) error {
	all := m.collectors()
	errs := make([]error, 0, len(all))
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

// unregister lets another store of the same process take the names.
func (m *metrics) unregister(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	for _, c := range m.collectors() {
		reg.Unregister(c)
	}
}
