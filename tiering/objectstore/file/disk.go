package file

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/tiering/objectstore"
)

// durableDirs bounds the memory of which directories are durable.
const durableDirs = 4096

// makeDirs makes the directories of an object exist durably, those too that
// another process has created and perhaps not synced.
func (s *Store) makeDirs(dir string) error {
	if s.isDurable(dir) {
		return nil
	}
	if err := s.fsys.MkdirAll(dir); err != nil {
		return classify(err)
	}
	objects := filepath.Join(s.root, objectsName)
	for at := dir; at != objects && !s.isDurable(at); at = filepath.Dir(at) {
		if err := s.syncDir(filepath.Dir(at)); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.durable) >= durableDirs {
		clear(s.mu.durable)
	}
	s.mu.durable[dir] = true
	return nil
}

// isDurable tells whether a directory and all above it are known to be
// durable. They stay so, because nothing removes directories.
func (s *Store) isDurable(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.durable[dir]
}

// syncDir makes the entries of a directory durable. A failure is final: a later
// sync that succeeds would prove nothing.
func (s *Store) syncDir(dir string) error {
	s.mu.Lock()
	err := s.mu.failed
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err = s.fsys.SyncDir(dir); err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.failed = fmt.Errorf("%w until it is opened again: sync of %s failed: %w", objectstore.ErrUnavailable, dir, err)
	return s.mu.failed
}

// writable refuses changes after a sync has failed.
func (s *Store) writable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.failed
}

// makeDurable creates a directory with its missing parents, all durable. It
// syncs the entry of the directory itself in any case: whoever created it may
// have died before.
func makeDurable(fsys vfs.FS, dir string) error {
	missing := []string{dir}
	for at := dir; ; at = filepath.Dir(at) {
		_, err := fsys.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return err
		}
		if at != dir {
			missing = append(missing, at)
		}
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	for _, at := range missing {
		if err := fsys.SyncDir(filepath.Dir(at)); err != nil {
			return err
		}
	}
	return nil
}

func removeIfExists(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readSmall reads the first limit bytes of a file.
func readSmall(fsys vfs.FS, path string, limit int64) (b []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return readStart(f, limit)
}

// readStart reads the first limit bytes of an open file, or all if it has less.
func readStart(f vfs.File, limit int64) ([]byte, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, limit))
	n, err := f.ReadAt(b, 0)
	if n < len(b) {
		return nil, err
	}
	return b, nil
}

// writeSmall creates a file with bytes that are durable; its name is not.
func writeSmall(fsys vfs.FS, path string, content []byte) (err error) {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}
