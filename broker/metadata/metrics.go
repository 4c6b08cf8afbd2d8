package metadata

import "github.com/prometheus/client_golang/prometheus"

// All metrics of this package. Labels are bounded: op is the name of one of the operations in the code.
type metrics struct {
	requests     *prometheus.HistogramVec
	unanswered   *prometheus.CounterVec
	relists      prometheus.Counter
	watchErrors  prometheus.Counter
	registration prometheus.Gauge
	revision     prometheus.Gauge
	corrupt      prometheus.Counter
	pushed       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runnel_metadata_request_duration_seconds", Help: "Duration of etcd requests, each attempt on its own.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"op", "result"}),
		unanswered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runnel_metadata_unanswered_requests_total", Help: "Attempts that etcd did not answer; writes among them were settled by repetition.",
		}, []string{"op"}),
		relists: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_metadata_watch_relists_total", Help: "Full lists after the first, because the watch had lost its place.",
		}),
		watchErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_metadata_watch_errors_total", Help: "Watches that broke and were started again.",
		}),
		registration: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runnel_metadata_registration_epoch", Help: "Broker epoch of this broker's registration; 0 while there is none.",
		}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runnel_metadata_revision", Help: "Revision that the metadata cache has reached.",
		}),
		corrupt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_metadata_corrupt_values_total", Help: "Values in etcd that could not be decoded and were left out.",
		}),
		pushed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnel_metadata_pushes_total", Help: "Pushes of partition states that told more than the watch had.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.unanswered, m.relists, m.watchErrors, m.registration, m.revision, m.corrupt, m.pushed} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
