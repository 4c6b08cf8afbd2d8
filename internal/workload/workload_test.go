package workload

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/client/fakebroker"
	"runnel.dev/runnel/internal/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const filler = 300

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

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	_, c := open(t)
	o := Options{Topic: "t", Partitions: 3, Began: time.Now(), FillerBytes: filler}
	var sends []history.Send
	for range 2 { // a second writer goes on in the same history
		w, err := Start(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.WaitAcks(t.Context(), 500), w.Stop(t.Context())); err != nil {
			t.Fatal(err)
		}
		sends = append(sends, w.History()...)
		o.First += 1 << 32
	}
	reads, err := ReadAll(t.Context(), c, "t", filler)
	if err != nil {
		t.Fatal(err)
	}
	if r := history.Check(sends, reads); !r.OK() || r.Acked != len(sends) || r.Read != len(sends) || r.Acked < 1_000 {
		t.Errorf("%v (first: %s), want all of at least 1,000 sends acked and read", r, r.First)
	}
}

func TestPacedWriterKeepsToItsRate(t *testing.T) {
	_, c := open(t)
	began := time.Now()
	w, err := Start(t.Context(), c, Options{Topic: "t", Partitions: 1, Began: began, Rate: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.WaitAcks(t.Context(), 20), w.Stop(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n, most := len(w.History()), 1+int(time.Since(began).Seconds()*100); n < 20 || n > most {
		t.Errorf("%d records were sent, want 20 to %d", n, most)
	}
}

func TestForeignRecordIsDamaged(t *testing.T) {
	cluster, c := open(t)
	cluster.Append("t", 1, "not from a writer")
	_, err := ReadAll(t.Context(), c, "t", filler)
	if d, ok := errors.AsType[*DamagedError](err); !ok || d.Partition != 1 || d.Offset != 0 {
		t.Errorf("ReadAll() = %v, want a *DamagedError for partition 1, offset 0", err)
	}
}
