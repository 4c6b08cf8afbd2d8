package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/record"
)

// TestEveryCallIsListed fails when a service gets a call that nobody decided about, and when the list names one that is gone.
func TestEveryCallIsListed(t *testing.T) {
	l := &listener{}
	g := grpc.NewServer()
	defer g.Stop()
	runnelv1.RegisterProducerServer(g, l)
	runnelv1.RegisterConsumerServer(g, l)
	runnelv1.RegisterAdminServer(g, l)
	runnelv1.RegisterMetadataServer(g, l)
	runnelv1.RegisterReplicationServer(g, l)
	healthv1.RegisterHealthServer(g, health.NewServer())
	reflection.Register(g)
	served := map[string]bool{}
	for service, info := range g.GetServiceInfo() {
		for _, m := range info.Methods {
			name := fmt.Sprintf("/%s/%s", service, m.Name)
			served[name] = true
			if err := listed(name); err != nil {
				t.Errorf("%s is not in the list", name)
			}
		}
	}
	for name := range calls {
		if !served[name] {
			t.Errorf("%s is listed but not served", name)
		}
	}
	if err := listed("/runnel.v1.Producer/Unheard"); !errors.Is(err, errUnlisted) {
		t.Error("a call that is not listed passes")
	}
	// Every call of ours is implemented: none falls through to the generated stub.
	for _, desc := range []grpc.ServiceDesc{runnelv1.Producer_ServiceDesc, runnelv1.Consumer_ServiceDesc, runnelv1.Admin_ServiceDesc, runnelv1.Metadata_ServiceDesc} {
		if len(desc.Methods)+len(desc.Streams) == 0 {
			t.Errorf("%s has no calls", desc.ServiceName)
		}
	}
}

func TestErrorTable(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry(), newBudget(1, overhead))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{lg: slog.New(slog.DiscardHandler), metrics: m}
	reasons := map[string]rule{}
	for i, r := range rules {
		// Every rule is reachable: no earlier one shadows it.
		if f := s.describe(fmt.Errorf("wrapped: %w", r.target)); f.reason != r.reason || f.code != r.code || f.retriable != r.retriable {
			t.Errorf("rule %d (%v) is shadowed: %+v", i, r.target, f)
		}
		if r.reason != strings.ToUpper(r.reason) || strings.ContainsAny(r.reason, " -") {
			t.Errorf("reason %q is not upper snake case", r.reason)
		}
		// A reason means the same everywhere.
		if o, ok := reasons[r.reason]; ok && r.reason != "NOT_YET_AVAILABLE" && (o.code != r.code && r.reason != "NOT_LEADER" || o.retriable != r.retriable) {
			t.Errorf("reason %s has two meanings: %+v and %+v", r.reason, o, r)
		}
		reasons[r.reason] = r
	}
	for _, tc := range []struct {
		err    error
		reason string
		meta   map[string]string
	}{
		{&partition.OutcomeError{Cause: &partition.NotLeaderError{LeaderID: 3}}, "OUTCOME_UNKNOWN", nil},
		{&partition.OutcomeError{Cause: log.ErrFailed}, "OUTCOME_UNKNOWN", nil},
		{fmt.Errorf("%w: %w", log.ErrReadOnly, log.ErrNoSpace), "NO_SPACE", nil},
		{&log.OutOfRangeError{Asked: 5, Earliest: 7, Latest: 9}, "OFFSET_OUT_OF_RANGE", map[string]string{"asked": "5", "earliest": "7", "latest": "9", "limit": "7 to 9"}},
		{&log.SequenceError{Expected: 3, Got: 5}, "OUT_OF_ORDER_SEQUENCE", map[string]string{"value": "5", "expected": "3"}},
		{&log.BatchTooLargeError{Size: 9, Limit: 5}, "BATCH_TOO_LARGE", map[string]string{"value": "9", "limit": "5"}},
		{&metadata.UnavailableError{Op: "x", Err: status.Error(codes.DataLoss, "inner")}, "METADATA_UNAVAILABLE", nil},
		{&metadata.UnavailableError{Op: "serve", Err: &metadata.OlderEtcdError{}}, "METADATA_REFUSED", nil},
		{&metadata.UnavailableError{Op: "serve", Err: metadata.ErrRecovering}, "METADATA_RECOVERING", nil},
		{
			&topicconfig.InvalidError{Faults: []topicconfig.Fault{{Field: "f", Value: "9", Limit: "at most 5"}, {Field: "g", NotYet: true}}},
			"INVALID_ARGUMENT",
			map[string]string{"field": "f", "value": "9", "limit": "at most 5"},
		},
		{&topicconfig.InvalidError{Faults: []topicconfig.Fault{{Field: "g", NotYet: true}}}, "NOT_YET_AVAILABLE", nil},
		{fmt.Errorf("%w: %w", log.ErrQuarantined, &log.CorruptError{Err: &record.BatchError{Err: record.ErrCorrupt}}), "PARTITION_QUARANTINED", nil},
		{&log.CorruptError{Err: &record.BatchError{Err: record.ErrCorrupt}}, "CORRUPT", nil},
		{context.DeadlineExceeded, "DEADLINE_EXCEEDED", nil},
		{errors.New("unheard of"), "INTERNAL", nil},
	} {
		f := s.describe(tc.err)
		if f.reason != tc.reason {
			t.Errorf("%v: %s, want %s", tc.err, f.reason, tc.reason)
		}
		for k, v := range tc.meta {
			if f.metadata[k] != v {
				t.Errorf("%v: %s is %q, want %q", tc.err, k, f.metadata[k], v)
			}
		}
	}
	l := &listener{Server: s}
	if err := l.status(&metadata.UnavailableError{Op: "x", Err: status.Error(codes.DataLoss, "inner")}); status.Code(err) != codes.Unavailable {
		t.Errorf("the status of another system was passed on: %v", err)
	}
	if err := l.status(status.Error(codes.ResourceExhausted, "grpc's own")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}

func TestBudgetThrottle(t *testing.T) {
	b := newBudget(100_000, overhead)
	if b.throttleMS() != 0 {
		t.Fatal("throttled while empty")
	}
	if err := b.acquire(t.Context(), 94_000); err != nil {
		t.Fatal(err)
	}
	if ms := b.throttleMS(); ms < 1 || ms > 100 {
		t.Fatalf("%d ms", ms)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.acquire(ctx, 10_000); err == nil {
		t.Fatal("over budget")
	}
	b.release(94_000)
	if err := b.acquire(t.Context(), 1<<30); err != nil {
		t.Fatal("a batch larger than the budget never fits")
	}
	b.release(1 << 30)
	if b.used.Load() != 0 {
		t.Fatalf("%d bytes leaked", b.used.Load())
	}
}
