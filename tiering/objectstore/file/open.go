package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/tiering/objectstore"
)

const (
	layoutName  = "layout"
	layoutTmp   = "layout.tmp"
	lockName    = "lock"
	locksName   = "locks"
	tmpName     = "tmp"
	objectsName = "objects"
	ownerSuffix = ".owner"

	layoutPrefix  = "runnel-file-object-store "
	layoutVersion = 1
	layoutMaxSize = 64 // bytes

	stripes = 16
	// lockPause is the time between two attempts to get a lock that another
	// process holds.
	lockPause = 2 * time.Millisecond
)

// Store is an objectstore.Store in a directory. Concurrent use is safe, also by
// several processes.
type Store struct {
	fsys  vfs.FS
	clock clock.Clock
	root  string
	id    string    // of this instance, in the names of its files in tmp
	owner io.Closer // flock of <id>.owner

	// stripes serialise the commits of this instance, so that only one of its
	// goroutines at a time waits for the flock of a stripe.
	stripes [stripes]chan struct{}

	// use is held shared by puts and deletes; Close waits for them.
	use sync.RWMutex

	mu struct {
		sync.Mutex
		closed  bool
		failed  error  // of a sync of a directory; sticky
		tmp     uint64 // number of the last file in tmp
		durable map[string]bool
	}
}

var _ objectstore.Store = (*Store)(nil)

// Open opens the store in a directory, creates it if the directory is missing
// or empty, and removes what dead processes have left in tmp. It starts
// nothing. It waits for others that are opening the store. Errors:
// *NotAStoreError, *FutureFormatError, *CorruptError, those of the disk.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{fsys: cfg.FS, clock: cfg.Clock, root: filepath.Clean(cfg.Root), id: rand.Text()}
	for i := range s.stripes {
		s.stripes[i] = make(chan struct{}, 1)
	}
	s.mu.durable = make(map[string]bool)
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("open object store %s: %w", s.root, err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if err := makeDurable(s.fsys, s.root); err != nil {
		return err
	}
	// Looked at before anything is created: a directory of somebody else stays
	// as it is.
	if err := s.checkForeign(); err != nil {
		return err
	}
	unlock, err := s.flock(ctx, filepath.Join(s.root, lockName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	if err := s.openLayout(); err != nil {
		return err
	}
	for _, name := range []string{locksName, tmpName, objectsName} {
		if err := s.fsys.MkdirAll(filepath.Join(s.root, name)); err != nil {
			return err
		}
	}
	if err := s.fsys.SyncDir(s.root); err != nil {
		return err
	}
	if err := s.sweepTmp(); err != nil {
		return err
	}
	s.owner, err = s.fsys.Lock(filepath.Join(s.root, tmpName, s.id+ownerSuffix))
	return err
}

// checkForeign refuses a directory without a layout file in which there is
// something else than a first Open could have left.
func (s *Store) checkForeign() error {
	entries, err := s.fsys.ReadDir(s.root)
	if err != nil {
		return err
	}
	foreign := ""
	for _, e := range entries {
		switch e.Name {
		case layoutName:
			return nil
		case lockName, layoutTmp:
		case "lost+found": // of a volume that has just been made
		default:
			foreign = e.Name
		}
	}
	if foreign != "" {
		return &NotAStoreError{Dir: s.root, Foreign: foreign}
	}
	return nil
}

// openLayout reads the layout file, or writes it to a new store. The caller
// holds the lock. Before the rename is durable the directory is an empty one;
// nothing else is created before that.
func (s *Store) openLayout() error {
	path := filepath.Join(s.root, layoutName)
	b, err := readSmall(s.fsys, path, layoutMaxSize)
	if err == nil {
		return checkLayout(path, string(b))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp := filepath.Join(s.root, layoutTmp)
	if err := removeIfExists(s.fsys, tmp); err != nil {
		return err
	}
	if err := writeSmall(s.fsys, tmp, fmt.Appendf(nil, "%s%d\n", layoutPrefix, layoutVersion)); err != nil {
		return err
	}
	if err := s.fsys.Rename(tmp, path); err != nil {
		return err
	}
	return s.fsys.SyncDir(s.root)
}

func checkLayout(path, content string) error {
	var version uint32
	_, err := fmt.Sscanf(content, layoutPrefix+"%d\n", &version)
	if err != nil || content != fmt.Sprintf("%s%d\n", layoutPrefix, version) || version == 0 {
		return &CorruptError{File: path, Detail: fmt.Sprintf("it holds %q, want %q and a version", content, layoutPrefix)}
	}
	if version > layoutVersion {
		return &FutureFormatError{File: path, Version: version, Supported: layoutVersion}
	}
	return nil
}

// sweepTmp removes the files of owners that are gone. The caller holds the lock
// of the store, so nobody is between creating an owner's file and locking it.
func (s *Store) sweepTmp() error {
	dir := filepath.Join(s.root, tmpName)
	entries, err := s.fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	alive := make(map[string]bool)
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name, ownerSuffix)
		if !ok {
			continue
		}
		lock, err := s.fsys.Lock(filepath.Join(dir, e.Name))
		if errors.Is(err, vfs.ErrLocked) {
			alive[id] = true
			continue
		}
		if err != nil {
			return err
		}
		if err := lock.Close(); err != nil {
			return err
		}
	}
	for _, e := range entries {
		id, _, _ := strings.Cut(e.Name, ".")
		if alive[id] || e.IsDir {
			continue
		}
		if err := removeIfExists(s.fsys, filepath.Join(dir, e.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Close waits for puts and deletes that are under way and releases the store.
// Calls after it fail with ErrClosed; bodies that are being read stay valid.
func (s *Store) Close() error {
	s.use.Lock()
	defer s.use.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	s.mu.closed = true
	return s.owner.Close()
}

// ready refuses calls on a closed store.
func (s *Store) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// flock takes a lock that somebody else may hold, which is never for long.
func (s *Store) flock(ctx context.Context, path string) (io.Closer, error) {
	for {
		lock, err := s.fsys.Lock(path)
		if !errors.Is(err, vfs.ErrLocked) {
			return lock, err
		}
		if err := clock.Sleep(ctx, s.clock, lockPause); err != nil {
			return nil, err
		}
	}
}

// lockKey serialises the commits of a key, within this process and with others.
func (s *Store) lockKey(ctx context.Context, key string) (unlock func(), err error) {
	h := fnv.New32a()
	_, _ = io.WriteString(h, key)
	n := h.Sum32() % stripes
	select {
	case s.stripes[n] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	lock, err := s.flock(ctx, filepath.Join(s.root, locksName, fmt.Sprintf("%02d", n)))
	if err != nil {
		<-s.stripes[n]
		return nil, err
	}
	return func() {
		// A descriptor whose close fails is closed all the same, and with it
		// goes the lock.
		_ = lock.Close()
		<-s.stripes[n]
	}, nil
}
