package dropfs_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/dropfs"
)

const (
	childEnv = "RUNNEL_DROPFS_TEST_CHILD"
	dirEnv   = "RUNNEL_DROPFS_TEST_DIR"
)

// The test binary is also the process that gets killed.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := child(name, os.Getenv(dirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child runs one scenario and then waits for its death, with all files open.
func child(name, dir string) error {
	fsys, err := dropfs.New(dir)
	if err != nil {
		return err
	}
	if name == "journal" {
		return appendForever(fsys, dir)
	}
	for _, s := range scenarios {
		if s.name != name {
			continue
		}
		p := &process{FS: fsys, dir: dir}
		s.run(p)
		if p.err != nil {
			return p.err
		}
		fmt.Fprintln(os.Stdout, "done")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	return fmt.Errorf("no scenario %q", name)
}

// process is a program on dropfs that stops at its first error.
type process struct {
	vfs.FS
	dir string
	err error
}

func (p *process) at(name string) string { return filepath.Join(p.dir, name) }

func (p *process) do(err error) { p.err = errors.Join(p.err, err) }

func (p *process) write(f vfs.File, s string, off int64) {
	_, err := f.WriteAt([]byte(s), off)
	p.do(err)
}

func (p *process) create(name, content string) vfs.File {
	f, err := p.Create(p.at(name))
	p.do(err)
	p.write(f, content, 0)
	return f
}

// durable creates a file that survives.
func (p *process) durable(name, content string) vfs.File {
	f := p.create(name, content)
	p.do(f.Sync())
	p.do(p.SyncDir(filepath.Dir(p.at(name))))
	return f
}

func (p *process) syncVolume() {
	v, err := p.OpenVolume(p.dir)
	p.do(err)
	p.do(v.Sync())
	p.do(v.Close())
}

type files = map[string]string

var scenarios = []struct {
	name string
	run  func(p *process)
	want files
}{
	{"nothing synced", func(p *process) {
		p.create("f", "data")
		p.do(p.MkdirAll(p.at("d/e")))
		p.create("d/e/g", "data")
	}, files{}},
	{"synced", func(p *process) { p.durable("f", "data") }, files{"f": "data"}},
	{"bytes without a name", func(p *process) { p.do(p.create("f", "data").Sync()) }, files{}},
	{"a name without bytes", func(p *process) {
		p.create("f", "data")
		p.do(p.SyncDir(p.dir))
	}, files{"f": ""}},
	{"closed without sync", func(p *process) {
		p.do(p.durable("f", "old").Close())
		f, err := p.OpenRW(p.at("f"))
		p.do(err)
		p.write(f, "new and longer", 0)
		p.do(f.Close())
	}, files{"f": "old"}},
	{"unsynced append and truncate", func(p *process) {
		p.write(p.durable("f", "data"), " more", 4)
		p.do(p.durable("g", "data").Truncate(1))
	}, files{"f": "data", "g": "data"}},
	{"synced append and truncate", func(p *process) {
		f, g := p.durable("f", "data"), p.durable("g", "data")
		p.write(f, " more", 4)
		p.do(f.Sync())
		p.do(g.Truncate(1))
		p.do(g.Sync())
	}, files{"f": "data more", "g": "d"}},
	{"writeback is no sync", func(p *process) {
		f := p.durable("f", "data")
		p.write(f, "x", 0)
		p.do(f.StartWriteback(0, 1))
	}, files{"f": "data"}},
	{"unsynced rename", func(p *process) {
		p.durable("f", "old")
		p.durable("tmp", "new")
		p.do(p.Rename(p.at("tmp"), p.at("f")))
	}, files{"f": "old", "tmp": "new"}},
	{"synced rename", func(p *process) {
		p.durable("f", "old")
		p.do(p.create("tmp", "new").Sync())
		p.do(p.Rename(p.at("tmp"), p.at("f")))
		p.do(p.SyncDir(p.dir))
	}, files{"f": "new"}},
	{"rename before sync", func(p *process) {
		p.durable("f", "old")
		p.create("tmp", "new")
		p.do(p.Rename(p.at("tmp"), p.at("f")))
		p.do(p.SyncDir(p.dir))
	}, files{"f": ""}},
	{"unsynced remove", func(p *process) {
		p.durable("f", "data")
		p.do(p.Remove(p.at("f")))
	}, files{"f": "data"}},
	{"synced remove", func(p *process) {
		p.durable("f", "data")
		p.do(p.Remove(p.at("f")))
		p.do(p.SyncDir(p.dir))
	}, files{}},
	{"created and removed, then synced", func(p *process) {
		p.do(p.create("f", "data").Close())
		p.do(p.Remove(p.at("f")))
		p.do(p.SyncDir(p.dir))
	}, files{}},
	{"tree removed without sync", func(p *process) {
		p.do(p.MkdirAll(p.at("d/e")))
		p.durable("d/e/f", "data")
		p.do(p.RemoveAll(p.at("d")))
	}, files{"d": "/", "d/e": "/", "d/e/f": "data"}},
	{"directory renamed", func(p *process) {
		p.do(p.MkdirAll(p.at("d")))
		f := p.durable("d/f", "data")
		p.do(p.Rename(p.at("d"), p.at("e")))
		p.write(f, "DATA", 0)
		p.do(f.Sync()) // the file is still below the old name on the disk
		p.durable("e/g", "more")
	}, files{"d": "/", "d/f": "DATA", "d/g": "more"}},
	{"volume", func(p *process) {
		p.do(p.MkdirAll(p.at("d")))
		f := p.create("d/f", "one")
		p.do(p.create("tmp", "two").Close())
		p.do(p.Rename(p.at("tmp"), p.at("d/g")))
		p.syncVolume()
		p.write(f, "lost", 0)
		p.create("h", "lost")
	}, files{"d": "/", "d/f": "one", "d/g": "two"}},
	{"lock", func(p *process) {
		_, err := p.Lock(p.at("lock"))
		p.do(err)
		p.create("f", "data")
	}, files{"lock": ""}},
}

// start runs the test binary as the process to kill.
func start(t *testing.T, name, dir string) (cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	ok(t, err)
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+name, dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // its end wakes the child, should this process die
	ok(t, err)
	pipe, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	return cmd, bufio.NewReader(pipe)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	ok(t, cmd.Process.Kill()) // SIGKILL
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("the process was not killed: %v", err)
	}
}

func TestKill(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd, out := start(t, s.name, dir)
			if line, err := out.ReadString('\n'); err != nil || line != "done\n" {
				t.Fatalf("the process said %q, %v; %v", line, err, cmd.Wait())
			}
			kill(t, cmd)
			for name, fsys := range map[string]vfs.FS{"disk": vfs.OS(), "dropfs": open(t, dir)} {
				if diff := cmp.Diff(s.want, walk(t, fsys, dir)); diff != "" {
					t.Errorf("%s after the kill (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// appendForever appends numbers in batches, syncs, and only then tells.
func appendForever(fsys vfs.FS, dir string) error {
	name := filepath.Join(dir, "journal")
	f, err := fsys.OpenRW(name)
	if err != nil {
		if f, err = fsys.Create(name); err != nil {
			return err
		}
		if err = fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	for next := size / 8; ; {
		for range 700 { // more than a page
			if _, err := f.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(next)), next*8); err != nil {
				return err
			}
			next++
		}
		if err := f.Sync(); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, next)
	}
}

// A process that is killed at any moment, again and again, has lost nothing of
// what it said was synced.
func TestKillUnderLoad(t *testing.T) {
	dir := t.TempDir()
	acked := int64(0)
	for round := range 8 {
		cmd, out := start(t, "journal", dir)
		for range 1 + 3*round {
			line, err := out.ReadString('\n')
			ok(t, err)
			acked, err = strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			ok(t, err)
		}
		kill(t, cmd)
		content := walk(t, vfs.OS(), dir)["journal"]
		if int64(len(content)) < acked*8 {
			t.Fatalf("round %d: %d bytes, acknowledged were %d", round, len(content), acked*8)
		}
		for i := range acked {
			if got := binary.BigEndian.Uint64([]byte(content[i*8:])); got != uint64(i) {
				t.Fatalf("round %d: entry %d is %d", round, i, got)
			}
		}
		ok(t, os.Truncate(filepath.Join(dir, "journal"), acked*8)) // as a recovery would
	}
}
