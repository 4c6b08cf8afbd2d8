package mem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/tiering/objectstore"
)

// MaxStale is the number of changes that Fault.Stale can hide.
const MaxStale = 1024

// Defaults of Config.
const (
	DefaultCapacity   = 256 << 20 // bytes
	DefaultMaxObjects = 100_000
)

// Config is what a store needs.
type Config struct {
	// Clock gives modification times and paces slow calls. Required.
	Clock clock.Clock
	// Capacity is the most that objects may hold together, in bytes; 0:
	// DefaultCapacity. A Put beyond it is ErrUnavailable.
	Capacity int64
	// MaxObjects is the largest number of objects; 0: DefaultMaxObjects. A Put
	// beyond it is ErrUnavailable.
	MaxObjects int
	// Injector decides the fate of calls; nil: nothing goes wrong.
	Injector Injector
}

// Validate reports all faults.
func (c Config) Validate() error {
	var faults []error
	if c.Clock == nil {
		faults = append(faults, errors.New("memory object store: no clock"))
	}
	if c.Capacity < 0 {
		faults = append(faults, fmt.Errorf("memory object store: capacity is %d bytes, must not be negative", c.Capacity))
	}
	if c.MaxObjects < 0 {
		faults = append(faults, fmt.Errorf("memory object store: max objects is %d, must not be negative", c.MaxObjects))
	}
	return errors.Join(faults...)
}

// object is immutable; a Put replaces it.
type object struct {
	data     []byte
	sum      objectstore.Checksum
	modified time.Time
}

func (o *object) info(key string) objectstore.Info {
	return objectstore.Info{Key: key, Size: int64(len(o.data)), Checksum: o.sum, Modified: o.modified}
}

// change is what a key was before a Put or Delete; nil: there was no object.
type change struct {
	key    string
	before *object
}

// Store is an objectstore.Store in memory. It is safe for concurrent use.
type Store struct {
	cfg Config
	mu  struct {
		sync.Mutex
		inject  Injector
		calls   map[objectstore.Op]int64
		objects map[string]*object
		used    int64    // Invariant: the sum of the lengths of all objects
		changes []change // the last MaxStale, oldest first
	}
}

var _ objectstore.Store = (*Store)(nil)

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Capacity == 0 {
		cfg.Capacity = DefaultCapacity
	}
	if cfg.MaxObjects == 0 {
		cfg.MaxObjects = DefaultMaxObjects
	}
	s := &Store{cfg: cfg}
	s.mu.inject = cfg.Injector
	s.mu.calls = make(map[objectstore.Op]int64)
	s.mu.objects = make(map[string]*object)
	return s, nil
}

// SetInjector replaces the injector; nil ends the faults. Calls under way keep
// the fate that they were given.
func (s *Store) SetInjector(inject Injector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.inject = inject
}

// Calls returns how often each method was called, failed calls included.
func (s *Store) Calls() map[objectstore.Op]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.calls)
}

// Used is the size of all objects in bytes.
func (s *Store) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used
}

// Damage changes a bit of a stored byte, so that every read of it is wrong. It
// fails if there is no such byte.
func (s *Store) Damage(key string, at int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.mu.objects[key]
	if o == nil || at < 0 || at >= int64(len(o.data)) {
		return fmt.Errorf("no byte %d in an object %q", at, key)
	}
	damaged := *o
	damaged.data = append([]byte(nil), o.data...)
	damaged.data[at] ^= 1
	s.mu.objects[key] = &damaged
	return nil
}

// begin counts a call, gets its fate, and acts out what comes before the call
// takes effect.
func (s *Store) begin(ctx context.Context, c Call) (Fault, error) {
	s.mu.Lock()
	s.mu.calls[c.Op]++
	c.N = s.mu.calls[c.Op]
	inject := s.mu.inject
	s.mu.Unlock()
	var f Fault
	if inject != nil {
		f = inject(c)
	}
	if err := clock.Sleep(ctx, s.cfg.Clock, f.Slow); err != nil {
		return f, err
	}
	if f.Before != nil {
		return f, f.Before
	}
	if f.Hang {
		<-ctx.Done()
	}
	return f, ctx.Err()
}

// end acts out what comes after the call took effect.
func (f Fault) end(ctx context.Context) error {
	if f.After != nil {
		return f.After
	}
	if f.HangAfter {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// setLocked stores, replaces or (nil) removes an object.
func (s *Store) setLocked(key string, o *object) {
	before := s.mu.objects[key]
	if before == nil && o == nil {
		return
	}
	if before != nil {
		s.mu.used -= int64(len(before.data))
	}
	if o == nil {
		delete(s.mu.objects, key)
	} else {
		s.mu.objects[key] = o
		s.mu.used += int64(len(o.data))
	}
	if len(s.mu.changes) == MaxStale {
		s.mu.changes = append(s.mu.changes[:0], s.mu.changes[1:]...)
	}
	s.mu.changes = append(s.mu.changes, change{key: key, before: before})
}
