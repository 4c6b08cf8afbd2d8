// Package namespace keeps the names of a test file system: a tree of files and
// directories as a process sees it, and a log of the changes to directories
// that a power failure could still undo.
//
// A change in the log survives or is lost as a whole, which makes a rename
// atomic, and independently of others, which is more hostile than a
// journaling file system that keeps a prefix. Only what has to hold on any
// file system restrains it: a change depends on
//
//   - the earlier changes of the same names, so that create a, rename a to b,
//     create a cannot be reordered;
//   - for the removal of a directory, every change within it: otherwise a file
//     that was moved out first could be lost with it;
//   - for a move to another directory, the changes that put that directory and
//     those above it where they are, for the same reason.
//
// [Tree.SyncDir] commits the changes of one directory and what they depend on.
// A move between directories counts as a change of its destination.
package namespace

import (
	"errors"
	"path"
	"sort"
	"strings"
	"syscall"
)

// Node is a file or directory. T is what the file system keeps with it.
type Node[T any] struct {
	Data T

	dir      bool
	parent   *Node[T] // nil for the root and for what was removed
	name     string
	children map[string]*Node[T]
	loaded   bool
	link     *Op[T] // the pending change that made it; nil once committed
}

// IsDir tells a directory from a file.
func (n *Node[T]) IsDir() bool { return n.dir }

// Name is the last element of the path; empty for the root.
func (n *Node[T]) Name() string { return n.name }

// Linked tells whether the node still has a name.
func (n *Node[T]) Linked() bool { return n.parent != nil }

// Config says how a tree behaves.
type Config[T any] struct {
	// Load lists a directory that already existed, when it is first needed; nil
	// if the tree starts empty. It may call Tree.Insert for each entry.
	Load func(dir *Node[T]) error
	// ParentFirst makes a change to a directory depend on the creation of that
	// directory, for file systems whose durable side is a real one.
	ParentFirst bool
}

// Tree is the namespace. It is not safe for concurrent use. Paths are
// slash-separated and relative to the root; errors are bare syscall.Errno,
// or what Load returned.
type Tree[T any] struct {
	cfg     Config[T]
	root    *Node[T]
	pending []*Op[T]
	byEntry map[Entry[T]]*Op[T] // the last pending change of a name
	byNode  map[*Node[T]]*Op[T] // the last pending change that placed a node
}

// New returns a tree with a root directory, which is durable.
func New[T any](root T, cfg Config[T]) *Tree[T] {
	return &Tree[T]{
		cfg:     cfg,
		root:    &Node[T]{Data: root, dir: true, children: map[string]*Node[T]{}, loaded: cfg.Load == nil},
		byEntry: map[Entry[T]]*Op[T]{},
		byNode:  map[*Node[T]]*Op[T]{},
	}
}

// Root is the root directory.
func (t *Tree[T]) Root() *Node[T] { return t.root }

// Insert adds a node that is durable already.
func (t *Tree[T]) Insert(dir *Node[T], name string, isDir bool, data T) *Node[T] {
	n := &Node[T]{Data: data, dir: isDir, parent: dir, name: name}
	if isDir {
		n.children, n.loaded = map[string]*Node[T]{}, t.cfg.Load == nil
	}
	dir.children[name] = n
	return n
}

// Lookup finds a node.
func (t *Tree[T]) Lookup(name string) (*Node[T], error) {
	n := t.root
	for _, part := range split(name) {
		child, err := t.child(n, part)
		if err != nil {
			return nil, err
		}
		if child == nil {
			return nil, syscall.ENOENT
		}
		n = child
	}
	return n, nil
}

// List returns the entries of a directory, sorted by name.
func (t *Tree[T]) List(name string) ([]*Node[T], error) {
	dir, err := t.Lookup(name)
	if err != nil {
		return nil, err
	}
	return t.entries(dir)
}

func (t *Tree[T]) entries(dir *Node[T]) ([]*Node[T], error) {
	if err := t.load(dir); err != nil {
		return nil, err
	}
	list := make([]*Node[T], 0, len(dir.children))
	for _, n := range dir.children {
		list = append(list, n)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	return list, nil
}

// Create adds a file that must not exist.
func (t *Tree[T]) Create(name string, data T) (*Node[T], error) {
	dir, base, err := t.place(name)
	if err != nil {
		return nil, err
	}
	if child, err := t.child(dir, base); err != nil || child != nil {
		return nil, orErr(err, syscall.EEXIST)
	}
	n := &Node[T]{Data: data}
	t.doLink(n, dir, base)
	return n, nil
}

// MkdirAll adds the directories of a path that are missing; data makes what
// is kept with each.
func (t *Tree[T]) MkdirAll(name string, data func() T) error {
	dir := t.root
	for _, part := range split(name) {
		child, err := t.child(dir, part)
		if err != nil {
			return err
		}
		if child == nil {
			child = &Node[T]{Data: data(), dir: true, children: map[string]*Node[T]{}, loaded: true}
			t.doLink(child, dir, part)
		}
		dir = child
	}
	if !dir.dir {
		return syscall.ENOTDIR
	}
	return nil
}

// Remove unlinks a file or an empty directory and returns it.
func (t *Tree[T]) Remove(name string) (*Node[T], error) {
	n, err := t.Lookup(name)
	if err != nil {
		return nil, err
	}
	if n == t.root {
		return nil, syscall.EBUSY
	}
	if n.dir {
		if err := t.load(n); err != nil {
			return nil, err
		}
		if len(n.children) > 0 {
			return nil, syscall.ENOTEMPTY
		}
	}
	t.doUnlink(n)
	return n, nil
}

// RemoveAll unlinks a node and all below it, children first, and returns what
// it unlinked. A missing node is no error.
func (t *Tree[T]) RemoveAll(name string) ([]*Node[T], error) {
	n, err := t.Lookup(name)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.removeTree(n, nil)
}

func (t *Tree[T]) removeTree(n *Node[T], removed []*Node[T]) ([]*Node[T], error) {
	if n.dir {
		list, err := t.entries(n)
		if err != nil {
			return removed, err
		}
		for _, child := range list {
			if removed, err = t.removeTree(child, removed); err != nil {
				return removed, err
			}
		}
	}
	if n == t.root {
		return removed, nil
	}
	t.doUnlink(n)
	return append(removed, n), nil
}

// Rename moves a node and returns the file that it replaced, if any.
func (t *Tree[T]) Rename(oldName, newName string) (replaced *Node[T], err error) {
	n, err := t.Lookup(oldName)
	if err != nil {
		return nil, err
	}
	dir, base, err := t.place(newName)
	if err != nil {
		return nil, err
	}
	if n == t.root {
		return nil, syscall.EBUSY
	}
	target, err := t.child(dir, base)
	switch {
	case err != nil:
		return nil, err
	case target == n:
		return nil, nil
	case target != nil && target.dir:
		return nil, syscall.EEXIST
	case target != nil && n.dir:
		return nil, syscall.ENOTDIR
	}
	for d := dir; d != nil; d = d.parent {
		if d == n {
			return nil, syscall.EINVAL
		}
	}
	t.doMove(n, dir, base, target)
	return target, nil
}

// place splits a path into its directory, which must exist, and a name.
func (t *Tree[T]) place(name string) (dir *Node[T], base string, err error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EEXIST
	}
	base = parts[len(parts)-1]
	dir, err = t.Lookup(strings.Join(parts[:len(parts)-1], "/"))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", syscall.ENOTDIR
	}
	return dir, base, nil
}

// child returns nil if dir has no such entry.
func (t *Tree[T]) child(dir *Node[T], name string) (*Node[T], error) {
	if err := t.load(dir); err != nil {
		return nil, err
	}
	return dir.children[name], nil
}

func (t *Tree[T]) load(dir *Node[T]) error {
	if !dir.dir {
		return syscall.ENOTDIR
	}
	if dir.loaded {
		return nil
	}
	if err := t.cfg.Load(dir); err != nil {
		return err
	}
	dir.loaded = true
	return nil
}

func split(name string) []string {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return nil
	}
	return strings.Split(clean[1:], "/")
}

func orErr(err error, other syscall.Errno) error {
	if err != nil {
		return err
	}
	return other
}
