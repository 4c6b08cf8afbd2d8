package file

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"runnel.dev/runnel/tiering/objectstore"
)

// List implements objectstore.Store. It reads the directories that the page
// comes from, each whole, and no object. A damaged object is listed like any
// other.
func (s *Store) List(ctx context.Context, req objectstore.ListRequest) (objectstore.Page, error) {
	page, err := s.list(ctx, req)
	return page, objectstore.Wrap(objectstore.OpList, req.Prefix, err)
}

func (s *Store) list(ctx context.Context, req objectstore.ListRequest) (objectstore.Page, error) {
	req, err := req.Normalize()
	if err != nil {
		return objectstore.Page{}, err
	}
	if err := s.ready(ctx); err != nil {
		return objectstore.Page{}, err
	}
	w := &lister{store: s, req: req}
	err = w.walk(ctx, req.Prefix[:strings.LastIndexByte(req.Prefix, '/')+1])
	if err != nil && !errors.Is(err, errPageFull) {
		return objectstore.Page{}, err
	}
	return w.page, nil
}

// errPageFull ends a walk.
var errPageFull = errors.New("page is full")

type lister struct {
	store *Store
	req   objectstore.ListRequest
	page  objectstore.Page
}

// entry is an object, or a directory whose key ends with a slash.
type entry struct {
	key   string
	isDir bool
}

// walk visits the keys that begin with prefix, which is empty or ends with a
// slash, in their order: each key in a directory begins with the directory's
// own, so sorting a directory by these sorts everything.
func (w *lister) walk(ctx context.Context, prefix string) error {
	entries, err := w.entries(prefix)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.isDir {
			err = w.walk(ctx, e.key)
		} else {
			err = w.add(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entries returns what may belong to the listing, sorted.
func (w *lister) entries(prefix string) ([]entry, error) {
	list, err := w.store.fsys.ReadDir(w.store.dirPath(prefix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(err)
	}
	entries := make([]entry, 0, len(list))
	for _, d := range list {
		key, ok := keyOf(prefix, d.Name, d.IsDir)
		if !ok || !strings.HasPrefix(key, w.req.Prefix) {
			continue
		}
		// All keys below a directory are behind its own, so they may be behind
		// After where it is not.
		if key <= w.req.After && (!d.IsDir || !strings.HasPrefix(w.req.After, key)) {
			continue
		}
		entries = append(entries, entry{key: key, isDir: d.IsDir})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return entries, nil
}

func (w *lister) add(e entry) error {
	_, path := w.store.objectPath(e.key)
	stat, err := w.store.fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted since the directory was read
	}
	if err != nil {
		return classify(err)
	}
	if len(w.page.Objects) == w.req.Limit {
		w.page.More = true
		return errPageFull
	}
	w.page.Objects = append(w.page.Objects, objectstore.Info{
		Key: e.key, Size: max(0, stat.Size-bodyAt(e.key)), Modified: stat.ModTime,
	})
	return nil
}
