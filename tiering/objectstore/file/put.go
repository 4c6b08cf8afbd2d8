package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"runnel.dev/runnel/tiering/objectstore"
)

// Put implements objectstore.Store. The package comment tells its crash
// windows.
func (s *Store) Put(ctx context.Context, req objectstore.PutRequest) (objectstore.Info, error) {
	info, err := s.put(ctx, req)
	return info, objectstore.Wrap(objectstore.OpPut, req.Key, err)
}

func (s *Store) put(ctx context.Context, req objectstore.PutRequest) (info objectstore.Info, err error) {
	if err := req.Validate(); err != nil {
		return info, err
	}
	s.use.RLock()
	defer s.use.RUnlock()
	if err := errors.Join(s.ready(ctx), s.writable()); err != nil {
		return info, err
	}
	if req.Precondition == objectstore.IfNoneMatch {
		// Not the test that counts; it saves writing the bytes.
		if err := s.absent(req.Key); err != nil {
			return info, err
		}
	}
	tmp := s.newTmp()
	modified, err := s.writeTmp(ctx, tmp, req)
	if err == nil {
		err = s.commit(ctx, tmp, req)
	}
	if err != nil {
		// Gone already if the rename has happened.
		return info, errors.Join(err, removeIfExists(s.fsys, tmp))
	}
	return objectstore.Info{Key: req.Key, Size: req.Size, Checksum: req.Checksum, Modified: modified}, nil
}

func (s *Store) newTmp() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.tmp++
	return filepath.Join(s.root, tmpName, fmt.Sprintf("%s.%d", s.id, s.mu.tmp))
}

// writeTmp writes an object file whose bytes are checked and durable, and
// returns its modification time.
func (s *Store) writeTmp(ctx context.Context, tmp string, req objectstore.PutRequest) (modified time.Time, err error) {
	f, err := s.fsys.Create(tmp)
	if err != nil {
		return modified, classify(err)
	}
	defer func() {
		if closeErr := f.Close(); closeErr != nil {
			err = errors.Join(err, classify(closeErr))
		}
	}()
	if _, err := f.WriteAt(encodeHeader(req.Key, req.Size, req.Checksum), 0); err != nil {
		return modified, classify(err)
	}
	at := bodyAt(req.Key)
	err = objectstore.ReadBody(ctx, req, func(piece []byte) error {
		n, err := f.WriteAt(piece, at)
		at += int64(n)
		return classify(err)
	})
	if err != nil {
		return modified, err
	}
	if err := f.Sync(); err != nil {
		return modified, classify(err)
	}
	stat, err := s.fsys.Stat(tmp)
	return stat.ModTime, classify(err)
}

// commit gives the file in tmp the name of its object, durably. What the
// context says no longer counts once the rename has happened.
func (s *Store) commit(ctx context.Context, tmp string, req objectstore.PutRequest) error {
	dir, path := s.objectPath(req.Key)
	if err := s.makeDirs(dir); err != nil {
		return err
	}
	unlock, err := s.lockKey(ctx, req.Key)
	if err != nil {
		if ctx.Err() == nil {
			err = classify(err)
		}
		return err
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if req.Precondition == objectstore.IfNoneMatch {
		if err := s.absent(req.Key); err != nil {
			return err
		}
	}
	if err := s.fsys.Rename(tmp, path); err != nil {
		return classify(err)
	}
	return s.syncDir(dir)
}

// absent fails with ErrPreconditionFailed if there is an object. Its put may
// have died before the entry was durable, so that is made up for: the caller
// will act on the object's existence.
func (s *Store) absent(key string) error {
	dir, path := s.objectPath(key)
	_, err := s.fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	if err := s.syncDir(dir); err != nil {
		return err
	}
	return objectstore.ErrPreconditionFailed
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, keys []string) ([]objectstore.DeleteResult, error) {
	wrap := func(err error) error { return objectstore.Wrap(objectstore.OpDelete, "", err) }
	if err := objectstore.CheckDelete(keys); err != nil {
		return nil, wrap(err)
	}
	s.use.RLock()
	defer s.use.RUnlock()
	if err := errors.Join(s.ready(ctx), s.writable()); err != nil {
		return nil, wrap(err)
	}
	results := make([]objectstore.DeleteResult, len(keys))
	synced := make(map[string]error) // by directory
	for i, key := range keys {
		dir, err := s.remove(ctx, key)
		if err == nil {
			synced[dir] = nil
		}
		results[i] = objectstore.DeleteResult{Key: key, Err: objectstore.Wrap(objectstore.OpDelete, key, err)}
	}
	for dir := range synced {
		// A directory that never was has nothing to sync.
		if _, err := s.fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		synced[dir] = s.syncDir(dir)
	}
	for i := range results {
		if r := &results[i]; r.Err == nil {
			dir, _ := s.objectPath(r.Key)
			r.Err = objectstore.Wrap(objectstore.OpDelete, r.Key, synced[dir])
		}
	}
	return results, objectstore.DeleteError(results)
}

// remove unlinks an object and returns the directory that is to be synced.
// That it was gone already proves nothing about the disk: another process may
// have unlinked it and died.
func (s *Store) remove(ctx context.Context, key string) (dir string, err error) {
	if err := objectstore.CheckKey(key); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	dir, path := s.objectPath(key)
	return dir, classify(removeIfExists(s.fsys, path))
}
