package liveness

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// single is one detector of broker 1 among n brokers of epoch 10 × id, which have all just beaten.
func single(n int32) *Detector {
	d := New(Config{Self: 1})
	var peers []Peer
	for id := int32(1); id <= n; id++ {
		peers = append(peers, Peer{ID: id, Epoch: 10 * int64(id)})
	}
	d.Peers(0, peers)
	d.Tick(0)
	for id := int32(2); id <= n; id++ {
		d.Beat(0, beat(id))
	}
	return d
}

func beat(id int32, suspects ...int32) Beat {
	return Beat{From: id, Epoch: 10 * int64(id), Suspects: suspects}
}

// run ticks every 100 ms from one time to another; in between, those who beat do so every 200 ms.
func run(d *Detector, from, to time.Duration, beats ...Beat) {
	for now := from + 100*ms; now <= to; now += 100 * ms {
		if now%(200*ms) == 0 {
			for _, b := range beats {
				d.Beat(now, b)
			}
		}
		d.Tick(now)
	}
}

func wantSuspects(t *testing.T, d *Detector, now time.Duration, suspects, confirmed []int32) {
	t.Helper()
	v := d.View(now)
	if !slices.Equal(v.Suspects, suspects) || !slices.Equal(v.Confirmed, confirmed) {
		t.Errorf("at %v: suspects %v, confirmed %v; want %v, %v", now, v.Suspects, v.Confirmed, suspects, confirmed)
	}
}

func TestSilenceNeedsASecondWitness(t *testing.T) {
	d := single(3)
	run(d, 0, 500*ms, beat(3))
	wantSuspects(t, d, 599*ms, nil, nil)
	run(d, 500*ms, 600*ms, beat(3))
	wantSuspects(t, d, 600*ms, []int32{2}, nil)
	d.Beat(650*ms, beat(3, 2))
	wantSuspects(t, d, 650*ms, []int32{2}, []int32{2})
	d.Beat(700*ms, beat(3))
	wantSuspects(t, d, 700*ms, []int32{2}, nil)
	d.Beat(720*ms, beat(2))
	wantSuspects(t, d, 720*ms, nil, nil)
}

func TestOneWitnessIsNotEnough(t *testing.T) {
	d := single(3)
	run(d, 0, 2*time.Second, beat(2), beat(3, 2))
	wantSuspects(t, d, 2*time.Second, nil, nil)
}

func TestRefusalMakesASuspectAtOnce(t *testing.T) {
	d := single(3)
	run(d, 0, 400*ms, beat(2), beat(3))
	d.Refused(400*ms, 2)
	wantSuspects(t, d, 400*ms, nil, nil) // beats arrive: the refusal is about something else
	d.Broken(410*ms, 2)
	wantSuspects(t, d, 410*ms, nil, nil) // broken alone says little
	d.Refused(411*ms, 2)
	wantSuspects(t, d, 411*ms, []int32{2}, nil)
	d.Beat(420*ms, beat(3, 2))
	wantSuspects(t, d, 420*ms, []int32{2}, []int32{2})
}

func TestRefusalWithoutAFrameThatSaysBroken(t *testing.T) {
	d := single(3)
	run(d, 0, 400*ms, beat(3))
	d.Refused(400*ms, 2)
	wantSuspects(t, d, 400*ms, []int32{2}, nil)
}

func TestTwoBrokers(t *testing.T) {
	d := single(2)
	run(d, 0, 3*time.Second)
	wantSuspects(t, d, 3*time.Second, []int32{2}, nil) // silence may be one's own
	d.Refused(3*time.Second, 2)
	wantSuspects(t, d, 3*time.Second, []int32{2}, []int32{2})
}

func TestOneBrokerSuspectsNobody(t *testing.T) {
	d := single(1)
	run(d, 0, 3*time.Second)
	d.Beat(3*time.Second, Beat{From: 1, Epoch: 10, SyncAge: time.Minute})
	wantSuspects(t, d, 3*time.Second, []int32{1}, nil)
}

// TestSuspicionOfEveryoneByACutOffBroker: it hears nobody, and confirms nobody.
func TestSuspicionOfEveryoneByACutOffBroker(t *testing.T) {
	for n := int32(3); n <= 7; n++ {
		d := single(n)
		run(d, 0, 590*ms)
		for id := int32(2); id <= n; id++ {
			var all []int32
			for other := int32(2); other <= n; other++ {
				all = append(all, other)
			}
			d.Beat(0, beat(id, all...)) // even if the last thing that it heard was suspicion
		}
		run(d, 600*ms, 3*time.Second)
		if v := d.View(3 * time.Second); len(v.Suspects) != int(n-1) || len(v.Confirmed) != 0 || v.Hears != 0 {
			t.Errorf("%d brokers: %+v", n, v)
		}
	}
}

func TestHearingUnderHalfConfirmsNothing(t *testing.T) {
	d := single(6) // five others
	run(d, 0, 2*time.Second, beat(2, 4, 5, 6), beat(3, 4, 5, 6))
	wantSuspects(t, d, 2*time.Second, []int32{4, 5, 6}, nil)
	d.Beat(2*time.Second, beat(4))
	wantSuspects(t, d, 2*time.Second, []int32{5, 6}, []int32{5, 6})
}

func TestASuspectIsNoWitness(t *testing.T) {
	d := single(4)
	hung := beat(3, 2)
	hung.SyncAge = time.Minute
	run(d, 0, time.Second, hung, beat(4))
	wantSuspects(t, d, time.Second, []int32{2, 3}, nil)
}

func TestHungDisk(t *testing.T) {
	d := single(3)
	hung := beat(2)
	hung.SyncAge = 2999 * ms
	d.Beat(100*ms, hung)
	wantSuspects(t, d, 100*ms, nil, nil)
	hung.SyncAge = 3 * time.Second
	d.Beat(200*ms, hung)
	d.Beat(210*ms, beat(3, 2))
	wantSuspects(t, d, 210*ms, []int32{2}, []int32{2})
	if v := d.View(210 * ms); slices.Contains(v.Beating, 2) || v.Hears != 2 {
		t.Errorf("%+v", v)
	}
	d.Beat(400*ms, beat(2))
	wantSuspects(t, d, 400*ms, nil, nil)

	d = single(2) // what the other says of itself needs no witness
	d.Beat(100*ms, hung)
	wantSuspects(t, d, 100*ms, []int32{2}, []int32{2})

	d = single(3) // the own disk
	d.Beat(100*ms, Beat{From: 1, Epoch: 10, SyncAge: 4 * time.Second})
	d.Beat(100*ms, beat(3, 1))
	wantSuspects(t, d, 100*ms, []int32{1}, []int32{1})
}

func TestALateTimerStartsAllAnew(t *testing.T) {
	for name, first := range map[string]func(*Detector, time.Duration){
		"tick first":    func(d *Detector, now time.Duration) { d.Tick(now) },
		"view first":    func(*Detector, time.Duration) {},
		"beat first":    func(d *Detector, now time.Duration) { d.Beat(now, beat(3, 2)) },
		"refused first": func(d *Detector, now time.Duration) { d.Refused(now, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			d := single(3)
			run(d, 0, time.Second, beat(2), beat(3))
			now := 20 * time.Second // SIGSTOP, SIGCONT
			first(d, now)
			wantSuspects(t, d, now, nil, nil)
			if v := d.View(now); !slices.Equal(v.Beating, []int32{1, 2, 3}) {
				t.Errorf("beating %v: nobody is known to be dead", v.Beating)
			}
			run(d, now, now+500*ms, beat(3))
			wantSuspects(t, d, now+599*ms, nil, nil)
			run(d, now+500*ms, now+700*ms, beat(3, 2))
			wantSuspects(t, d, now+700*ms, []int32{2}, []int32{2})
		})
	}
}

func TestFalseSuspicionBacksOffAndWearsOff(t *testing.T) {
	d := single(3)
	now := time.Duration(0)
	quiet := func(silence time.Duration) bool {
		run(d, now, now+silence, beat(3))
		now += silence
		suspected := slices.Contains(d.View(now).Suspects, 2)
		d.Beat(now, beat(2))
		return suspected
	}
	for _, limit := range []time.Duration{600 * ms, 1200 * ms, 2400 * ms, 4800 * ms, 4800 * ms} {
		if quiet(limit - 100*ms) {
			t.Errorf("suspected before %v", limit)
		}
		if !quiet(limit) {
			t.Errorf("not suspected after %v", limit)
		}
	}
	run(d, now, now+2*time.Minute, beat(2), beat(3))
	now += 2 * time.Minute
	if !quiet(600 * ms) {
		t.Error("the back-off has not worn off")
	}
}

func TestARealOutageDoesNotBackOff(t *testing.T) {
	d := single(3)
	for i := range 5 {
		from := time.Duration(i) * 10 * time.Second
		run(d, from, from+5*time.Second, beat(3, 2))
		d.Beat(from+5*time.Second, beat(2))
		run(d, from+5*time.Second, from+10*time.Second, beat(2), beat(3))
	}
	run(d, 50*time.Second, 50*time.Second+600*ms, beat(3, 2))
	wantSuspects(t, d, 50*time.Second+600*ms, []int32{2}, []int32{2})
}

func TestFalseRefusalsHaveToLast(t *testing.T) {
	d := single(3)
	refuse := func(now time.Duration) {
		d.Broken(now, 2)
		d.Refused(now, 2)
	}
	refuse(100 * ms)
	wantSuspects(t, d, 100*ms, []int32{2}, nil)
	d.Beat(200*ms, beat(2))
	d.Beat(200*ms, beat(3))
	refuse(300 * ms)
	wantSuspects(t, d, 300*ms, nil, nil)
	run(d, 300*ms, 800*ms, beat(3))
	wantSuspects(t, d, 800*ms, []int32{2}, nil)
}

func TestANewEpochStartsFresh(t *testing.T) {
	d := single(3)
	run(d, 0, time.Second, beat(3, 2))
	wantSuspects(t, d, time.Second, []int32{2}, []int32{2})
	peers := []Peer{{1, 10}, {2, 21}, {3, 30}}
	d.Peers(time.Second, peers)
	wantSuspects(t, d, time.Second, nil, nil)
	d.Beat(1100*ms, Beat{From: 2, Epoch: 20, SyncAge: time.Minute, Stopping: true, Suspects: []int32{3}}) // late, of the one before
	wantSuspects(t, d, 1100*ms, nil, nil)
	d.Refused(1150*ms, 2) // may be about the process before
	wantSuspects(t, d, 1150*ms, nil, nil)
	d.Refused(1300*ms, 2)
	wantSuspects(t, d, 1300*ms, []int32{2}, []int32{2})
	d.Beat(1400*ms, Beat{From: 2, Epoch: 21})
	v := d.View(1400 * ms)
	if len(v.Suspects)+len(v.Stopping) > 0 || !slices.Contains(v.Beating, 2) {
		t.Errorf("%+v", v)
	}
}

func TestANewRegistrationHasTimeForItsFirstBeat(t *testing.T) {
	d := single(3)
	run(d, 0, 200*ms, beat(2), beat(3))
	d.Peers(200*ms, []Peer{{1, 10}, {2, 20}, {3, 30}, {4, 40}})
	run(d, 200*ms, 2100*ms, beat(2), beat(3))
	wantSuspects(t, d, 2100*ms, nil, nil)
	if v := d.View(2100 * ms); slices.Contains(v.Beating, 4) {
		t.Error("beating without a beat")
	}
	run(d, 2100*ms, 2200*ms, beat(2), beat(3))
	wantSuspects(t, d, 2200*ms, []int32{4}, nil)
}

func TestABeatBeforeItsRegistrationIsKnown(t *testing.T) {
	d := single(2)
	d.Beat(100*ms, Beat{From: 3, Epoch: 30, Stopping: true}) // unknown id
	d.Beat(100*ms, Beat{From: 2, Epoch: 21, Stopping: true}) // unknown epoch of a known id
	v := d.View(100 * ms)
	if !slices.Equal(v.Beating, []int32{1, 2, 3}) || len(v.Stopping) > 0 || v.Hears != 1 {
		t.Errorf("%+v", v)
	}
	d.Peers(150*ms, []Peer{{1, 10}, {2, 21}, {3, 30}})
	if v = d.View(150 * ms); !slices.Equal(v.Stopping, []int32{2, 3}) || v.Hears != 2 {
		t.Errorf("%+v", v)
	}
}

// TestLapsedLeaseOfAHealthyBroker: it is not counted any more, and it is known to beat until it falls silent.
func TestLapsedLeaseOfAHealthyBroker(t *testing.T) {
	d := single(3)
	d.Peers(100*ms, []Peer{{1, 10}, {3, 30}})
	run(d, 100*ms, 10*time.Second, beat(2), beat(3))
	v := d.View(10 * time.Second)
	if !slices.Equal(v.Beating, []int32{1, 2, 3}) || v.Hears != 1 || len(v.Suspects) > 0 {
		t.Errorf("%+v", v)
	}
	run(d, 10*time.Second, 10600*ms, beat(3))
	if v = d.View(10600 * ms); !slices.Equal(v.Beating, []int32{1, 3}) || len(v.Suspects) > 0 {
		t.Errorf("%+v", v)
	}
	if len(d.peers) != 2 || len(d.early) != 0 {
		t.Errorf("%d peers, %d early are remembered", len(d.peers), len(d.early))
	}
}

func TestStoppingStays(t *testing.T) {
	d := single(3)
	b := beat(2)
	b.Stopping = true
	d.Beat(100*ms, b)
	d.Beat(300*ms, beat(2))
	d.Beat(300*ms, Beat{From: 1, Epoch: 10, Stopping: true})
	if v := d.View(300 * ms); !slices.Equal(v.Stopping, []int32{1, 2}) || !slices.Contains(v.Beating, 2) {
		t.Errorf("%+v", v)
	}
}

// TestADiskThatTakesNoWritesIsNoSuspicion: the last word counts, through pauses, until the registration is another one.
func TestADiskThatTakesNoWritesIsNoSuspicion(t *testing.T) {
	d := single(3)
	logs := []Log{{Partition: 1}, {Partition: 4}}
	b := beat(2)
	b.Unwritable = true
	d.Beat(100*ms, b)
	b = beat(3)
	b.UnwritableLogs = logs
	d.Beat(100*ms, b)
	d.Beat(100*ms, Beat{From: 1, Epoch: 10, Unwritable: true})
	d.Beat(100*ms, Beat{From: 4, Epoch: 40, Unwritable: true, UnwritableLogs: logs}) // not registered
	v := d.View(100 * ms)
	if !slices.Equal(v.Unwritable, []int32{1, 2}) || len(v.UnwritableLogs) != 1 || !slices.Equal(v.UnwritableLogs[3], logs) {
		t.Errorf("%+v", v)
	}
	if len(v.Suspects) > 0 || !slices.Equal(v.Beating, []int32{1, 2, 3, 4}) {
		t.Errorf("%+v", v)
	}
	later := d.View(30 * time.Second)
	if !later.SameWrites(v) {
		t.Errorf("after a pause: %+v", later)
	}
	run(d, 30*time.Second, 31*time.Second, beat(2), beat(3))
	if v = d.View(31 * time.Second); !slices.Equal(v.Unwritable, []int32{1}) || v.UnwritableLogs != nil || v.SameWrites(later) || v.Equal(later) {
		t.Errorf("after beats that say no such thing: %+v", v)
	}
	d.Peers(31*time.Second, []Peer{{1, 11}, {2, 20}, {3, 30}})
	if v = d.View(31 * time.Second); v.Unwritable != nil {
		t.Errorf("after another registration: %+v", v)
	}
}

func TestWhoIsNotRegisteredHasNoSay(t *testing.T) {
	d := single(4)
	d.Peers(0, []Peer{{2, 20}, {3, 30}, {4, 40}})
	run(d, 0, time.Second, beat(3, 2), beat(4, 2))
	wantSuspects(t, d, time.Second, []int32{2}, nil)
}

// TestAnOldStatementIsNoWitness: a broker that may be silent for longer, for it was suspected in vain, is a witness by its fresh beats
// only.
func TestAnOldStatementIsNoWitness(t *testing.T) {
	d := single(5)
	run(d, 0, 600*ms, beat(2), beat(4), beat(5))
	wantSuspects(t, d, 600*ms, []int32{3}, nil)
	run(d, 600*ms, 1200*ms, beat(3, 2), beat(4), beat(5)) // 3 is back, 2 falls silent
	wantSuspects(t, d, 1200*ms, []int32{2}, []int32{2})
	run(d, 1200*ms, 1800*ms, beat(4), beat(5))
	wantSuspects(t, d, 1800*ms, []int32{2}, nil)
}

// TestALateTimerForgetsWhatWasBefore: refusals, hanging disks and what others thought are of before the pause.
func TestALateTimerForgetsWhatWasBefore(t *testing.T) {
	d := single(4)
	run(d, 0, time.Second, beat(2), beat(3), beat(4, 2, 3))
	d.Broken(time.Second, 2)
	d.Refused(time.Second, 2)
	hung := beat(3)
	hung.SyncAge = time.Minute
	d.Beat(time.Second, hung)
	wantSuspects(t, d, time.Second, []int32{2, 3}, []int32{2, 3})
	now := 9 * time.Second
	wantSuspects(t, d, now, nil, nil)
	d.Refused(now, 2)
	wantSuspects(t, d, now, []int32{2}, nil)
	d.Beat(now, beat(4, 2))
	d.Beat(now, beat(3))
	wantSuspects(t, d, now, []int32{2}, []int32{2})
}
