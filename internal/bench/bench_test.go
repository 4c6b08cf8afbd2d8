package bench

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/client/fakebroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) (*fakebroker.Cluster, *client.Client) {
	t.Helper()
	cluster := fakebroker.Start()
	t.Cleanup(cluster.Close)
	cluster.CreateTopic("t", 3)
	c, err := client.Open(t.Context(), cluster.URL(), client.Dialer(cluster.Dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil { //nolint:usetesting // the test's context has ended
			t.Error(err)
		}
	})
	return cluster, c
}

func stored(cluster *fakebroker.Cluster) (n int64) {
	for p := range int32(3) {
		n += int64(len(cluster.Records("t", p)))
	}
	return n
}

func TestProduceAndConsume(t *testing.T) {
	cluster, c := open(t)
	o := Options{Topic: "t", Records: 3*chunkRecords + 5, RecordBytes: 64}
	r, err := Produce(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	if n := stored(cluster); r.Records != o.Records || n != o.Records || r.Bytes != 64*o.Records || r.Took <= 0 {
		t.Errorf("result %+v, %d records stored, want %d of 64 bytes", r, n, o.Records)
	}
	if r.Latency.Samples == 0 || r.Latency.P50 > r.Latency.P99 || r.Latency.P99 > r.Latency.Max {
		t.Errorf("latency %+v, want samples and P50 ≤ P99 ≤ Max", r.Latency)
	}
	all := o
	all.Records, all.Duration = 0, time.Minute
	if r, err = Consume(t.Context(), c, all); err != nil || r.Records != o.Records || r.Bytes != 64*o.Records {
		t.Errorf("Consume() = %+v, %v, want all %d records", r, err, o.Records)
	}
	o.Records = 17
	if r, err = Consume(t.Context(), c, o); err != nil || r.Records != 17 {
		t.Errorf("Consume() = %+v, %v, want 17 records", r, err)
	}
}

func TestPacedRunsEndOnTime(t *testing.T) {
	synctest.Test(t, testPacedRunsEndOnTime)
}

func testPacedRunsEndOnTime(t *testing.T) {
	cluster, c := open(t)
	r, err := Produce(t.Context(), c, Options{Topic: "t", Duration: 200 * time.Millisecond, RecordBytes: 100, BytesPerSecond: 1_000_000}, client.Linger(0))
	if err != nil {
		t.Fatal(err)
	}
	if n := stored(cluster); r.Records == 0 || r.Records > 2_200 || n != r.Records || r.Latency.Samples != r.Records {
		t.Errorf("%+v, latency %+v, %d stored, want at most about 2,000 records, each with a latency", r, r.Latency, n)
	}
}

func TestE2ESeesEveryRecordOfItsOwn(t *testing.T) {
	cluster, c := open(t)
	cluster.Append("t", 1, "from before")
	r, err := E2E(t.Context(), c, Options{Topic: "t", Records: 500, RecordBytes: 100, BytesPerSecond: 1_000_000}, client.Linger(0))
	if err != nil {
		t.Fatal(err)
	}
	if n := stored(cluster); r.Records != 500 || n != 501 || r.Latency.Samples != 500 {
		t.Errorf("%+v, %d stored, want 500 received", r, n)
	}
}

func TestFailuresAreReported(t *testing.T) {
	cluster, c := open(t)
	cluster.OnCall(func(call fakebroker.Call) fakebroker.Action {
		if call.Method == "Produce" {
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.InvalidArgument, Reason: "INVALID_BATCH", Message: "not today"}}
		}
		return fakebroker.Action{}
	})
	o := Options{Topic: "t", Records: 10, RecordBytes: 100}
	if _, err := Produce(t.Context(), c, o); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("Produce() = %v, want the broker's refusal", err)
	}
	o.BytesPerSecond = 1_000_000
	if _, err := E2E(t.Context(), c, o); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("E2E() = %v, want the broker's refusal", err)
	}
}

func TestOptionsReportAllFaults(t *testing.T) {
	err := Options{Records: -1, Duration: -1, RecordBytes: 2, BytesPerSecond: -1}.Validate()
	for _, want := range []string{"topic", "records -1", "duration", "record size 2", "rate -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to name %q", err, want)
		}
	}
	if err := (Options{Topic: "t", RecordBytes: 16}).Validate(); err == nil || !strings.Contains(err.Error(), "would not end") {
		t.Errorf("Validate() = %v, want it to refuse a run without end", err)
	}
}
