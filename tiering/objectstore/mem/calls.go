package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"runnel.dev/runnel/tiering/objectstore"
)

// Put implements objectstore.Store.
func (s *Store) Put(ctx context.Context, req objectstore.PutRequest) (objectstore.Info, error) {
	info, err := s.put(ctx, req)
	return info, objectstore.Wrap(objectstore.OpPut, req.Key, err)
}

func (s *Store) put(ctx context.Context, req objectstore.PutRequest) (objectstore.Info, error) {
	if err := req.Validate(); err != nil {
		return objectstore.Info{}, err
	}
	f, err := s.begin(ctx, Call{Op: objectstore.OpPut, Key: req.Key})
	if err != nil {
		return objectstore.Info{}, err
	}
	if req.Size > s.cfg.Capacity {
		return objectstore.Info{}, s.full(req.Size, 0, 0)
	}
	data, err := receive(ctx, req, f)
	if err != nil {
		return objectstore.Info{}, err
	}
	o := &object{data: data, sum: req.Checksum, modified: s.cfg.Clock.Now()}
	if err := s.store(req, o); err != nil {
		return objectstore.Info{}, err
	}
	if err := f.end(ctx); err != nil {
		return objectstore.Info{}, err
	}
	return o.info(req.Key), nil
}

// receive reads the body of a Put as the fault lets it arrive.
func receive(ctx context.Context, req objectstore.PutRequest, f Fault) ([]byte, error) {
	if f.Body != NoBodyFault && f.BodyAt < req.Size {
		switch f.Body {
		case Truncate:
			return nil, fmt.Errorf("%w: body was cut at byte %d of %d: %w", objectstore.ErrUnavailable, f.BodyAt, req.Size, io.ErrUnexpectedEOF)
		case Stall:
			<-ctx.Done()
			return nil, ctx.Err()
		case Flip, NoBodyFault:
			req.Body = flipped{ReaderAt: req.Body, at: f.BodyAt}
		}
	}
	data := make([]byte, 0, req.Size)
	err := objectstore.ReadBody(ctx, req, func(piece []byte) error {
		data = append(data, piece...)
		return nil
	})
	return data, err
}

// flipped changes a bit of one byte.
type flipped struct {
	io.ReaderAt
	at int64
}

// ReadAt implements io.ReaderAt.
func (r flipped) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	if i := r.at - off; i >= 0 && i < int64(n) {
		p[i] ^= 1
	}
	return n, err
}

func (s *Store) store(req objectstore.PutRequest, o *object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.mu.objects[req.Key]
	if old != nil && req.Precondition == objectstore.IfNoneMatch {
		return objectstore.ErrPreconditionFailed
	}
	used, count := s.mu.used, len(s.mu.objects)
	if old != nil {
		used -= int64(len(old.data))
		count--
	}
	if used+req.Size > s.cfg.Capacity || count >= s.cfg.MaxObjects {
		return s.full(req.Size, used, count)
	}
	s.setLocked(req.Key, o)
	return nil
}

func (s *Store) full(size, used int64, count int) error {
	return fmt.Errorf("%w: it is full: the object has %d bytes, %d of %d bytes and %d of %d objects are taken",
		objectstore.ErrUnavailable, size, used, s.cfg.Capacity, count, s.cfg.MaxObjects)
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Info, error) {
	body, info, err := s.get(ctx, key, offset, length)
	return body, info, objectstore.Wrap(objectstore.OpGet, key, err)
}

func (s *Store) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Info, error) {
	if err := objectstore.CheckKey(key); err != nil {
		return nil, objectstore.Info{}, err
	}
	f, err := s.begin(ctx, Call{Op: objectstore.OpGet, Key: key, Offset: offset, Length: length})
	if err != nil {
		return nil, objectstore.Info{}, err
	}
	o, err := s.find(key)
	if err != nil {
		return nil, objectstore.Info{}, err
	}
	info := o.info(key)
	n, err := objectstore.CheckRange(offset, length, info.Size)
	if err != nil {
		return nil, objectstore.Info{}, err
	}
	if err := f.end(ctx); err != nil {
		return nil, objectstore.Info{}, err
	}
	var want objectstore.Checksum
	if n == info.Size {
		want = info.Checksum
	}
	return objectstore.NewBody(ctx, key, send(ctx, o.data[offset:offset+n], f), n, want), info, nil
}

// send makes the bytes of a Get arrive as the fault lets them.
func send(ctx context.Context, data []byte, f Fault) io.ReadCloser {
	if f.BodyAt >= int64(len(data)) {
		f.Body = NoBodyFault
	}
	switch f.Body {
	case Truncate:
		data = data[:f.BodyAt]
	case Flip:
		data = append([]byte(nil), data...)
		data[f.BodyAt] ^= 1
	case Stall:
		return io.NopCloser(io.MultiReader(bytes.NewReader(data[:f.BodyAt]), stalled{ctx}))
	case NoBodyFault:
	}
	return io.NopCloser(bytes.NewReader(data))
}

// stalled never has a byte.
type stalled struct{ ctx context.Context }

// Read implements io.Reader.
func (r stalled) Read([]byte) (int, error) {
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

func (s *Store) find(key string) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.mu.objects[key]; o != nil {
		return o, nil
	}
	return nil, objectstore.ErrNotFound
}

// Head implements objectstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objectstore.Info, error) {
	info, err := s.head(ctx, key)
	return info, objectstore.Wrap(objectstore.OpHead, key, err)
}

func (s *Store) head(ctx context.Context, key string) (objectstore.Info, error) {
	if err := objectstore.CheckKey(key); err != nil {
		return objectstore.Info{}, err
	}
	f, err := s.begin(ctx, Call{Op: objectstore.OpHead, Key: key})
	if err != nil {
		return objectstore.Info{}, err
	}
	o, err := s.find(key)
	if err != nil {
		return objectstore.Info{}, err
	}
	if err := f.end(ctx); err != nil {
		return objectstore.Info{}, err
	}
	return o.info(key), nil
}

// Delete implements objectstore.Store. A fault concerns the whole batch.
func (s *Store) Delete(ctx context.Context, keys []string) ([]objectstore.DeleteResult, error) {
	fail := func(err error) ([]objectstore.DeleteResult, error) {
		return nil, objectstore.Wrap(objectstore.OpDelete, "", err)
	}
	if err := objectstore.CheckDelete(keys); err != nil {
		return fail(err)
	}
	call := Call{Op: objectstore.OpDelete}
	if len(keys) > 0 {
		call.Key = keys[0]
	}
	f, err := s.begin(ctx, call)
	if err != nil {
		return fail(err)
	}
	results := make([]objectstore.DeleteResult, len(keys))
	s.mu.Lock()
	for i, key := range keys {
		err := objectstore.CheckKey(key)
		if err == nil {
			s.setLocked(key, nil)
		}
		results[i] = objectstore.DeleteResult{Key: key, Err: objectstore.Wrap(objectstore.OpDelete, key, err)}
	}
	s.mu.Unlock()
	if err := f.end(ctx); err != nil {
		return fail(err)
	}
	return results, objectstore.DeleteError(results)
}

// List implements objectstore.Store.
func (s *Store) List(ctx context.Context, req objectstore.ListRequest) (objectstore.Page, error) {
	page, err := s.list(ctx, req)
	return page, objectstore.Wrap(objectstore.OpList, req.Prefix, err)
}

func (s *Store) list(ctx context.Context, req objectstore.ListRequest) (objectstore.Page, error) {
	req, err := req.Normalize()
	if err != nil {
		return objectstore.Page{}, err
	}
	f, err := s.begin(ctx, Call{Op: objectstore.OpList, Key: req.Prefix})
	if err != nil {
		return objectstore.Page{}, err
	}
	view := s.view(f.Stale)
	var page objectstore.Page
	for _, key := range slices.Sorted(maps.Keys(view)) {
		if key <= req.After || !strings.HasPrefix(key, req.Prefix) {
			continue
		}
		if len(page.Objects) == req.Limit {
			page.More = true
			break
		}
		info := view[key].info(key)
		info.Checksum = objectstore.Checksum{}
		page.Objects = append(page.Objects, info)
	}
	if err := f.end(ctx); err != nil {
		return objectstore.Page{}, err
	}
	return page, nil
}

// view returns all objects as they were before the last stale changes.
func (s *Store) view(stale int) map[string]*object {
	s.mu.Lock()
	defer s.mu.Unlock()
	view := maps.Clone(s.mu.objects)
	first := max(0, len(s.mu.changes)-max(0, stale))
	for _, c := range slices.Backward(s.mu.changes[first:]) {
		if c.before == nil {
			delete(view, c.key)
		} else {
			view[c.key] = c.before
		}
	}
	return view
}
