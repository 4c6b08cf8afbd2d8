package broker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	opsReadTimeout  = 10 * time.Second
	opsWriteTimeout = 60 * time.Second
	opsStopTimeout  = 2 * time.Second
)

// condition is one thing that has to hold before the broker is ready, and why it does not hold yet.
type condition struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// ready reports whether all conditions hold; without any, nothing is ready.
func ready(conditions []condition) bool {
	return len(conditions) > 0 && !slices.ContainsFunc(conditions, func(c condition) bool { return !c.OK })
}

// opsServer answers /metrics, /healthz (the process answers) and /readyz (it may be given work).
type opsServer struct {
	listener net.Listener
	server   *http.Server
}

func newOpsServer(l net.Listener, gatherer prometheus.Gatherer, conditions func() []condition, lg *slog.Logger) *opsServer {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(lg.Handler(), slog.LevelError)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		now := conditions()
		ok := ready(now)
		code := http.StatusOK
		if !ok {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, map[string]any{"ready": ok, "conditions": now})
	})
	return &opsServer{listener: l, server: &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: opsReadTimeout,
		ReadTimeout:       opsReadTimeout,
		WriteTimeout:      opsWriteTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(lg.Handler(), slog.LevelWarn),
	}}
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody is left to tell
}

// Run serves until ctx ends, then gives running requests two seconds.
func (o *opsServer) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- o.server.Serve(o.listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opsStopTimeout)
	defer cancel()
	err := o.server.Shutdown(stopCtx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = o.server.Close()
	}
	return errors.Join(err, ignoreClosed(<-failed))
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
