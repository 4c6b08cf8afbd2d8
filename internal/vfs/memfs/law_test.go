package memfs_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// walk returns the content of every file.
func walk(t testing.TB, m *memfs.Mem, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	list, err := m.ReadDir(dir)
	ok(t, err)
	for _, e := range list {
		name := path.Join(dir, e.Name)
		if e.IsDir {
			maps.Copy(files, walk(t, m, name))
		} else {
			files[name] = read(t, m, name)
		}
	}
	return files
}

// Laws of names, over random trees: whatever was lost or kept, no file has two
// names; and a file whose name was durable once, and that nobody removed or
// replaced, has exactly one.
func TestNamesLaw(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := memfs.New()
		id := 0
		live := map[string]bool{} // contents that must be found
		dir := func() string { return rapid.SampledFrom([]string{"/", "/a", "/b", "/a/c", "/b/a"}).Draw(rt, "dir") }
		name := func() string {
			return path.Join(dir(), rapid.SampledFrom([]string{"a", "b", "c", "x", "y"}).Draw(rt, "name"))
		}
		gone := func(names ...string) {
			for _, n := range names {
				if info, err := m.Stat(n); err != nil {
					continue
				} else if info.IsDir {
					for _, content := range walk(t, m, n) {
						delete(live, content)
					}
				} else {
					delete(live, read(t, m, n))
				}
			}
		}
		settle := func() { // what a strict clone has now is durable
			for _, content := range walk(t, m.StrictCrashClone(), "/") {
				live[content] = true
			}
			// … but files that are removed, and whose removal is not durable yet,
			// may go at any time.
			now := slices.Collect(maps.Values(walk(t, m, "/")))
			maps.DeleteFunc(live, func(content string, _ bool) bool { return !slices.Contains(now, content) })
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(*rapid.T) {
				id++
				f, err := m.Create(name())
				if err != nil {
					return
				}
				write(t, f, fmt.Sprintf("file %d", id), 0)
				ok(t, f.Sync())
				ok(t, f.Close())
			},
			"mkdir":  func(*rapid.T) { _ = m.MkdirAll(name()) },
			"remove": func(*rapid.T) { n := name(); gone(n); _ = m.RemoveAll(n) },
			"rename": func(*rapid.T) {
				from, to := name(), name()
				if err := m.Rename(from, to); err == nil && from != to {
					settle()
				}
			},
			"syncdir": func(*rapid.T) {
				if m.SyncDir(dir()) == nil {
					settle()
				}
			},
			"": func(*rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				clone := m.CrashClone(rand.New(rand.NewPCG(seed, 1)))
				count := map[string]int{}
				for n, content := range walk(t, clone, "/") {
					if count[content]++; count[content] > 1 {
						rt.Fatalf("%s has a second name %s", content, n)
					}
				}
				for content := range live {
					if count[content] != 1 {
						rt.Fatalf("%s has %d names", content, count[content])
					}
				}
			},
		})
	})
}

// Laws of bytes, over random histories of one file: a clone is never longer
// than the file ever was since the last sync, each sector holds bytes that it
// held at some time since then (or zeros, before its first write), and right
// after a sync every clone is the file.
func TestBytesLaw(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := memfs.New()
		f := durable(t, m, "f", "")
		history := []string{""} // since the last sync
		version := byte('a')
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(*rapid.T) {
				off := rapid.Int64Range(0, 3000).Draw(rt, "off")
				p := make([]byte, rapid.IntRange(1, 2000).Draw(rt, "len"))
				for i := range p {
					p[i] = version
				}
				version++
				write(t, f, string(p), off)
				history = append(history, read(t, m, "f"))
			},
			"truncate": func(*rapid.T) {
				ok(t, f.Truncate(rapid.Int64Range(0, 4000).Draw(rt, "size")))
				history = append(history, read(t, m, "f"))
			},
			"sync": func(*rapid.T) {
				ok(t, f.Sync())
				history = []string{read(t, m, "f")}
			},
			"": func(*rapid.T) {
				if got := read(t, m.StrictCrashClone(), "f"); got != history[0] {
					rt.Fatalf("strict clone holds %d bytes, synced were %d", len(got), len(history[0]))
				}
				seed := rapid.Uint64().Draw(rt, "seed")
				checkTorn(rt, read(t, m.CrashClone(rand.New(rand.NewPCG(seed, 1))), "f"), history)
			},
		})
	})
}

func checkTorn(rt *rapid.T, got string, history []string) {
	longest := 0
	for _, h := range history {
		longest = max(longest, len(h))
	}
	if len(got) > longest {
		rt.Fatalf("%d bytes, the file never had more than %d", len(got), longest)
	}
	for start := 0; start < len(got); start += 512 {
		end := min(start+512, len(got))
		legal := got[start:end] == string(make([]byte, end-start)) && len(history) > 1
		for _, h := range history {
			legal = legal || got[start:end] == window(h, start, end)
			// Truncations that the inode saw cut an older version of the sector.
			for _, cut := range history {
				legal = legal || len(cut) > start && len(cut) < end &&
					got[start:end] == window(window(h, 0, len(cut)), start, end)
			}
		}
		if !legal {
			rt.Fatalf("sector at %d was never like this: %q", start, got[start:end])
		}
	}
}

// window is a part of s, with zeros behind its end.
func window(s string, from, to int) string {
	out := make([]byte, to-from)
	if from < len(s) {
		copy(out, s[from:min(to, len(s))])
	}
	return string(out)
}

var _ vfs.FS = (*memfs.Mem)(nil)
