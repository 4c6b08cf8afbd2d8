package memfs

import (
	"slices"
	"time"
)

// inode is a file: what readers see, what is certain to survive a power
// failure, and the changes between the two.
//
// Invariant: applying changes to durable, in order, gives data.
type inode struct {
	data    blob
	durable blob
	changes []change
	modTime time.Time
	opens   int
	unnamed bool // removed; gone for good once nobody has it open
}

// change is a write or a truncation that no sync has covered.
type change struct {
	truncate bool
	off      int64
	data     []byte // a private copy
	size     int64  // of the file, after the change
	// clean: a sync failed on it, and the kernel has forgotten that the pages
	// are dirty. The change may or may not be on the disk, for ever, unless the
	// same pages are written again.
	clean bool
}

func (f *inode) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	f.data.writeAt(p, off)
	f.changes = append(f.changes, change{off: off, data: append([]byte(nil), p...), size: f.data.size})
}

func (f *inode) truncate(size int64) {
	f.data.truncate(size)
	f.changes = append(f.changes, change{truncate: true, size: size})
}

// dropDirty is a sync that failed.
func (f *inode) dropDirty() {
	for i := range f.changes {
		f.changes[i].clean = true
	}
}

// sync makes the changes durable that are still known to be dirty.
func (f *inode) sync() {
	clean := 0
	for _, c := range f.changes {
		if c.clean {
			clean++
		}
	}
	switch clean {
	case 0:
		for _, c := range f.changes {
			c.apply(&f.durable)
		}
		f.changes = nil
	case len(f.changes): // nothing to write, so nothing gets any better
	default:
		f.syncDirtyPages()
	}
}

func (c *change) apply(b *blob) {
	if c.truncate {
		b.truncate(c.size)
	} else {
		b.writeAt(c.data, c.off)
	}
}

// syncDirtyPages is a sync after one that failed. Pages that were written
// since are written whole, old changes included, and with any of them goes the
// inode, so size and truncations. Changes to other pages stay uncertain.
func (f *inode) syncDirtyPages() {
	dirty := map[int64]bool{}
	for _, c := range f.changes {
		switch {
		case c.clean:
		case c.truncate:
			dirty[c.size/pageSize] = true // its tail was cleared
		default:
			for i := c.off / pageSize; i*pageSize < c.off+int64(len(c.data)); i++ {
				dirty[i] = true
			}
		}
	}
	f.changes = f.uncertain(dirty)
	f.durable.truncate(f.data.size)
	for i := range dirty {
		if i*pageSize < f.data.size {
			f.durable.setPage(i, &f.data)
		}
	}
}

// uncertain cuts the clean writes to what later truncations and the pages
// being written leave of them, and applies the truncations for good.
func (f *inode) uncertain(dirty map[int64]bool) []change {
	var rest []change
	limit := maxSize
	for _, c := range slices.Backward(f.changes) {
		if c.truncate {
			limit = min(limit, c.size)
			continue
		}
		if !c.clean {
			continue
		}
		end := min(limit, c.off+int64(len(c.data)))
		for at := c.off; at < end; {
			next := min(end, at-at%pageSize+pageSize)
			if !dirty[at/pageSize] {
				rest = append(rest, change{off: at, data: c.data[at-c.off : next-c.off], size: f.data.size, clean: true})
			}
			at = next
		}
	}
	// Walked backwards; pieces of one write are disjoint, so their order among
	// themselves does not matter.
	slices.Reverse(rest)
	f.durable.truncate(min(limit, f.durable.size))
	return rest
}
