package memfs

import (
	"maps"
	"math/rand/v2"
	"slices"

	"runnel.dev/runnel/internal/vfs/namespace"
)

// CrashClone returns a file system as a power failure at this moment could
// leave it, chosen by rng: equal states and equal generators give equal
// clones. This file system stays as it is and can be cloned again. The clone
// is all durable, has no locks, and shares nothing with open files.
//
// Of each file, unsynced writes are lost, kept, or torn into sectors of 512
// bytes that got to the disk in any order; its size may be ahead of its data
// (then zeros) or behind; an unsynced truncation may not have happened, and
// then writes that came after it lie amid the old bytes. Changes of
// directories survive by themselves or in order, as package namespace says.
func (m *Mem) CrashClone(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cloneLocked(m.mu.tree.Survivors(keeper(rng, m.mu.tree.Pending())), func(f *inode) blob { return f.torn(rng) })
}

// StrictCrashClone returns a file system with what was synced and nothing
// else.
func (m *Mem) StrictCrashClone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cloneLocked(nil, func(f *inode) blob { return f.durable.snapshot() })
}

// keeper decides the fate of one change of a directory after the other.
func keeper(rng *rand.Rand, pending int) func() bool {
	switch rng.IntN(4) {
	case 0:
		return func() bool { return false }
	case 1:
		return func() bool { return true }
	case 2: // a journal keeps a prefix
		left := rng.IntN(pending + 1)
		return func() bool { left--; return left >= 0 }
	default:
		return func() bool { return rng.IntN(2) == 0 }
	}
}

// cloneLocked builds the clone from the durable directories and the changes
// that survive.
func (m *Mem) cloneLocked(kept []*namespace.Op[*object], content func(*inode) blob) *Mem {
	changed := map[*node]map[string]*node{}
	entries := func(dir *node) map[string]*node {
		if changed[dir] == nil {
			changed[dir] = maps.Clone(dir.Data.durable)
		}
		return changed[dir]
	}
	for _, op := range kept {
		if op.Kind != namespace.Link {
			delete(entries(op.From.Dir), op.From.Name)
		}
		if op.Kind != namespace.Unlink {
			entries(op.To.Dir)[op.To.Name] = op.Node
		}
	}
	clone := NewWith(m.opt)
	var copyDir func(from, to *node)
	copyDir = func(from, to *node) {
		list := from.Data.durable
		if changed[from] != nil {
			list = changed[from]
		}
		for _, name := range slices.Sorted(maps.Keys(list)) {
			old := list[name]
			data := newDir(old.Data.modTime)
			if !old.IsDir() {
				data = clone.survivorLocked(old.Data.file, content)
			}
			n := clone.mu.tree.Insert(to, name, old.IsDir(), data)
			to.Data.durable[name] = n
			if old.IsDir() {
				copyDir(old, n)
			}
		}
	}
	copyDir(m.mu.tree.Root(), clone.mu.tree.Root())
	return clone
}

func (m *Mem) survivorLocked(f *inode, content func(*inode) blob) *object {
	durable := content(f)
	data := durable.snapshot()
	m.mu.used += data.size
	return &object{file: &inode{data: data, durable: durable, modTime: f.modTime}}
}
