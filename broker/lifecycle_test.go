package broker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// journal notes what parts do, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// part runs until it is told to stop, and returns err.
func (j *journal) part(name string, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		j.note(name)
		return err
	}
}

func TestLayersStopFromTheLastToTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- runLayers(ctx, layer{j.part("storage", nil)}, layer{j.part("metadata", nil), j.part("metadata", nil)}, layer{j.part("server", nil)})
		}()
		synctest.Wait()
		if len(j.lines) != 0 {
			t.Errorf("ended by themselves: %q", j.lines)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []string{"server", "metadata", "metadata", "storage"}; !slices.Equal(j.lines, want) {
			t.Errorf("ended in the order %q, want %q", j.lines, want)
		}
	})
}

// A layer may still use the ones below while it ends.
func TestLayersBelowRunUntilTheOneAboveHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var below context.Context
		release := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- runLayers(ctx,
				layer{func(ctx context.Context) error { below = ctx; <-ctx.Done(); return nil }},
				layer{func(ctx context.Context) error { <-ctx.Done(); <-release; return nil }},
			)
		}()
		cancel()
		synctest.Wait()
		if below.Err() != nil {
			t.Error("the layer below was told to stop while the one above was ending")
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOnePartThatEndsStopsAll(t *testing.T) {
	disk, late := errors.New("disk"), errors.New("late")
	for name, tt := range map[string]struct {
		parts func(j *journal) []layer
		want  []error
		order []string
	}{
		"an error of the lowest": {
			func(j *journal) []layer {
				return []layer{{func(context.Context) error { return disk }}, {j.part("middle", nil)}, {j.part("top", late)}}
			}, []error{disk, late}, []string{"top", "middle"},
		},
		"an error of the highest": {
			func(j *journal) []layer {
				return []layer{{j.part("low", nil)}, {func(context.Context) error { return disk }}}
			}, []error{disk}, []string{"low"},
		},
		"an end without an error": {
			func(j *journal) []layer {
				return []layer{{j.part("low", nil)}, {func(context.Context) error { return nil }, j.part("beside", nil)}}
			}, nil, []string{"beside", "low"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			err := runLayers(t.Context(), tt.parts(&j)...)
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("the error %v does not hold %v", err, want)
				}
			}
			if len(tt.want) == 0 && err != nil {
				t.Error(err)
			}
			if !slices.Equal(j.lines, tt.order) {
				t.Errorf("ended in the order %q, want %q", j.lines, tt.order)
			}
		})
	}
}

// Values of the caller's context reach the parts; its end does not, before their turn has come.
func TestPartsKeepTheValuesOfTheContext(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	cancel()
	var got any
	if err := runLayers(ctx, layer{func(ctx context.Context) error { got = ctx.Value(key{}); <-ctx.Done(); return nil }}); err != nil || got != "v" {
		t.Errorf("value %v, %v", got, err)
	}
}

// A part that hangs must not keep the process.
func TestStopThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		err := bounded(ctx, clock.System(), 30*time.Second, quiet, func(context.Context) error { <-release; return nil })
		if took := time.Since(began); !errors.Is(err, ErrStopTimedOut) || took != 30*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestBoundedReturnsWhatItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		ctx, cancel := context.WithCancel(t.Context())
		if err := bounded(ctx, clock.System(), 0, quiet, func(context.Context) error { <-time.After(time.Hour); return own }); !errors.Is(err, own) {
			t.Errorf("before the end: %v", err)
		}
		cancel()
		err := bounded(ctx, clock.System(), time.Second, quiet, func(ctx context.Context) error { <-ctx.Done(); <-time.After(time.Second / 2); return own })
		if !errors.Is(err, own) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// What a hand-over takes is not given to calls in flight again: both together are bounded.
func TestCallsInFlightGetWhatTheHandOverLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandOver(nil, 20*time.Second, clock.System(), quiet)
		if got := h.left(); got != 20*time.Second {
			t.Errorf("before it began: %v", got)
		}
		began := time.Now()
		h.began.Store(&began)
		<-time.After(8 * time.Second)
		if got := h.left(); got != 12*time.Second {
			t.Errorf("after 8 s: %v", got)
		}
		<-time.After(8 * time.Second)
		if got := h.left(); got != 5*time.Second {
			t.Errorf("after 16 s: %v", got)
		}
	})
}

func TestReadyNeedsAllConditions(t *testing.T) {
	yes, no := check("a", true, "why not"), check("b", false, "because")
	if yes.Reason != "" || no.Reason != "because" || !yes.OK || no.OK {
		t.Errorf("%+v, %+v", yes, no)
	}
	for name, tt := range map[string]struct {
		conditions []condition
		want       bool
	}{
		"none": {nil, false}, "all": {[]condition{yes, yes}, true}, "one fails": {[]condition{yes, no}, false},
	} {
		if got := ready(tt.conditions); got != tt.want {
			t.Errorf("%s: ready is %v", name, got)
		}
	}
}

func TestNotStartedIsNotReady(t *testing.T) {
	b, err := New(testConfig(t), testDeps())
	if err != nil {
		t.Fatal(err)
	}
	got := b.conditions()
	if len(got) != 1 || got[0].OK || got[0].Reason != "starting" {
		t.Errorf("conditions %+v", got)
	}
	b.enter("waiting for etcd")
	if got = b.conditions(); got[0].Reason != "waiting for etcd" {
		t.Errorf("conditions %+v", got)
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	cfg := testConfig(t)
	cfg.BrokerID, cfg.Cluster, cfg.Limits.MaxPartitions = -1, "a/b", 0
	b, err := New(cfg, testDeps())
	if b != nil || err == nil {
		t.Fatalf("New() = %v, %v", b, err)
	}
	for _, field := range []string{"brokerID", "cluster", "limits.maxPartitions"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not reported in:\n%v", field, err)
		}
	}
}

// TestABrokerSaysThatItWasTakenOut: waiting helps only where nobody has decided anything.
func TestABrokerSaysThatItWasTakenOut(t *testing.T) {
	disk := ids.NewStorageID()
	for state, want := range map[metadata.StorageState]string{
		metadata.StorageActive: "the controller has not", metadata.StorageDraining: "the controller has not",
		metadata.StorageDecommissioned: "runnel cluster undrain 3", metadata.StorageFenced: "runnel cluster unfence 3",
	} {
		for _, here := range []ids.StorageID{disk, ids.NewStorageID()} {
			s := metadata.NewState(metadata.Contents{
				Brokers:  []*metadata.Broker{{BrokerInfo: metadata.BrokerInfo{ID: 3, StorageID: here}, Epoch: 10}},
				Storages: []*metadata.Storage{{BrokerID: 3, StorageID: disk, State: state}},
			})
			if here != disk {
				want = "the controller has not" // another data directory is another storage
			}
			if got := whyNotEligible(s, 3); !strings.Contains(got, want) {
				t.Errorf("%v: %q, want %q", state, got, want)
			}
		}
	}
	if got := lacking([]condition{check("a", true, "x"), check("b", false, "y"), check("c", false, "z")}); got != "b: y" {
		t.Error(got)
	}
}
