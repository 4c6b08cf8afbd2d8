package controller

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	active, suspects                       prometheus.Gauge
	updates, failures, takeovers           prometheus.Counter
	elections, removals, moves, reassigned *prometheus.CounterVec
	partitions                             *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "runnel_controller_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "runnel_controller_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "runnel_controller_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		active:     gauge("active", "1 while this broker is the controller, else 0."),
		suspects:   gauge("suspects", "Brokers that this broker holds for dead, confirmed by another witness. Only while it is the controller."),
		updates:    counter("partition_updates_total", "Partition records that this broker wrote as the controller."),
		failures:   counter("failures_total", "Controller steps that failed and were tried again."),
		takeovers:  counter("takeovers_total", "Times that this broker took the office from one that was held for dead or was stopping."),
		elections:  vec("elections_total", "Leaders elected, by the one before: gone, restarted, suspect, stopping, draining, none.", "before"),
		removals:   vec("isr_removals_total", "Members taken out of in-sync sets, by reason: gone, suspect, stopping, storage.", "reason"),
		moves:      vec("leader_moves_total", "Leaders moved without need, by cause: preferred, load, request.", "cause"),
		reassigned: vec("reassignments_total", "Reassignments of partitions, by event: started, finished, cancelled.", "event"),
		partitions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runnel_controller_partitions",
			Help: "Partitions that are leaderless, under_minimum, under_replicated or moving. Only while this broker is the controller.",
		}, []string{"state"}),
	}
	for _, c := range []prometheus.Collector{
		m.active, m.suspects, m.updates, m.failures, m.takeovers, m.elections, m.removals, m.moves, m.reassigned, m.partitions,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// leave forgets what only the controller knows.
func (m *metrics) leave() {
	m.active.Set(0)
	m.suspects.Set(0)
	m.partitions.Reset()
}
