package memfs_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// sectors makes content of whole sectors, one letter each.
func sectors(letters string) string {
	var s strings.Builder
	for _, c := range letters {
		if c == '.' {
			c = 0
		}
		s.WriteString(strings.Repeat(string(c), 512))
	}
	return s.String()
}

func TestUnsyncedAppend(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("A"))
	write(t, f, sectors("BC"), 512)
	wantOutcomes(t, outcomes(t, m, "f"),
		sectors("A"), sectors("ABC"), // lost, kept
		sectors("AB"), sectors("A."), // the size got half-way
		sectors("AB."), sectors("A.C"), sectors("A..")) // torn, reordered, size ahead of data
	if got := read(t, m.StrictCrashClone(), "f"); got != sectors("A") {
		t.Errorf("strict clone holds %d bytes", len(got))
	}
	ok(t, f.Sync())
	wantOutcomes(t, outcomes(t, m, "f"), sectors("ABC"))
}

func TestUnsyncedOverwrite(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("AAA"))
	write(t, f, sectors("BB"), 256) // the middle sector whole, halves of the others
	half := strings.Repeat
	first := [2]string{sectors("A"), half("A", 256) + half("B", 256)}
	last := [2]string{sectors("A"), half("B", 256) + half("A", 256)}
	var want []string
	for i := range 8 {
		want = append(want, first[i&1]+sectors([]string{"A", "B"}[i>>1&1])+last[i>>2])
	}
	wantOutcomes(t, outcomes(t, m, "f"), want...)
}

// Each version that a sector ever had since the sync may be the one on disk.
func TestRewrittenSector(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", "a")
	write(t, f, "b", 0)
	write(t, f, "c", 0)
	wantOutcomes(t, outcomes(t, m, "f"), "a", "b", "c")
}

func TestUnsyncedTruncate(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("AB")+"tail")
	ok(t, f.Truncate(600))
	kept := sectors("AB")[:600]
	wantOutcomes(t, outcomes(t, m, "f"),
		sectors("AB")+"tail", kept,
		kept+strings.Repeat("\x00", 424)+"tail") // the sector was written, the size was not
	ok(t, f.Sync())
	wantOutcomes(t, outcomes(t, m, "f"), kept)
}

// The hazard of appending behind a truncation that is not synced: the new
// record is followed by old bytes that look valid.
func TestWriteAfterUnsyncedTruncate(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("ABCD"))
	ok(t, f.Truncate(512))
	write(t, f, sectors("x"), 512)
	got := outcomes(t, m, "f")
	wantOutcomes(t, got,
		sectors("ABCD"), // nothing happened
		sectors("AxCD"), // old bytes behind the new ones
		sectors("A"),    // truncated only
		sectors("A."),   // size ahead of data
		sectors("Ax"))   // all of it
	m2 := memfs.New()
	f = durable(t, m2, "f", sectors("ABCD"))
	ok(t, f.Truncate(512))
	ok(t, f.Sync())
	write(t, f, sectors("x"), 512)
	wantOutcomes(t, outcomes(t, m2, "f"), sectors("A"), sectors("A."), sectors("Ax"))
}

// Bytes cut off by a truncation that took effect never come back.
func TestTruncateAndExtend(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("AB"))
	ok(t, f.Truncate(512))
	ok(t, f.Truncate(1024))
	wantOutcomes(t, outcomes(t, m, "f"), sectors("AB"), sectors("A"), sectors("A."))
}

// A write that refills a sector which a truncation had dropped carries zeros
// around it, and never the old bytes.
func TestRefilledSector(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", sectors("AB"))
	ok(t, f.Truncate(512))
	write(t, f, "x", 512+100)
	refilled := strings.Repeat("\x00", 100) + "x"
	wantOutcomes(t, outcomes(t, m, "f"),
		sectors("AB"), sectors("A"), sectors("A")+strings.Repeat("\x00", 101), sectors("A")+refilled,
		sectors("A")+refilled+strings.Repeat("\x00", 411)) // written, the size not
}

func TestFailedSyncMarksPagesClean(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", "old")
	write(t, f, "NEW", 0)
	f.(vfs.DirtyDropper).DropDirty()
	ok(t, f.Sync()) // the retry succeeds, and proves nothing
	if got := read(t, m, "f"); got != "NEW" {
		t.Errorf("the process reads %q", got)
	}
	wantOutcomes(t, outcomes(t, m, "f"), "old", "NEW")
	if got := read(t, m.StrictCrashClone(), "f"); got != "old" {
		t.Errorf("strict clone holds %q", got)
	}
	v, err := m.OpenVolume("/")
	ok(t, err)
	ok(t, v.Sync()) // nor does a sync of everything
	wantOutcomes(t, outcomes(t, m, "f"), "old", "NEW")
	write(t, f, "NEW", 0) // rewriting in place does
	ok(t, f.Sync())
	wantOutcomes(t, outcomes(t, m, "f"), "NEW")
}

// After a failed sync, a later append to another page is durable while the
// lost write before it is not: a hole within acknowledged data.
func TestHoleAfterFailedSync(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", "")
	page := strings.Repeat("P", 4096)
	write(t, f, page, 0)
	v, err := m.OpenVolume("/")
	ok(t, err)
	v.(vfs.DirtyDropper).DropDirty()
	write(t, f, "tail", 4096)
	ok(t, f.Sync())
	if got, want := read(t, m.StrictCrashClone(), "f"), strings.Repeat("\x00", 4096)+"tail"; got != want {
		t.Errorf("strict clone holds %d bytes, %.10q…", len(got), got)
	}
	got := outcomes(t, m, "f")
	if got[page+"tail"] == 0 || got[strings.Repeat("\x00", 4096)+"tail"] == 0 {
		t.Error("the lost page is never there, or always")
	}
	for content := range got {
		if !strings.HasSuffix(content, "tail") || len(content) != 4100 {
			t.Errorf("synced bytes are gone: %d bytes", len(content))
		}
	}
	write(t, f, "x", 10) // dirties the whole page again
	ok(t, f.Sync())
	wantOutcomes(t, outcomes(t, m, "f"), page[:10]+"x"+page[11:]+"tail")
}

// A truncation between the failed sync and the next one limits what is
// uncertain.
func TestTruncateAfterFailedSync(t *testing.T) {
	m := memfs.New()
	f := durable(t, m, "f", "")
	write(t, f, sectors("ABCDEFGHIJKL"), 0)
	f.(vfs.DirtyDropper).DropDirty()
	ok(t, f.Truncate(4096+512))
	ok(t, f.Sync())
	for content := range outcomes(t, m, "f") {
		if len(content) != 4096+512 || content[4096:] != sectors("I") { // the cut page was written
			t.Fatalf("%d bytes, sector 8 is %.3q", len(content), content[4096:])
		}
	}
}

func TestUnsyncedEntry(t *testing.T) {
	m := memfs.New()
	f := create(t, m, "f", "data")
	wantOutcomes(t, outcomes(t, m, "f"), absent, "", "data", "\x00\x00\x00\x00")
	ok(t, f.Sync())
	wantOutcomes(t, outcomes(t, m, "f"), absent, "data") // bytes safe, name not
	if got := read(t, m.StrictCrashClone(), "f"); got != absent {
		t.Errorf("strict clone holds %q", got)
	}
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "f"), "data")

	g := create(t, m, "g", "data")
	ok(t, m.SyncDir("/")) // name safe, bytes not
	if got := read(t, m.StrictCrashClone(), "g"); got != "" {
		t.Errorf("strict clone holds %q", got)
	}
	ok(t, g.Sync())
	wantOutcomes(t, outcomes(t, m, "g"), "data")
}

func TestUnsyncedRemove(t *testing.T) {
	m := memfs.New()
	durable(t, m, "f", "data")
	ok(t, m.Remove("f"))
	wantOutcomes(t, outcomes(t, m, "f"), absent, "data")
	create(t, m, "f", "")
	wantOutcomes(t, outcomes(t, m, "f"), absent, "data", "")
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "f"), "")
}

func TestRenameIsAtomic(t *testing.T) {
	m := memfs.New()
	durable(t, m, "f", "old")
	durable(t, m, "tmp", "new")
	ok(t, m.Rename("tmp", "f"))
	wantOutcomes(t, outcomes(t, m, "f", "tmp"), "old|new", "new|"+absent)
	if got := read(t, m.StrictCrashClone(), "f"); got != "old" {
		t.Errorf("strict clone holds %q", got)
	}
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "f", "tmp"), "new|"+absent)
}

// The usual recipe with its fsync forgotten: the new name is there and the
// bytes are not.
func TestRenameBeforeSync(t *testing.T) {
	m := memfs.New()
	durable(t, m, "f", "old")
	create(t, m, "tmp", "new")
	ok(t, m.Rename("tmp", "f"))
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "f"), "", "new", "\x00\x00\x00")
}

func TestUnsyncedDirectory(t *testing.T) {
	m := memfs.New()
	ok(t, m.MkdirAll("/a/b"))
	durable(t, m, "/a/b/f", "data") // synced, in a directory that is not
	wantOutcomes(t, outcomes(t, m, "/a/b/f"), absent, "data")
	ok(t, m.SyncDir("/a"))
	if got := read(t, m.StrictCrashClone(), "/a/b/f"); got != absent {
		t.Errorf("strict clone holds %q", got)
	}
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "/a/b/f"), "data")
}

func TestRenameBetweenDirectories(t *testing.T) {
	setup := func() *memfs.Mem {
		m := memfs.New()
		ok(t, m.MkdirAll("/a"))
		ok(t, m.MkdirAll("/b"))
		durable(t, m, "/a/f", "data")
		m.SyncAll()
		ok(t, m.Rename("/a/f", "/b/g"))
		return m
	}
	m := setup()
	wantOutcomes(t, outcomes(t, m, "/a/f", "/b/g"), "data|"+absent, absent+"|data")
	ok(t, m.SyncDir("/a")) // the source alone decides nothing
	wantOutcomes(t, outcomes(t, m, "/a/f", "/b/g"), "data|"+absent, absent+"|data")
	ok(t, m.SyncDir("/b"))
	wantOutcomes(t, outcomes(t, m, "/a/f", "/b/g"), absent+"|data")

	m = setup() // a new file under the old name needs the rename
	durable(t, m, "/a/f", "other")
	wantOutcomes(t, outcomes(t, m, "/a/f", "/b/g"), "other|data")
}

// What was moved out of a directory is not lost with it.
func TestRemoveDirAfterMove(t *testing.T) {
	m := memfs.New()
	ok(t, m.MkdirAll("/d"))
	durable(t, m, "/d/f", "data")
	m.SyncAll()
	ok(t, m.MkdirAll("/new"))
	ok(t, m.Rename("/d/f", "/new/f"))
	wantOutcomes(t, outcomes(t, m, "/d/f", "/new/f"), "data|"+absent, absent+"|data")
	ok(t, m.RemoveAll("/d"))
	wantOutcomes(t, outcomes(t, m, "/d/f", "/new/f"), "data|"+absent, absent+"|data")
	ok(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(t, m, "/d/f", "/new/f"), absent+"|data")
}

func TestVolumeSync(t *testing.T) {
	m := memfs.New()
	ok(t, m.MkdirAll("/a/b"))
	durable(t, m, "/a/old", "old")
	f := create(t, m, "/a/b/f", "one")
	create(t, m, "/a/tmp", "two")
	ok(t, m.Rename("/a/tmp", "/a/b/g"))
	ok(t, m.Remove("/a/old"))
	v, err := m.OpenVolume("/a")
	ok(t, err)
	ok(t, v.Sync())
	want := "one|two|" + absent
	wantOutcomes(t, outcomes(t, m, "/a/b/f", "/a/b/g", "/a/old"), want)
	write(t, f, "three", 0)
	clone := m.StrictCrashClone()
	if got := read(t, clone, "/a/b/f"); got != "one" {
		t.Errorf("strict clone holds %q", got)
	}
}

func TestCloneIsDeterministic(t *testing.T) {
	m := memfs.New()
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		f := create(t, m, name, sectors("ABCDEF"))
		ok(t, f.Sync())
		write(t, f, sectors("uvwxyz"), 1024)
	}
	all := func(seed uint64) string {
		clone := m.CrashClone(rand.New(rand.NewPCG(seed, 0)))
		var s strings.Builder
		for _, name := range names {
			s.WriteString(read(t, clone, name) + "|")
		}
		return s.String()
	}
	different := map[string]bool{}
	for seed := range uint64(50) {
		first := all(seed)
		if all(seed) != first {
			t.Fatalf("seed %d gives two clones", seed)
		}
		different[first] = true
	}
	if len(different) < 25 {
		t.Errorf("50 seeds give %d clones", len(different))
	}
}
