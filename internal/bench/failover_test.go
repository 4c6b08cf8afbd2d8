package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/client/fakebroker"
)

const detection = 300 * time.Millisecond

// fakeFaults stops a broker, moves what it leads after a while, and may do worse.
type fakeFaults struct {
	t       *testing.T
	cluster *fakebroker.Cluster
	healed  []int32
	struck  []int32
	// worse is called with each partition that moves.
	worse func(partition int32)
	// stuck: nothing moves.
	stuck bool
	err   error
}

func (f *fakeFaults) Inflict(_ context.Context, broker int32) error {
	if f.err != nil {
		return f.err
	}
	f.struck = append(f.struck, broker)
	f.cluster.StopBroker(broker)
	if f.stuck {
		return nil
	}
	go func() {
		time.Sleep(detection)
		for p := range int32(3) {
			if f.cluster.Leader("t", p) == broker {
				if f.worse != nil {
					f.worse(p)
				}
				f.cluster.MoveLeader("t", p, broker%3+1)
			}
		}
	}()
	return nil
}

func (f *fakeFaults) Heal(_ context.Context, broker int32) error {
	f.healed = append(f.healed, broker)
	f.cluster.StartBroker(broker)
	return nil
}

// failoverOf runs rounds against three brokers in virtual time.
func failoverOf(t *testing.T, o FailoverOptions, prepare func(*fakeFaults)) (r FailoverResult, f *fakeFaults, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := fakebroker.Start(fakebroker.Brokers(3))
		defer cluster.Close()
		cluster.CreateReplicated("t", 3, 3)
		c, openErr := client.Open(t.Context(), cluster.URL(), client.Dialer(cluster.Dial))
		if openErr != nil {
			t.Fatal(openErr)
		}
		f = &fakeFaults{t: t, cluster: cluster}
		if prepare != nil {
			prepare(f)
		}
		r, err = Failover(t.Context(), c, f, o)
		if closeErr := c.Close(t.Context()); closeErr != nil {
			t.Error(closeErr)
		}
	})
	return r, f, err
}

func TestFailoverMeasuresEachOutage(t *testing.T) {
	var told []int32
	o := FailoverOptions{Topic: "t", Rounds: 4, Rate: 100, ControllerEvery: 2, Progress: func(r Round) { told = append(told, r.Number) }}
	r, f, err := failoverOf(t, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rounds) != 4 || len(told) != 4 || len(f.struck) != 4 || len(f.healed) != 4 {
		t.Fatalf("%d rounds, told %v, struck %v, healed %v", len(r.Rounds), told, f.struck, f.healed)
	}
	outages := 0
	for i, round := range r.Rounds {
		if round.Broker != f.struck[i] || round.Broker != f.healed[i] || round.Controller != (round.Broker == 1) {
			t.Errorf("round %+v: struck %v, healed %v, and broker 1 controls", round, f.struck, f.healed)
		}
		if i%2 == 1 && !round.Controller {
			t.Errorf("round %d was to strike the controller: %+v", i+1, round)
		}
		for _, gap := range round.Gaps {
			outages++
			if gap < detection || gap > detection+50*time.Millisecond {
				t.Errorf("round %d: no acknowledgement for %v, leaders moved after %v", i+1, gap, detection)
			}
		}
	}
	if u := r.Unavailability; outages == 0 || u.Samples != int64(outages) || u.Max > detection+50*time.Millisecond {
		t.Errorf("%d outages, summary %+v", outages, u)
	}
	if h := r.History; !h.OK() || h.Acked == 0 || h.Acked != h.Sent {
		t.Errorf("history %+v", h)
	}
}

// A leader that takes the tail of what was acknowledged with it is found out.
func TestFailoverFindsWhatIsLost(t *testing.T) {
	r, _, err := failoverOf(t, FailoverOptions{Topic: "t", Rounds: 1, Rate: 100}, func(f *fakeFaults) {
		f.worse = func(p int32) { f.cluster.LoseTail("t", p, int64(len(f.cluster.Records("t", p)))-3) }
	})
	if err == nil || !strings.Contains(err.Error(), "OUT_OF_ORDER_SEQUENCE") { // the producer has noticed, too
		t.Error(err)
	}
	if r.History.Lost < 3 {
		t.Errorf("three acknowledged records were cut, history %+v", r.History)
	}
}

func TestFailoverEndsWithAFaultThatFails(t *testing.T) {
	broken := errors.New("no such process")
	_, f, err := failoverOf(t, FailoverOptions{Topic: "t", Rounds: 3, Rate: 100}, func(f *fakeFaults) { f.err = broken })
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "round 1") || len(f.struck) != 0 {
		t.Errorf("%v after %v", err, f.struck)
	}
}

// A leadership that never moves ends the run, and the broker is healed.
func TestFailoverEndsWithAnOutageThatDoesNot(t *testing.T) {
	_, f, err := failoverOf(t, FailoverOptions{Topic: "t", Rounds: 3, Rate: 100}, func(f *fakeFaults) {
		f.stuck = true
	})
	if err == nil || !strings.Contains(err.Error(), "still led by") || len(f.healed) != 1 {
		t.Errorf("%v, healed %v", err, f.healed)
	}
}

func TestChooseVictims(t *testing.T) {
	for _, c := range []struct {
		leaders    []int32
		controller int32
		onPurpose  bool
		number     int32
		want       int32
	}{
		{[]int32{1, 2, 3}, 2, false, 1, 2},
		{[]int32{1, 2, 3}, 2, false, 2, 3},
		{[]int32{3, 3, 1}, 2, false, 3, 3},
		{[]int32{1, 2, 3}, 3, true, 1, 3},
		{[]int32{1, 1, 1}, 3, true, 1, 1}, // the controller leads nothing: striking it would measure nothing
		{[]int32{1, 2}, -1, true, 1, 2},
	} {
		if got := choose(c.leaders, c.controller, c.onPurpose, c.number); got != c.want {
			t.Errorf("choose(%v, %d, %v, %d) = %d, want %d", c.leaders, c.controller, c.onPurpose, c.number, got, c.want)
		}
	}
}

func TestOutageIsTheLongestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q outage
		run := func(n int, every time.Duration) {
			for range n {
				time.Sleep(every)
				q.acked(time.Now())
			}
		}
		run(50, 10*time.Millisecond)
		began := time.Now().Add(5 * time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		if gap, steady := q.gap(began); steady || gap != 0 {
			t.Errorf("during the outage: %v, steady %v", gap, steady)
		}
		run(settled-1, 10*time.Millisecond)
		if gap, steady := q.gap(began); steady || gap != 410*time.Millisecond {
			t.Errorf("shortly behind it: %v, steady %v; want 410 ms from the acknowledgement before the fault", gap, steady)
		}
		time.Sleep(200 * time.Millisecond) // a second, shorter one
		run(settled+1, 10*time.Millisecond)
		if gap, steady := q.gap(began); !steady || gap != 410*time.Millisecond {
			t.Errorf("well behind it: %v, steady %v", gap, steady)
		}
		time.Sleep(2 * steadyGap)
		if _, steady := q.gap(began); steady {
			t.Error("steady, although nothing has come for a while")
		}
	})
}

func TestFailoverOptionsReportAllFaults(t *testing.T) {
	err := FailoverOptions{Rate: 5}.Validate()
	for _, want := range []string{"topic", "rounds 0", "rate 5"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to name %q", err, want)
		}
	}
}
