package replication

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/internal/clock"
)

// MaxLoad is the most partitions of one load report.
const MaxLoad = 4096

// MaxUnwritableLogs is the most logs of one beat that take no writes.
const MaxUnwritableLogs = 1024

// BeatDialer is a Dialer that knows whether a connection was refused; *peer.Conns is one.
type BeatDialer interface {
	Conn(id int32, class peer.Class) (grpc.ClientConnInterface, error)
	Retry(id int32, class peer.Class)
	Refused(id int32, class peer.Class) bool
	// Prune closes connections to registrations that are not there any more.
	Prune()
}

// Local is what a beat says of this broker.
type Local struct {
	// SyncAge is the age of the oldest sync of the data directory that has not finished; 0: none.
	SyncAge time.Duration
	// Stopping: it is about to stop.
	Stopping bool
	// Controller is the controller that it knows, -1: none.
	Controller int32
	// Unwritable: the data volume takes no writes. UnwritableLogs are logs that take none although the volume does, ordered; only the first
	// MaxUnwritableLogs are told. The slice is kept and must not be changed.
	Unwritable     bool
	UnwritableLogs []liveness.Log
}

// logs are the UnwritableLogs that are told.
func (l *Local) logs() []liveness.Log {
	return l.UnwritableLogs[:min(len(l.UnwritableLogs), MaxUnwritableLogs)]
}

// PartitionLoad is how much a partition was used at its leader, per second.
type PartitionLoad struct {
	Ref                          metadata.PartitionRef
	BytesIn, BytesOut, RecordsIn float64
}

// PushedState is a partition's record as the controller has just written it. The highest (era, mod revision) wins.
type PushedState struct {
	Ref              metadata.PartitionRef
	Era, ModRevision int64
	Value            []byte
}

// HeartbeatsConfig is what Heartbeats need. Functions must not block, and are called from several goroutines.
type HeartbeatsConfig struct {
	Directory peer.Directory
	Dialer    BeatDialer
	Detector  liveness.Config
	// LoadEvery is the time between two load reports. Default 5 s.
	LoadEvery time.Duration
	Local     func() Local
	// Load returns what this broker's partitions were used for since the last call; at most MaxLoad entries are sent. Nil: no reports.
	Load func() []PartitionLoad
	// OnLoad takes the report of a broker, this one included. Nil: reports are dropped.
	OnLoad func(broker int32, load []PartitionLoad)
	// OnStates takes states that the controller pushed. Nil: they are dropped.
	OnStates func(from int32, states []PushedState)
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Heartbeats send beats to all other brokers, take theirs, and keep the view of who is alive. Safe for concurrent use. It starts nothing
// before Run.
type Heartbeats struct {
	cfg   HeartbeatsConfig
	start time.Time

	mu struct {
		sync.Mutex
		detector *liveness.Detector
		senders  map[int32]*beatSender
		// incoming is the newest stream of each broker; the end of an older one says nothing.
		incoming map[int32]*incoming
		stopped  bool
	}
	work sync.WaitGroup
	view atomic.Pointer[published]
}

// published is one view, and a channel that is closed when there is a newer one.
type published struct {
	liveness.View
	changed chan struct{}
}

// NewHeartbeats returns heartbeats.
func NewHeartbeats(cfg HeartbeatsConfig) *Heartbeats {
	set(&cfg.LoadEvery, 5*time.Second)
	set(&cfg.Detector.Interval, 200*time.Millisecond)
	h := &Heartbeats{cfg: cfg, start: cfg.Clock.Now()}
	h.mu.detector = liveness.New(cfg.Detector)
	h.mu.senders, h.mu.incoming = map[int32]*beatSender{}, map[int32]*incoming{}
	h.view.Store(&published{changed: make(chan struct{})})
	return h
}

func (h *Heartbeats) now() time.Duration { return h.cfg.Clock.Since(h.start) }

// View returns who is alive. Its lists are shared and must not be changed.
func (h *Heartbeats) View() liveness.View { return h.view.Load().View }

// Changed returns a channel that is closed when the present view is replaced by another.
func (h *Heartbeats) Changed() <-chan struct{} { return h.view.Load().changed }

// Run beats until ctx ends.
func (h *Heartbeats) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		h.mu.Lock()
		h.mu.stopped = true
		h.mu.Unlock()
		h.work.Wait()
	}()
	tick := h.cfg.Clock.NewTicker(h.cfg.Detector.Interval / 4)
	defer tick.Stop()
	var beaten, reported time.Duration
	for n := 0; ; n++ {
		now := h.now()
		h.look(ctx, now)
		if n == 0 || now-beaten >= h.cfg.Detector.Interval {
			beaten = now
			h.beatSelf(now)
		}
		if h.cfg.Load != nil && now-reported >= h.cfg.LoadEvery {
			reported = now
			h.report()
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// look lets the detector see the time and the registrations, and starts senders to new brokers.
func (h *Heartbeats) look(ctx context.Context, now time.Duration) {
	peers := h.cfg.Directory.Peers()
	self := h.cfg.Directory.Self()
	h.cfg.Dialer.Prune()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.detector.Tick(now)
	live := make([]liveness.Peer, 0, len(peers)+1)
	if self.Epoch != 0 {
		live = append(live, liveness.Peer{ID: self.ID, Epoch: self.Epoch})
	}
	for _, p := range peers {
		live = append(live, liveness.Peer{ID: p.ID, Epoch: p.Epoch})
		if self.Epoch != 0 && h.mu.senders[p.ID] == nil {
			s := &beatSender{h: h, id: p.ID, poke: make(chan struct{}, 1)}
			h.mu.senders[p.ID] = s
			h.work.Go(func() { s.run(ctx) })
		}
	}
	h.mu.detector.Peers(now, live)
	h.publishLocked(now)
}

// registered reports whether a broker has a live registration.
func (h *Heartbeats) registered(id int32) bool {
	return slices.ContainsFunc(h.cfg.Directory.Peers(), func(p peer.Peer) bool { return p.ID == id })
}

// leave ends the sender to a broker that is neither registered nor connected.
func (h *Heartbeats) leave(s *beatSender) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.senders[s.id] == s {
		delete(h.mu.senders, s.id)
	}
}

// beatSelf feeds the detector with what this broker tells the others of itself.
func (h *Heartbeats) beatSelf(now time.Duration) {
	self, local := h.cfg.Directory.Self(), h.cfg.Local()
	h.feed(now, func(d *liveness.Detector) {
		d.Beat(now, liveness.Beat{
			From: self.ID, Epoch: self.Epoch, SyncAge: local.SyncAge, Stopping: local.Stopping, Unwritable: local.Unwritable, UnwritableLogs: local.logs(),
		})
	})
}

// feed changes the detector and publishes what it concludes.
func (h *Heartbeats) feed(now time.Duration, f func(*liveness.Detector)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h.mu.detector)
	h.publishLocked(now)
}

// publishLocked publishes the view if it differs from the last one. New suspicions, and that this broker stops or cannot write, are told
// to the others at once.
func (h *Heartbeats) publishLocked(now time.Duration) {
	v, old := h.mu.detector.View(now), h.view.Load()
	if v.Equal(old.View) {
		return
	}
	h.view.Store(&published{View: v, changed: make(chan struct{})})
	close(old.changed)
	if !slices.Equal(v.Suspects, old.Suspects) || !slices.Equal(v.Stopping, old.Stopping) || !v.SameWrites(old.View) {
		h.cfg.Logger.Info("view of the brokers changed", slog.Any("suspects", v.Suspects), slog.Any("confirmed", v.Confirmed),
			slog.Any("stopping", v.Stopping), slog.Any("unwritable", v.Unwritable), slog.Int("hears", v.Hears))
		for _, s := range h.mu.senders {
			s.wake()
		}
	}
}

// report sends the load to the controller.
func (h *Heartbeats) report() {
	load := h.cfg.Load()
	if len(load) > MaxLoad { // the busiest
		slices.SortFunc(load, func(a, b PartitionLoad) int { return compareLoad(b, a) })
		load = load[:MaxLoad]
	}
	self, controller := h.cfg.Directory.Self().ID, h.cfg.Local().Controller
	if controller == self {
		if h.cfg.OnLoad != nil {
			h.cfg.OnLoad(self, load)
		}
		return
	}
	h.mu.Lock()
	s := h.mu.senders[controller]
	h.mu.Unlock()
	if s != nil {
		s.setLoad(load)
	}
}

func compareLoad(a, b PartitionLoad) int {
	switch x, y := a.BytesIn+a.BytesOut, b.BytesIn+b.BytesOut; {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// Push sends states to all other brokers with a beat that goes out at once. It does not block; what a broker that does not listen cannot
// take is dropped, as the watch brings it too.
func (h *Heartbeats) Push(states []PushedState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.mu.senders {
		s.push(states)
	}
}
