package partition

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// Config is what a Partition is made of.
type Config struct {
	Log   *log.Log
	Clock clock.Clock
	// Context bounds work for the disk that no request waits for, such as truncations. It outlives the partition. Required.
	Context context.Context
	// Origin is a time before New, the same for all partitions of a process: subscriptions are numbered on from one partition to the
	// next over the same directory. Zero: now.
	Origin time.Time
	// Gate is asked before each append and refuses it with an error, e.g. while the disk is full; it must not block. Nil: nothing is
	// refused.
	Gate func() error
	// Replica are the settings of the replication protocol. BrokerID is this broker.
	Replica replica.Config
	// Transport, Metadata and Reset reach the rest of the cluster. A partition whose only replica is here needs none of them.
	Transport Transport
	Metadata  MetadataWriter
	Reset     Resetter
	// Workers carry out what waits for the disk. Nil: whoever caused it does.
	Workers *Workers
	// Logger hears what failed and will be tried again. Nil: nobody.
	Logger *slog.Logger
}

// Partition is one partition that this broker hosts. Safe for concurrent use. It starts nothing but work of Config.Workers.
type Partition struct {
	cfg  Config
	log  *log.Log
	clk  clock.Clock
	gate func() error
	role atomic.Pointer[role]
	// ticks: the machine has something to wait for.
	ticks atomic.Bool
	// wanted is the log start that followers are asked to journal, at least what was ever asked for here.
	wanted atomic.Int64

	// produceMu makes append and queueing one step, so that both have the same order.
	produceMu sync.Mutex
	// pending.mu guards what follows, too.
	pending   fifo
	machine   *replica.Replica
	event     replica.Event // what the machine is being told
	effects   effects
	update    RecordUpdate
	followers followers
	// wokenAt is the high watermark that readers were last told of.
	wokenAt int64

	wakers wakers
	// stopFlushed ends the log's calls: a log may outlive its partition.
	stopFlushed func()
}

// New returns the partition of a log. It follows nobody and leads nothing until SetRecord.
func New(c Config) *Partition {
	p := &Partition{cfg: c, log: c.Log, clk: c.Clock, gate: c.Gate, wokenAt: c.Log.HighWatermark()}
	if c.Origin.IsZero() {
		p.cfg.Origin = c.Clock.Now()
	}
	if p.gate == nil {
		p.gate = func() error { return nil }
	}
	p.machine = replica.New(c.Replica, machineLog{c.Log})
	p.role.Store(&role{Role: Role{LeaderID: -1}})
	p.stopFlushed = c.Log.OnFlushed(func(int64) { p.step(replica.Event{Kind: replica.EventFlushed}, waitsForNothing) })
	return p
}

// Context returns Config.Context.
func (p *Partition) Context() context.Context { return p.cfg.Context }

// Log returns the partition's log.
func (p *Partition) Log() *log.Log { return p.log }

// TopicID returns the topic.
func (p *Partition) TopicID() ids.TopicID { return p.log.TopicID() }

// Number returns the partition number.
func (p *Partition) Number() int32 { return p.log.Partition() }

// Config returns the log's configuration in force.
func (p *Partition) Config() log.Config { return p.log.Config() }

// Produce is one batch to append.
type Produce struct {
	// Batch is one batch that record.Validator accepted; it is borrowed for the call and stamped in place.
	Batch  []byte
	Header record.Header
	// LeaderEpoch is what the producer knows, -1: any.
	LeaderEpoch int32
	// AcksLeader answers at append instead of when the high watermark has passed.
	AcksLeader bool
	// InOrder: earlier produces of the same caller may still wait here, so that an answer that could be given at once (a
	// refusal, or with AcksLeader) queues behind them.
	InOrder bool
	Waiter  Waiter
}

// Produce appends a batch as leader. Every outcome, refusals included, goes to the waiter, possibly before Produce returns. Blocks
// for the write to the page cache, never for a sync.
func (p *Partition) Produce(b *Produce) {
	p.produceMu.Lock()
	w, done := p.append(b)
	if done && !b.InOrder {
		p.produceMu.Unlock()
		if w.result.Err == nil {
			p.progress()
		}
		b.Waiter.Acked(w.result)
		return
	}
	w.ready = done
	p.pending.mu.Lock()
	if r := p.role.Load(); !done && (!r.Leading || r.Epoch != w.epoch) {
		// Leadership ended beside the append: nobody will answer for that epoch any more.
		w.result, w.ready = unknown(&w, r.lost()), true
	}
	p.pending.pushLocked(w)
	first := p.pending.n == 1
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	if w.result.Err == nil {
		p.progress()
	}
	// A sync may have covered the batch between append and queueing; only the front can be answered.
	if w.ready && first || p.log.HighWatermark() >= w.end {
		p.settle()
	}
}

// Refuse answers a batch that never reached the log with err, behind what still waits.
func (p *Partition) Refuse(w Waiter, err error) {
	p.pending.mu.Lock()
	p.pending.pushLocked(waiting{waiter: w, result: refused(err), ready: true})
	n := p.settleLocked()
	p.pending.mu.Unlock()
	p.notify(n)
}

func refused(err error) Result { return Result{Base: -1, AppendTimeMS: -1, Err: err} }

// append reports whether the result is final. Needs produceMu.
func (p *Partition) append(b *Produce) (w waiting, done bool) {
	w.waiter = b.Waiter
	r := p.role.Load()
	if err := r.admit(b.LeaderEpoch); err != nil {
		w.result = refused(err)
		return w, true
	}
	if !b.AcksLeader && !r.Writable {
		w.result = refused(fmt.Errorf("%w: %d are in sync, and fewer than the %d needed keep up", ErrNotEnoughReplicas, len(r.ISR), r.MinISR))
		return w, true
	}
	if err := p.gate(); err != nil {
		w.result = refused(err)
		return w, true
	}
	a, err := p.log.Append(b.Batch, b.Header, r.Epoch, p.clk.Now())
	if err != nil {
		w.result = refused(err)
		return w, true
	}
	w.result = Result{Base: a.Base, AppendTimeMS: a.AppendTimeMS, LogStart: p.log.LogStart(), Duplicate: a.Duplicate}
	w.end, w.gen, w.epoch = a.End, a.TruncationGen, r.Epoch
	return w, b.AcksLeader
}

// Limits are the offsets that a reader is told.
type Limits struct {
	LogStart, HighWatermark int64
	LeaderEpoch             int32
	// Ready: nothing that was committed before the epoch lies above HighWatermark. Not so at first, see Latest.
	Ready bool
}

// Limits returns them for a reader that names a leader epoch (-1: any). Takes no lock.
func (p *Partition) Limits(epoch int32) (Limits, error) {
	r := p.role.Load()
	if err := r.admit(epoch); err != nil {
		return Limits{}, err
	}
	hw := p.log.HighWatermark()
	return Limits{LogStart: p.log.LogStart(), HighWatermark: hw, LeaderEpoch: r.Epoch, Ready: hw >= r.epochStart}, nil
}

// Read finds whole batches from the one that holds offset, below the high watermark: at most maxBytes, at least one batch. The
// range is empty when the reader has caught up; otherwise it must be released. An offset between high watermark and log end is
// within range: its records may still be committed. Takes no lock.
func (p *Partition) Read(offset int64, maxBytes int) (log.Range, Limits, error) {
	lim, err := p.Limits(-1)
	if err != nil {
		return log.Range{}, Limits{}, err
	}
	r, err := p.log.ReadRange(offset, maxBytes, lim.HighWatermark)
	return r, lim, err
}

// Latest returns the offset behind the last committed record. ErrNotReady while the leader has not committed its epoch's start.
func (p *Partition) Latest(epoch int32) (int64, error) {
	r := p.role.Load()
	if err := r.admit(epoch); err != nil {
		return 0, err
	}
	hw := p.log.HighWatermark()
	if hw < r.epochStart {
		return 0, notReady(hw, r)
	}
	return hw, nil
}

func notReady(hw int64, r *role) error {
	return fmt.Errorf("%w: high watermark %d, epoch %d begins at %d", ErrNotReady, hw, r.Epoch, r.epochStart)
}

// OffsetForTime returns the first committed record at or after ms (milliseconds since 1970); found is false when there is none.
func (p *Partition) OffsetForTime(epoch int32, ms int64) (offset, timestamp int64, found bool, err error) {
	if err := p.role.Load().admit(epoch); err != nil {
		return 0, 0, false, err
	}
	return p.log.OffsetForTime(ms)
}

// Status describes the partition for people.
type Status struct {
	Role     Role
	Offsets  log.Offsets
	State    log.State
	Size     int64 // bytes
	Segments int
	// Replication is the state of the protocol, on a clock that says Now.
	Replication replica.Status
	Now         time.Duration
}

// Status returns the status now.
func (p *Partition) Status() Status {
	s := Status{
		Role: p.Role(), Offsets: p.log.Offsets(), State: p.log.State(), Size: p.log.Size(), Segments: len(p.log.Segments()),
	}
	p.pending.mu.Lock()
	defer p.pending.mu.Unlock()
	s.Replication, s.Now = p.machine.Status(), p.clk.Since(p.cfg.Origin)
	return s
}
