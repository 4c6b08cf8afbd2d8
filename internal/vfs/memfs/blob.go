package memfs

import "slices"

const pageSize = 4096

// maxSize bounds a file, and with it the page table of a sparse one.
const maxSize = int64(64) << 30

// blob is a sparse array of bytes whose snapshots share pages until one side
// writes to them. Bytes behind size are zero in every page.
type blob struct {
	pages []*page // nil: a hole of zeros
	size  int64
	mine  *owner
}

type page struct {
	owner *owner
	data  [pageSize]byte
}

// owner is the identity of the one blob that may write to a page in place. It
// is not empty, because pointers to empty values may be equal.
type owner struct{ _ byte }

// snapshot returns a copy; both sides own none of the shared pages any more.
func (b *blob) snapshot() blob {
	b.mine = new(owner)
	return blob{pages: slices.Clone(b.pages), size: b.size, mine: new(owner)}
}

func (b *blob) readAt(p []byte, off int64) int {
	if off >= b.size {
		return 0
	}
	p = p[:min(int64(len(p)), b.size-off)]
	for done := 0; done < len(p); {
		at := off + int64(done)
		part := p[done:min(len(p), done+int(pageSize-at%pageSize))]
		if i := at / pageSize; i < int64(len(b.pages)) && b.pages[i] != nil {
			copy(part, b.pages[i].data[at%pageSize:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(p)
}

func (b *blob) writeAt(p []byte, off int64) {
	for done := 0; done < len(p); {
		at := off + int64(done)
		done += copy(b.writable(at / pageSize).data[at%pageSize:], p[done:])
	}
	if len(p) > 0 {
		b.size = max(b.size, off+int64(len(p)))
	}
}

// zero clears bytes without extending the blob.
func (b *blob) zero(from, to int64) {
	for at := from; at < to; {
		next := min(to, at-at%pageSize+pageSize)
		i := at / pageSize
		switch {
		case i >= int64(len(b.pages)):
			return
		case b.pages[i] == nil:
		case next-at == pageSize:
			b.pages[i] = nil
		default:
			clear(b.writable(i).data[at%pageSize : next-at+at%pageSize])
		}
		at = next
	}
}

func (b *blob) truncate(size int64) {
	if size < b.size {
		keep := (size + pageSize - 1) / pageSize
		if keep < int64(len(b.pages)) {
			clear(b.pages[keep:])
			b.pages = b.pages[:keep]
		}
		b.zero(size, keep*pageSize)
	}
	b.size = size
}

// setPage makes page i equal to that of another blob.
func (b *blob) setPage(i int64, from *blob) {
	if i < int64(len(from.pages)) && from.pages[i] != nil {
		b.writable(i).data = from.pages[i].data
	} else if i < int64(len(b.pages)) {
		b.pages[i] = nil
	}
}

func (b *blob) writable(i int64) *page {
	if i >= int64(len(b.pages)) {
		b.pages = slices.Grow(b.pages, int(i)+1-len(b.pages))[:i+1]
	}
	p := b.pages[i]
	switch {
	case p == nil:
		p = &page{owner: b.mine}
	case p.owner != b.mine:
		p = &page{owner: b.mine, data: p.data}
	}
	b.pages[i] = p
	return p
}
