package testcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"runnel.dev/runnel/broker"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

// Broker is one broker, which can be started and stopped any number of times. Its methods are for one goroutine.
type Broker struct {
	// Config and FS are what the next Start uses.
	Config config.Config
	FS     vfs.FS
	// Registry holds the metrics of the latest start.
	Registry *prometheus.Registry

	t   testing.TB
	lg  *slog.Logger
	now *running // nil: not running, and never awaited
	net *network // of the present or the last run
}

// running is one run of a broker.
type running struct {
	cancel context.CancelFunc
	done   chan struct{} // closed once Run has returned
	err    error         // of Run; valid once done is closed
}

// Address is where the first listener is reached.
func (b *Broker) Address() string { return b.Config.Listeners[0].Address }

// DataDir is the broker's data directory, in its FS.
func (b *Broker) DataDir() string { return b.Config.Storage.DataDir }

// Start starts the broker and returns once it is ready.
func (b *Broker) Start() {
	b.t.Helper()
	b.Launch()
	b.AwaitReady()
}

// Launch starts the broker and does not wait. A configuration that is refused fails the test.
func (b *Broker) Launch() {
	b.t.Helper()
	if b.now != nil {
		b.t.Fatalf("broker %d runs already", b.Config.BrokerID)
	}
	b.Registry = prometheus.NewRegistry()
	b.net = newNetwork()
	made, err := broker.New(b.Config, broker.Deps{
		FS: b.FS, Clock: clock.System(), Logger: b.lg, Registry: b.Registry, Listen: b.net.listen, Dial: b.net.dial,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan struct{})}
	b.now = r
	go func() {
		r.err = made.Run(ctx)
		close(r.done)
	}()
}

// AwaitReady returns once the broker is ready, and fails the test when it has ended instead.
func (b *Broker) AwaitReady() {
	b.t.Helper()
	r := b.now
	Eventually(b.t, func() error {
		select {
		case <-r.done:
			b.t.Fatalf("broker %d ended: %v", b.Config.BrokerID, r.err)
		default:
		}
		state, err := b.Readiness()
		if err == nil && !state.Ready {
			err = fmt.Errorf("broker %d is not ready: %+v", b.Config.BrokerID, state.Conditions)
		}
		return err
	})
}

// Readiness is what /readyz answers.
type Readiness struct {
	Ready      bool        `json:"ready"`
	Conditions []Condition `json:"conditions"`
	// Code is the HTTP status.
	Code int `json:"-"`
}

// Condition is one thing that has to hold before a broker is ready.
type Condition struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason"`
}

// Readiness asks /readyz.
func (b *Broker) Readiness() (state Readiness, err error) {
	resp, err := b.Get("/readyz")
	if err != nil {
		return state, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	state.Code = resp.StatusCode
	return state, json.NewDecoder(resp.Body).Decode(&state)
}

// Get asks the broker's HTTP endpoint. The caller closes the body.
func (b *Broker) Get(path string) (*http.Response, error) {
	// Without keep-alive: an idle connection would be a goroutine that outlives the test.
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Patience}
	ctx := b.t.Context()
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Config.HTTP.Address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return c.Do(r)
}

// Stop tells the broker to stop, and returns once it has; an error of its Run fails the test. A stopped broker stays so.
func (b *Broker) Stop() {
	b.t.Helper()
	if b.now == nil {
		return
	}
	b.Tell()
	if err := b.Wait(); err != nil {
		b.t.Errorf("broker %d: %v", b.Config.BrokerID, err)
	}
}

// Restart stops and starts the broker.
func (b *Broker) Restart() {
	b.t.Helper()
	b.Stop()
	b.Start()
}

// Tell tells the broker to stop and does not wait for it.
func (b *Broker) Tell() { b.now.cancel() }

// Cut takes the broker off the network: its connections break, and new ones are refused, etcd's included. The broker goes on, alone.
func (b *Broker) Cut() { b.net.setCut(true) }

// Heal ends a Cut.
func (b *Broker) Heal() { b.net.setCut(false) }

// Kill ends the broker as if its process died, as far as that goes within one process: nobody hears of it, it hands nothing over, and its
// registration outlives it. What it wrote is on the disk. It returns once the broker has ended; what it says of that does not count.
func (b *Broker) Kill() {
	b.t.Helper()
	if b.now == nil {
		return
	}
	b.Cut()
	b.Tell()
	if err := b.Wait(); err != nil {
		b.lg.Info("a killed broker ended", "broker_id", b.Config.BrokerID, "error", err)
	}
}

// Wait returns what Run returned, once the broker has ended, by itself or told to.
func (b *Broker) Wait() error {
	b.t.Helper()
	patience := time.NewTimer(2 * Patience)
	defer patience.Stop()
	r := b.now
	select {
	case <-r.done:
	case <-patience.C:
		b.t.Fatalf("broker %d does not end", b.Config.BrokerID)
	}
	r.cancel()
	b.now = nil
	return r.err
}

// Running is false once Run has returned.
func (b *Broker) Running() bool {
	if b.now == nil {
		return false
	}
	select {
	case <-b.now.done:
		return false
	default:
		return true
	}
}

// end is the cleanup of a broker that the test did not stop.
func (b *Broker) end() {
	if b.now == nil {
		return
	}
	b.Tell()
	if err := b.Wait(); err != nil {
		b.t.Errorf("broker %d: %v", b.Config.BrokerID, err)
	}
}
