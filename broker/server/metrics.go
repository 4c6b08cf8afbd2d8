package server

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the gRPC front. Labels are bounded: methods of the API, canonical codes.
type metrics struct {
	requests       *prometheus.CounterVec
	seconds        *prometheus.HistogramVec
	streams        *prometheus.GaugeVec
	panics         prometheus.Counter
	internalErrors prometheus.Counter

	producedBatches, producedBytes, producedRecords prometheus.Counter
	refusedBatches                                  prometheus.Counter
	fetchedBytes, fetchedFrames                     prometheus.Counter
	forwarded, forwardedBytes                       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, b *budget) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "runnel", Subsystem: "server", Name: name, Help: help})
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "runnel", Subsystem: "server", Name: "requests_total", Help: "Finished calls by method and canonical code.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "runnel", Subsystem: "server", Name: "request_duration_seconds", Help: "Duration of unary calls.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"method"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "runnel", Subsystem: "server", Name: "streams", Help: "Open streams by method.",
		}, []string{"method"}),
		panics:          counter("panics_total", "Requests that ended in a panic; each is a bug."),
		internalErrors:  counter("internal_errors_total", "Errors that the error table does not know; each is a bug."),
		producedBatches: counter("produced_batches_total", "Batches acknowledged."),
		producedBytes:   counter("produced_bytes_total", "Bytes of batches received."),
		producedRecords: counter("produced_records_total", "Records of batches received that passed validation."),
		refusedBatches:  counter("refused_batches_total", "Batches answered with an error."),
		fetchedBytes:    counter("fetched_bytes_total", "Bytes of batches sent to consumers."),
		fetchedFrames:   counter("fetched_frames_total", "Fetch frames sent to consumers, heartbeats included."),
		forwarded:       counter("forwarded_calls_total", "Calls and streams opened at other brokers on behalf of clients."),
		forwardedBytes:  counter("forwarded_bytes_total", "Bytes of batches that went to or came from other brokers on behalf of clients."),
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "runnel", Subsystem: "server", Name: "produce_in_flight_bytes", Help: "Bytes of batches that are not answered yet.",
	}, func() float64 { return float64(b.used.Load()) })
	all := []prometheus.Collector{
		m.requests, m.seconds, m.streams, m.panics, m.internalErrors, m.producedBatches, m.producedBytes, m.producedRecords,
		m.refusedBatches, m.fetchedBytes, m.fetchedFrames, m.forwarded, m.forwardedBytes, inFlight,
	}
	errs := make([]error, 0, len(all))
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}
