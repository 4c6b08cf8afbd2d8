package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

// Names that no topic can have are refused at once, and are not asked for in the watch that all topics share.
func TestImpossibleTopicNamesStayOutOfTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		p := cl.producer(t)
		for _, name := range []string{"", ".", "..", "__internal", "a/b", "a\x00", "tést", strings.Repeat("x", 250)} {
			err := p.ProduceSync(t.Context(), rec(name, "v"))
			if !errors.Is(err, ErrInvalidArgument) || !errors.Is(err, ErrNotWritten) {
				t.Errorf("%q: %v", name, err)
			}
			if _, err := cl.c.NewConsumer(Topics(name)); !errors.Is(err, ErrInvalidArgument) {
				t.Errorf("consume %q: %v", name, err)
			}
		}
		if n := len(cl.c.meta.mu.topics); n != 0 {
			t.Errorf("%d names are watched", n)
		}
		cl.stop()
	})
}

// A broker that has not loaded its metadata yet must not make topics look deleted.
func TestASnapshotWithoutAClusterIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t)
		if err := p.ProduceSync(t.Context(), rec("t", "v")); err != nil {
			t.Fatal(err)
		}
		for range maxStale + 2 {
			err := cl.c.meta.apply(&runnelv1.WatchResponse{Snapshot: true, ControllerId: -1, MissingTopics: []string{"t"}})
			if !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if err := p.ProduceSync(t.Context(), rec("t", "v")); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}

// Looking offsets up survives a leader that moves meanwhile, and ends when it does not come back.
func TestListOffsetsTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2, RequestTimeout(5*time.Second))
		cl.CreateTopic("t", 2)
		fill(cl, "t", 0, 0, 3)
		tries := 0
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method != "ListOffset" || c.Partition != 0 {
				return fakebroker.Action{}
			}
			if tries++; tries <= 3 {
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.FailedPrecondition, Reason: "NOT_LEADER", Retriable: true}}
			}
			return fakebroker.Action{}
		})
		ends, err := cl.c.Admin().EndOffsets(t.Context(), "t")
		if err != nil || ends[tp0] != 3 || tries != 4 {
			t.Fatalf("%v %v after %d tries", ends, err, tries)
		}
		cl.MoveLeader("t", 0, -1)
		begin := time.Now()
		if _, err = cl.c.Admin().EndOffsets(t.Context(), "t"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited > 7*time.Second {
			t.Fatalf("gave up after %v", waited)
		}
		cl.stop()
	})
}
