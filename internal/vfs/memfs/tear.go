package memfs

import "math/rand/v2"

// sectorSize is what a disk writes as a whole.
const sectorSize = 512

// tear decides how far the changes 1…n of a file got. The inode (size,
// truncations) is journaled, so it saw the first meta changes and no others.
// Each sector was written back at a time of its own: it holds what it held
// after its own number of changes.
type tear struct {
	n, meta int
	mode    int
	seed    uint64
}

const (
	tearNone   = iota // nothing was written back
	tearAll           // everything was
	tearPrefix        // in order, and the last write is torn
	tearChaos         // each sector by itself
	tearModes
)

func newTear(rng *rand.Rand, n int) tear {
	t := tear{n: n, mode: rng.IntN(tearModes), seed: rng.Uint64()}
	switch t.mode {
	case tearNone:
	case tearAll:
		t.meta = n
	default:
		t.meta = rng.IntN(n + 1)
	}
	return t
}

// reached is the number of changes that a sector has seen.
func (t tear) reached(sector int64) int {
	h := mix(t.seed + uint64(sector)*0x9E3779B97F4A7C15)
	switch t.mode {
	case tearNone:
		return 0
	case tearAll:
		return t.n
	case tearPrefix:
		return min(t.n, t.meta+int(h&1))
	}
	switch h & 3 {
	case 0:
		return 0
	case 1:
		return int((h >> 2) % uint64(t.n+1))
	default:
		return t.n
	}
}

// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}

// torn returns what could be on the disk after a power failure now.
func (f *inode) torn(rng *rand.Rand) blob {
	out := f.durable.snapshot()
	if len(f.changes) == 0 {
		return out
	}
	w := writeback{out: &out, tear: newTear(rng, len(f.changes))}
	before := f.durable.size
	size := before
	for i, c := range f.changes {
		switch {
		case !c.truncate:
			w.write(i+1, c)
		case c.size < before:
			w.shrink(i+1, c.size)
		}
		if i < w.tear.meta {
			size = c.size
		} else if i == w.tear.meta && c.size > size && w.tear.mode != tearNone {
			size = grown(rng, size, c.size)
		}
		before = c.size
	}
	out.truncate(size)
	return out
}

// grown is a size on the way from one to the other: a large write reaches the
// inode piece by piece.
func grown(rng *rand.Rand, from, to int64) int64 {
	first := from/sectorSize + 1
	count := (to-1)/sectorSize - first + 1
	if count <= 0 || rng.IntN(2) == 0 {
		return from
	}
	return (first + rng.Int64N(count)) * sectorSize
}

// writeback replays changes onto the durable bytes as far as the tear says.
type writeback struct {
	out  *blob
	tear tear
	// Truncations that the inode never saw. Their pages were dropped from the
	// cache, so the old bytes stay, unless a later write fills the page anew,
	// with zeros around it.
	lost        []lostCut
	lastWritten map[int64]int // sector → the last change written to it
}

type lostCut struct {
	change int
	size   int64
}

func (w *writeback) write(i int, c change) {
	end := c.off + int64(len(c.data))
	for sector := c.off / sectorSize; sector*sectorSize < end; sector++ {
		if w.tear.reached(sector) < i {
			continue
		}
		if len(w.lost) > 0 {
			w.dropOldBytes(i, sector)
		}
		from := max(c.off, sector*sectorSize)
		to := min(end, (sector+1)*sectorSize)
		w.out.writeAt(c.data[from-c.off:to-c.off], from)
	}
}

func (w *writeback) dropOldBytes(i int, sector int64) {
	start := sector * sectorSize
	for _, cut := range w.lost {
		if cut.size <= start && cut.change > w.lastWritten[sector] {
			w.out.zero(start, start+sectorSize)
			break
		}
	}
	w.lastWritten[sector] = i
}

func (w *writeback) shrink(i int, size int64) {
	if i <= w.tear.meta {
		w.out.truncate(min(size, w.out.size))
		return
	}
	if w.lastWritten == nil {
		w.lastWritten = map[int64]int{}
	}
	w.lost = append(w.lost, lostCut{i, size})
	sector := size / sectorSize
	if size%sectorSize != 0 && w.tear.reached(sector) >= i {
		w.out.zero(size, (sector+1)*sectorSize)
	}
}
