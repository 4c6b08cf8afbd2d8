package liveness

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is a cluster of detectors that beat at each other over links that can be cut.
type world struct {
	now       time.Duration
	detectors []*Detector
	dead      []bool // the process is gone, its host refuses
	paused    []bool
	cut       [][]bool // cut[a][b]: what a sends does not reach b
}

const step = 50 * ms

func newWorld(n int) *world {
	w := &world{dead: make([]bool, n), paused: make([]bool, n)}
	var peers []Peer
	for i := range n {
		peers = append(peers, Peer{ID: int32(i), Epoch: int64(i + 1)})
		w.cut = append(w.cut, make([]bool, n))
	}
	for i := range n {
		d := New(Config{Self: int32(i)})
		d.Peers(0, peers)
		w.detectors = append(w.detectors, d)
	}
	return w
}

func (w *world) awake(i int) bool { return !w.dead[i] && !w.paused[i] }

// advance lets time pass. Beats are sent every 200 ms, each broker at a moment of its own; dead peers are dialled as often.
func (w *world) advance(d time.Duration) {
	for end := w.now + d; w.now < end; {
		w.now += step
		for i, detector := range w.detectors {
			if !w.awake(i) {
				continue
			}
			detector.Tick(w.now)
			if (w.now/step+time.Duration(i))%4 != 0 {
				continue
			}
			v := detector.View(w.now)
			for j, to := range w.detectors {
				switch {
				case i == j || w.cut[i][j] || w.paused[j]:
				case w.dead[j]:
					if !w.cut[j][i] {
						detector.Broken(w.now, int32(j))
						detector.Refused(w.now, int32(j))
					}
				default:
					to.Beat(w.now, Beat{From: int32(i), Epoch: int64(i + 1), Suspects: v.Suspects})
				}
			}
		}
	}
}

func (w *world) isolate(i int) {
	for j := range w.detectors {
		w.cut[i][j], w.cut[j][i] = true, true
	}
}

// TestSurvivorsAgree: one broker of n is killed, paused or cut off; soon everybody else confirms exactly that one, and a broker that is
// cut off confirms nobody.
func TestSurvivorsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 7).Draw(t, "brokers")
		victim := rapid.IntRange(0, n-1).Draw(t, "victim")
		w := newWorld(n)
		w.advance(time.Duration(rapid.IntRange(20, 60).Draw(t, "steps before")) * step)
		bound := time.Second
		switch fault := rapid.SampledFrom([]string{"kill", "pause", "cut"}).Draw(t, "fault"); fault {
		case "kill":
			w.dead[victim], bound = true, 500*ms
		case "pause":
			w.paused[victim] = true
		case "cut":
			w.isolate(victim)
		}
		w.advance(bound)
		for i, d := range w.detectors {
			if i != victim {
				if v := d.View(w.now); !slices.Equal(v.Confirmed, []int32{int32(victim)}) {
					t.Fatalf("after %v broker %d confirms %v, want %d", bound, i, v.Confirmed, victim)
				}
			}
		}
		w.advance(5 * time.Second)
		if v := w.detectors[victim].View(w.now); w.awake(victim) && len(v.Confirmed) > 0 {
			t.Fatalf("the one that is cut off confirms %v", v.Confirmed)
		}
	})
}

// TestConfirmedNeedsTwo: whatever links are cut, nobody confirms a suspicion that no second broker, which it hears, has had within the
// last 600 ms; and whoever hears under half of the others confirms nothing.
func TestConfirmedNeedsTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 6).Draw(t, "brokers")
		w := newWorld(n)
		w.advance(time.Second)
		const memory = int(800 * ms / step)
		var suspects [][][]int32 // per step, per broker
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			a, b := rapid.IntRange(0, n-1).Draw(t, "from"), rapid.IntRange(0, n-1).Draw(t, "to")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				w.dead[a] = true
			case 1:
				w.paused[a] = !w.paused[a]
			default:
				w.cut[a][b] = !w.cut[a][b]
			}
			for range rapid.IntRange(1, 40).Draw(t, "steps") {
				w.advance(step)
				var now [][]int32
				for _, d := range w.detectors {
					now = append(now, d.View(w.now).Suspects)
				}
				suspects = append(suspects, now)
				suspects = suspects[max(0, len(suspects)-memory):]
				for i, d := range w.detectors {
					v := d.View(w.now)
					if len(v.Confirmed) > 0 && 2*v.Hears < n-1 {
						t.Fatalf("broker %d hears %d of %d others and confirms %v", i, v.Hears, n-1, v.Confirmed)
					}
					for _, id := range v.Confirmed {
						seconded := slices.ContainsFunc(suspects, func(at [][]int32) bool {
							for j := range at {
								if j != i && j != int(id) && slices.Contains(at[j], id) {
									return true
								}
							}
							return false
						})
						if !slices.Contains(v.Suspects, id) || !seconded {
							t.Fatalf("at %v broker %d confirms %d on its own", w.now, i, id)
						}
					}
				}
			}
		}
	})
}

// TestNoSuspicionWithoutFaults: a healthy cluster stays so, also when everybody's timers are somewhat late.
func TestNoSuspicionWithoutFaults(t *testing.T) {
	w := newWorld(5)
	for range 600 {
		w.advance(step)
		for i, d := range w.detectors {
			if v := d.View(w.now); len(v.Suspects) > 0 || w.now > time.Second && v.Hears != 4 {
				t.Fatalf("at %v broker %d: %+v", w.now, i, v)
			}
		}
	}
}
