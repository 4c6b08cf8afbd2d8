package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

func TestAdminTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		a, ctx := cl.c.Admin(), t.Context()
		day := 24 * time.Hour
		spec := TopicSpec{Name: "a", Partitions: 2, Config: TopicConfig{Retention: &day}}
		spec.DryRun = true
		if top, err := a.CreateTopic(ctx, spec); err != nil || top.Partitions != 2 {
			t.Fatalf("dry run: %v, %+v", err, top)
		}
		spec.DryRun = false
		top, err := a.CreateTopic(ctx, spec)
		if err != nil || *top.Config.Retention != day || top.State != TopicActive || top.ID.IsZero() {
			t.Fatalf("%v, %+v", err, top)
		}
		if _, err := a.CreateTopic(ctx, spec); !errors.Is(err, ErrTopicExists) || Retriable(err) {
			t.Fatal(err)
		}
		forever := time.Duration(-1)
		ch := TopicChange{Partitions: 3, Generation: top.Generation, Config: TopicConfig{Retention: &forever}}
		if _, changes, err := a.PlanTopic(ctx, "a", ch); err != nil || len(changes) != 2 || changes[0].String() != "partitions: 2 → 3" {
			t.Fatalf("%v, %v", err, changes)
		}
		if top, err = a.UpdateTopic(ctx, "a", ch); err != nil || top.Partitions != 3 || *top.Config.Retention >= 0 {
			t.Fatalf("%v, %+v", err, top)
		}
		if _, err = a.UpdateTopic(ctx, "a", ch); !errors.Is(err, ErrConflict) {
			t.Fatal(err)
		}
		if top, err = a.UpdateTopic(ctx, "a", TopicChange{Reset: []string{"retention_ms"}}); err != nil || *top.Config.Retention != 7*day {
			t.Fatalf("%v, %+v", err, top)
		}
		if _, err = a.UpdateTopic(ctx, "nope", ch); !errors.Is(err, ErrUnknownTopic) {
			t.Fatal(err)
		}
		compact := true
		if _, err = a.CreateTopic(ctx, TopicSpec{Name: "c", Config: TopicConfig{Compact: &compact}}); err == nil || !strings.Contains(err.Error(), "NOT_YET_AVAILABLE") {
			t.Fatal(err)
		}
		if err := a.DeleteTopic(ctx, "a", TopicID{}); !errors.Is(err, ErrInvalidArgument) {
			t.Fatal(err)
		}
		if err := a.DeleteTopic(ctx, "a", TopicID{1}); !errors.Is(err, ErrTopicRecreated) {
			t.Fatal(err)
		}
		if err := a.ForceDeleteTopic(ctx, "a", top.ID); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestAdminListsEveryPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		for i := range 1001 {
			cl.CreateTopic(fmt.Sprintf("t%04d", i), 1)
		}
		topics, err := cl.c.Admin().Topics(t.Context())
		if err != nil || len(topics) != 1001 || topics[1000].Name != "t1000" {
			t.Fatalf("%v, %d topics", err, len(topics))
		}
		if topics, err = cl.c.Admin().Topics(t.Context(), "t0007", "none"); err != nil || len(topics) != 1 {
			t.Fatalf("%v, %v", err, topics)
		}
		cl.stop()
	})
}

func TestAdminOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 2)
		fill(cl, "t", 0, 0, 10)
		at := time.Now()
		a, ctx := cl.c.Admin(), t.Context()
		res, err := a.DeleteRecords(ctx, "t", map[int32]int64{0: 4, 1: -1})
		if err != nil || len(res) != 2 || res[0].LogStart != 4 || res[1].LogStart != 0 {
			t.Fatalf("%v, %+v", err, res)
		}
		if res, err = a.DeleteRecords(ctx, "t", map[int32]int64{0: 99, 5: 0, 1: 0}); err == nil || res[1].Err != nil || !errors.Is(err, ErrUnknownPartition) {
			t.Fatalf("%v, %+v", err, res)
		}
		infos, err := a.ListOffsets(ctx, Earliest, tp0, TopicPartition{"t", 1}, TopicPartition{"t", 9})
		if !errors.Is(err, ErrUnknownPartition) || infos[0].Offset != 4 || infos[0].HighWatermark != 10 || infos[1].Err != nil || infos[2].Err == nil {
			t.Fatalf("%v, %+v", err, infos)
		}
		if infos, err = a.ListOffsets(ctx, Since(at), tp0); err != nil || infos[0].Timestamp.Before(at.Truncate(time.Millisecond)) {
			t.Fatalf("%v, %+v", err, infos)
		}
		ends, err := a.EndOffsets(ctx, "t")
		if err != nil || ends[tp0] != 10 || ends[TopicPartition{"t", 1}] != 0 {
			t.Fatalf("%v, %v", err, ends)
		}
		cl.MoveLeader("t", 0, -1)
		synctest.Wait()
		if _, err = a.EndOffsets(ctx, "t"); !Retriable(err) && !errors.Is(err, ErrUnavailable) {
			t.Fatalf("a partition without leader: %v", err)
		}
		cl.stop()
	})
}

func TestAdminDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 2)
		fill(cl, "t", 0, 0, 3)
		a, ctx := cl.c.Admin(), t.Context()
		info, err := a.DescribeCluster(ctx)
		if err != nil || info.ID != "fake" || cl.c.ClusterID() != "fake" || len(info.Brokers) != 2 || info.Partitions != 2 {
			t.Fatalf("%v, %+v", err, info)
		}
		top, parts, err := a.DescribeTopic(ctx, "t")
		if err != nil || top.Name != "t" || parts[0].HighWatermark != 3 || parts[0].Health != HealthOnline || parts[0].TieredEnd != -1 {
			t.Fatalf("%v, %+v", err, parts)
		}
		if parts, err = a.DescribePartitions(ctx, "t", 1); err != nil || len(parts) != 1 || parts[0].Partition != 1 {
			t.Fatalf("%v, %+v", err, parts)
		}
		rec, err := a.RecoverPartition(ctx, tp0, false)
		if err != nil || rec.Applied || rec.KeptEnd != 3 {
			t.Fatalf("%v, %+v", err, rec)
		}
		if _, err = a.RecoverPartition(ctx, TopicPartition{"t", 4}, false); !errors.Is(err, ErrUnknownPartition) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestAdminReadsGoOnToAnotherBrokerAndChangesDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		var calls []string
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			calls = append(calls, c.Method)
			return fakebroker.Action{Disconnect: c.Method == "CreateTopic" || (c.Method == "ListTopics" && c.Broker == 1)}
		})
		if _, err := cl.c.Admin().Topics(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := cl.c.Admin().CreateTopic(t.Context(), TopicSpec{Name: "x"}); !errors.Is(err, ErrUnavailable) || !Retriable(err) {
			t.Fatal(err)
		}
		if n := strings.Count(strings.Join(calls, " "), "CreateTopic"); n != 1 {
			t.Fatalf("a change was sent %d times", n)
		}
		cl.stop()
	})
}

func TestErrorsCarryWhatTheBrokerSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.OnCall(func(fakebroker.Call) fakebroker.Action {
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.ResourceExhausted, Reason: "QUOTA", Message: "no", Metadata: map[string]string{"limit": "5"}}}
		})
		_, err := cl.c.Admin().DescribeCluster(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Reason != "QUOTA" || e.Metadata["limit"] != "5" || e.Code != codes.ResourceExhausted || Retriable(err) {
			t.Fatalf("%v, %+v", err, e)
		}
		cl.stop()
	})
}

func TestOpenFailsInTimeAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakebroker.Start()
		defer fake.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := Open(ctx, "runnel://nowhere:1", Dialer(fake.Dial))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
			t.Fatal(err)
		}
		if _, err := Open(ctx, "http://x", RequestTimeout(0), TopicWait(-1)); len(strings.Split(fmt.Sprint(err), "\n")) != 3 {
			t.Fatal(err)
		}
	})
}

func TestClosedClientRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p, cs := cl.producer(t), cl.consumer(t, Topics("t"))
		if err := cl.c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "a")); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if _, err := cs.Poll(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if _, err := cl.c.NewProducer(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if _, err := cl.c.Admin().Topics(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := cl.c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		cl.stop()
	})
}

func TestMetadataGoesFromBrokerToBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateTopic("t", 3)
		p := cl.producer(t)
		for id := range int32(3) {
			cl.StopBroker(id + 1)
			for n := range int32(3) {
				cl.MoveLeader("t", n, (id+1)%3+1)
			}
			began := time.Now()
			if err := p.ProduceSync(t.Context(), rec("t", "a")); err != nil || time.Since(began) > time.Second {
				t.Fatalf("broker %d away: %v after %v", id+1, err, time.Since(began))
			}
			cl.StartBroker(id + 1)
			sleep(time.Second)
		}
		cl.stop()
	})
}

func TestStaleMetadataIsNotBelieved(t *testing.T) {
	cfg, err := newConfig("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	cdc, err := newConns(&cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := newMetadata(&cfg, cdc)
	answer := func(cluster string, revision int64) *runnelv1.WatchResponse {
		return &runnelv1.WatchResponse{ClusterId: cluster, Snapshot: true, Revision: revision}
	}
	if err := m.apply(answer("a", 10)); err != nil {
		t.Fatal(err)
	}
	if err := m.apply(answer("b", 20)); err == nil {
		t.Error("another cluster was believed")
	}
	for range maxStale {
		if err := m.apply(answer("a", 9)); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("an older revision: %v", err)
		}
	}
	if err := m.apply(answer("a", 1)); err != nil || m.snapshot().revision != 1 {
		t.Errorf("a new era: %v", err)
	}
}
