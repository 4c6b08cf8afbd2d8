package controller

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	active   prometheus.Gauge
	updates  prometheus.Counter
	failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runnel_controller_active", Help: "1 while this broker is the controller, else 0.",
		}),
		updates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_controller_partition_updates_total", Help: "Elections and ISR removals that this broker wrote as the controller.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_controller_failures_total", Help: "Controller steps that failed and were tried again.",
		}),
	}
	for _, c := range []prometheus.Collector{m.active, m.updates, m.failures} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
