package namespace_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"runnel.dev/runnel/internal/vfs/namespace"
)

type tree = namespace.Tree[string]

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// build runs a script of "create a", "mkdir d", "remove a", "rename a b".
func build(t *testing.T, tr *tree, script string) {
	t.Helper()
	for line := range strings.SplitSeq(script, ", ") {
		var err error
		switch words := strings.Fields(line); words[0] {
		case "create":
			_, err = tr.Create(words[1], words[1])
		case "mkdir":
			err = tr.MkdirAll(words[1], func() string { return words[1] })
		case "remove":
			_, err = tr.RemoveAll(words[1])
		case "rename":
			_, err = tr.Rename(words[1], words[2])
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

func describe(op *namespace.Op[string]) string {
	switch op.Kind {
	case namespace.Link:
		return "+" + op.To.Name
	case namespace.Unlink:
		return "-" + op.From.Name
	default:
		return op.From.Name + ">" + op.To.Name
	}
}

func TestSyncDirCommitsWhatItNeeds(t *testing.T) {
	for _, c := range []struct {
		script string
		dir    string
		parent bool // ParentFirst
		want   string
		left   int
	}{
		{"create a, mkdir d, create d/b", "/", false, "+a +d", 1},
		{"create a, mkdir d, create d/b", "d", false, "+b", 2},
		{"create a, mkdir d, create d/b", "d", true, "+d +b", 1},
		{"create a, rename a b, create a, remove b", "/", false, "+a a>b +a -b", 0},
		{"mkdir d, create a, rename a d/b", "d", false, "+d +a a>b", 0},               // a move needs its source and its directory
		{"mkdir d, create d/a, rename d/a b", "d", false, "+a", 2},                    // it belongs to its destination
		{"mkdir d, create d/a, rename d/a b, create d/a", "d", false, "+a a>b +a", 1}, // unless its old name is taken again
		{"mkdir d, create d/a, rename d/a b, remove d", "/", false, "+d +a a>b -d", 0},
		{"mkdir d/e, create x, rename d f, rename x f/e/y", "f/e", false, "+d +e +x d>f x>y", 0},
	} {
		tr := namespace.New("root", namespace.Config[string]{ParentFirst: c.parent})
		build(t, tr, c.script)
		var got []string
		ok(t, tr.SyncDir(c.dir, func(op *namespace.Op[string]) error {
			got = append(got, describe(op))
			return nil
		}))
		if s := strings.Join(got, " "); s != c.want || tr.Pending() != c.left {
			t.Errorf("%s; sync %s (parent first: %v):\n got %q, %d left\nwant %q, %d left",
				c.script, c.dir, c.parent, s, tr.Pending(), c.want, c.left)
		}
	}
}

// A sync that fails keeps the rest, and a later one goes on from there.
func TestCommitStopsAtError(t *testing.T) {
	tr := namespace.New("root", namespace.Config[string]{})
	build(t, tr, "create a, create b, create c")
	var got []string
	apply := func(op *namespace.Op[string]) error {
		if len(got) == 1 {
			got = append(got, "failed")
			return syscall.EIO
		}
		got = append(got, describe(op))
		return nil
	}
	if err := tr.SyncAll(apply); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	ok(t, tr.SyncAll(apply))
	if want := []string{"+a", "failed", "+b", "+c"}; !slices.Equal(got, want) || tr.Pending() != 0 {
		t.Errorf("got %q, %d left", got, tr.Pending())
	}
}

// All sets of survivors of a small history are those that the dependencies
// allow.
func TestSurvivors(t *testing.T) {
	tr := namespace.New("root", namespace.Config[string]{})
	build(t, tr, "create a, rename a b, create c")
	seen := map[string]bool{}
	for bits := range 8 {
		var got []string
		i := 0
		for _, op := range tr.Survivors(func() bool { i++; return bits>>(i-1)&1 == 1 }) {
			got = append(got, describe(op))
		}
		seen[strings.Join(got, " ")] = true
	}
	want := map[string]bool{"": true, "+a": true, "+a a>b": true, "+c": true, "+a +c": true, "+a a>b +c": true}
	if len(seen) != len(want) {
		t.Errorf("got %v", seen)
	}
	for s := range want {
		if !seen[s] {
			t.Errorf("never seen: %q", s)
		}
	}
	if tr.Pending() != 3 {
		t.Error("looking at survivors committed something")
	}
}

func TestLoadsWhenNeeded(t *testing.T) {
	var tr *tree
	var loads []string
	tr = namespace.New("disk", namespace.Config[string]{Load: func(dir *namespace.Node[string]) error {
		loads = append(loads, dir.Name())
		switch dir.Name() {
		case "":
			tr.Insert(dir, "d", true, "dir")
			tr.Insert(dir, "bad", true, "dir")
			tr.Insert(dir, "f", false, "file")
		case "d":
			tr.Insert(dir, "g", false, "file")
		default:
			return fmt.Errorf("load %s: %w", dir.Name(), syscall.EIO)
		}
		return nil
	}})
	n, err := tr.Lookup("d/g")
	ok(t, err)
	if n.IsDir() || n.Data != "file" || !n.Linked() {
		t.Errorf("got %+v", n)
	}
	ok(t, tr.MkdirAll("d/new", func() string { return "" }))
	if _, err := tr.Lookup("d/new/x"); !errors.Is(err, syscall.ENOENT) { // a new directory is empty
		t.Errorf("got %v", err)
	}
	if _, err := tr.Lookup("bad/x"); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	if err := tr.SyncDir("bad", nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	if _, err := tr.Remove("d"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("got %v", err)
	}
	if want := []string{"", "d", "bad", "bad"}; !slices.Equal(loads, want) {
		t.Errorf("loaded %q", loads)
	}
	for _, err := range []error{
		func() error { _, err := tr.Remove("/"); return err }(),
		func() error { _, err := tr.Rename("/", "d/x"); return err }(),
	} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("the root: %v", err)
		}
	}
}
