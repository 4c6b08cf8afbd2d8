package integration

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

func TestMetricsFollowConventions(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	create(t, cl, "t", 2, client.TopicConfig{})
	produce(t, cl, "t", 0, values(10)...)
	read(t, cl, client.Earliest, tp("t", 0))
	b := c.Broker(1)

	families, err := b.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	name := regexp.MustCompile(`^(runnel|go|process)_[a-z0-9_]+$`)
	// Labels whose values are a few known ones. A label per topic or client would grow without bound.
	labels := []string{"listener", "method", "code", "op", "type", "reason", "result", "kind", "le", "quantile", "version", "codec", "state", "direction", "service", "outcome", "before"}
	ours := 0
	for _, f := range families {
		if !name.MatchString(f.GetName()) {
			t.Errorf("metric %s is outside of the namespace", f.GetName())
		}
		if !strings.HasPrefix(f.GetName(), "runnel_") {
			continue
		}
		ours++
		if len(f.GetMetric()) > 100 {
			t.Errorf("%s has %d series", f.GetName(), len(f.GetMetric()))
		}
		for _, l := range labelsOf(f) {
			if !slices.Contains(labels, l) {
				t.Errorf("%s has the label %s", f.GetName(), l)
			}
		}
	}
	if ours < 20 {
		t.Errorf("only %d metrics of ours", ours)
	}

	resp, err := b.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "\nrunnel_") {
		t.Errorf("/metrics: %d, %v, %d bytes", resp.StatusCode, err, len(body))
	}
}

func labelsOf(f *dto.MetricFamily) (names []string) {
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(names, l.GetName()) {
				names = append(names, l.GetName())
			}
		}
	}
	return names
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	c := start(t)
	b := c.Broker(1)
	state, err := b.Readiness()
	if err != nil || !state.Ready || state.Code != http.StatusOK {
		t.Fatalf("/readyz of a running broker: %+v, %v", state, err)
	}
	var names []string
	for _, cond := range state.Conditions {
		if !cond.OK || cond.Reason != "" {
			t.Errorf("condition %+v of a ready broker", cond)
		}
		names = append(names, cond.Name)
	}
	if !slices.Equal(names, []string{"metadata", "eligible", "controller", "partitions"}) {
		t.Errorf("conditions %q", names)
	}
	resp, err := b.Get("/healthz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/healthz: %v, %v", resp, err)
	}
	resp.Body.Close()
	if resp, err = b.Get("/debug/pprof/"); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("pprof without authentication: %v, %v", resp, err)
	}
	resp.Body.Close()
}

// Two brokers share a topic; each serves what it leads, and one goes on without the other.
func TestTwoBrokers(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Etcd: shared, Brokers: 2, Configure: func(c *config.Config) { c.Rack = fmt.Sprint("rack-", c.BrokerID) }})
	cl := c.Client()
	topic, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 4, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	leaders := map[int32][]int32{}
	for _, p := range partitions(t, cl, "t") {
		leaders[p.Leader] = append(leaders[p.Leader], p.Partition)
	}
	if len(leaders[1]) != 2 || len(leaders[2]) != 2 {
		t.Fatalf("leaders %v", leaders)
	}
	l := startLoad(t, cl, "t", 4)
	l.goesOn(200)
	// The wrong broker says who is the right one.
	s := rawProduce(t, c.Broker(1).Address())
	e := s.do(topic.ID, leaders[2][0], batch(t, "astray")).GetError()
	if e.GetReason() != "NOT_LEADER" || e.GetLeader().GetBrokerId() != 2 || e.GetLeader().GetAddress() != c.Broker(2).Address() {
		t.Errorf("the wrong broker answers %v", e)
	}
	// The controller's broker goes away and returns: the other leads on, and the load is served in the end.
	c.Broker(1).Restart()
	l.goesOn(200)
	c.Broker(2).Restart()
	l.goesOn(200)
	l.check()
	info, err := cl.Admin().DescribeCluster(bounded(t))
	if err != nil || len(info.Brokers) != 2 || info.Brokers[1].Rack != "rack-2" || info.Topics != 1 || info.Partitions != 4 {
		t.Errorf("DescribeCluster: %+v, %v", info, err)
	}
}
