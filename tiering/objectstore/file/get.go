package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/tiering/objectstore"
)

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Info, error) {
	body, info, err := s.get(ctx, key, offset, length)
	return body, info, objectstore.Wrap(objectstore.OpGet, key, err)
}

func (s *Store) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Info, error) {
	if err := errors.Join(objectstore.CheckKey(key), s.ready(ctx)); err != nil {
		return nil, objectstore.Info{}, err
	}
	f, info, err := s.openObject(key)
	if err != nil {
		return nil, objectstore.Info{}, err
	}
	n, err := objectstore.CheckRange(offset, length, info.Size)
	if err != nil {
		return nil, objectstore.Info{}, errors.Join(err, f.Close())
	}
	var want objectstore.Checksum
	if n == info.Size {
		want = info.Checksum
	}
	src := &source{SectionReader: io.NewSectionReader(f, bodyAt(key)+offset, n), file: f}
	return objectstore.NewBody(ctx, key, src, n, want), info, nil
}

// source reads a part of an object file. The file may have lost its name.
type source struct {
	*io.SectionReader
	file vfs.File
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.SectionReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = classify(err)
	}
	return n, err
}

// Close implements io.Closer.
func (s *source) Close() error { return s.file.Close() }

// Head implements objectstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objectstore.Info, error) {
	if err := errors.Join(objectstore.CheckKey(key), s.ready(ctx)); err != nil {
		return objectstore.Info{}, objectstore.Wrap(objectstore.OpHead, key, err)
	}
	info, err := s.head(key)
	if err == nil {
		// The put may have died after its rename; the answer has to hold.
		dir, _ := s.objectPath(key)
		err = s.syncDir(dir)
	}
	if err != nil {
		return objectstore.Info{}, objectstore.Wrap(objectstore.OpHead, key, err)
	}
	return info, nil
}

func (s *Store) head(key string) (objectstore.Info, error) {
	f, info, err := s.openObject(key)
	if err != nil {
		return objectstore.Info{}, err
	}
	return info, classify(f.Close())
}

// openObject opens an object's file and reads its header.
func (s *Store) openObject(key string) (f vfs.File, info objectstore.Info, err error) {
	_, path := s.objectPath(key)
	f, err = s.fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, info, objectstore.ErrNotFound
	}
	if err != nil {
		return nil, info, classify(err)
	}
	info, err = s.describe(f, path, key)
	if err != nil {
		return nil, info, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func (s *Store) describe(f vfs.File, path, key string) (info objectstore.Info, err error) {
	head, err := readStart(f, bodyAt(key))
	if err != nil {
		return info, classify(err)
	}
	fileSize, err := f.Size()
	if err != nil {
		return info, classify(err)
	}
	size, sum, err := decodeHeader(path, head, key, fileSize)
	if err != nil {
		return info, err
	}
	stat, err := s.fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// Deleted since it was opened, so also at some time during the call.
		return info, objectstore.ErrNotFound
	}
	if err != nil {
		return info, fmt.Errorf("modification time: %w", classify(err))
	}
	return objectstore.Info{Key: key, Size: size, Checksum: sum, Modified: stat.ModTime}, nil
}
