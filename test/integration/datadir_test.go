package integration

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

func itoa(n int) string { return strconv.Itoa(n) }

func topicDir(b *testcluster.Broker, id client.TopicID) string {
	return filepath.Join(b.DataDir(), id.String())
}

// list returns the names in a directory of a broker, none when it does not exist.
func list(t *testing.T, b *testcluster.Broker, dir string) (names []string) {
	t.Helper()
	entries, err := b.FS.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// tree is every file below dir with its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDirectoryInUseIsRefused(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	first := c.Broker(1)
	for _, id := range []int32{1, 2} {
		second := c.AddBroker(id)
		second.Config.Storage.DataDir = first.DataDir()
		second.Launch()
		if err := second.Wait(); !errors.Is(err, storage.ErrLocked) {
			t.Errorf("broker %d on a directory in use: %v", id, err)
		}
	}
	if got := produce(t, cl, "t", 0, "still here"); got[0] != 0 || !first.Running() {
		t.Errorf("the first broker suffers: offset %d", got[0])
	}
}

func TestDirectoryOfAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	here, elsewhere := start(t), start(t)
	cl := here.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(3)...)
	b := here.Broker(1)
	b.Stop()
	before := tree(t, b.DataDir())

	stranger := elsewhere.AddBroker(2)
	stranger.Config.Storage.DataDir = b.DataDir()
	stranger.Launch()
	err := stranger.Wait()
	var foreign *metadata.ForeignEtcdError
	if !errors.As(err, &foreign) || foreign.What != "cluster id" || foreign.Want == foreign.Got {
		t.Errorf("a cluster that exists: %v", err)
	}
	// The same without the saved position: the directory itself says whose it is.
	if err := os.Rename(filepath.Join(b.DataDir(), "position"), filepath.Join(t.TempDir(), "position")); err != nil {
		t.Fatal(err)
	}
	stranger.Launch()
	var dir *storage.ForeignClusterError
	if err := stranger.Wait(); !errors.As(err, &dir) || dir.Found == dir.Expected || dir.Dir != b.DataDir() {
		t.Errorf("without a position: %v", err)
	}
	delete(before, filepath.Join(b.DataDir(), "position"))
	if after := tree(t, b.DataDir()); !equal(before, after) {
		t.Errorf("the refused directory was changed:\n%v\n%v", keys(before), keys(after))
	}
	b.Start()
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != 3 {
		t.Errorf("%d records are left", len(got))
	}
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestTakenBrokerIDIsRefused(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	first := c.Broker(1)
	second := c.AddBroker(1) // with a directory, and so a storage ID, of its own
	second.Launch()
	err := second.Wait()
	var conflict *metadata.BrokerConflictError
	if !errors.As(err, &conflict) || conflict.BrokerID != 1 || conflict.Live == conflict.Own {
		t.Errorf("a second broker 1: %v", err)
	}
	if got := produce(t, cl, "t", 0, "still here"); got[0] != 0 || !first.Running() {
		t.Errorf("the first broker suffers: offset %d", got[0])
	}
}

// A copy of the directory has the same storage ID: the newer process wins, and the older one must not go on.
func TestSupersededBrokerExits(t *testing.T) {
	t.Parallel()
	c := start(t)
	create(t, c.Client(), "t", 1, client.TopicConfig{})
	first := c.Broker(1)
	second := c.AddBroker(1)
	first.Stop() // a running broker renames files under the copy
	if err := os.CopyFS(second.DataDir(), os.DirFS(first.DataDir())); err != nil {
		t.Fatal(err)
	}
	first.Start()
	second.Start()
	var superseded *metadata.SupersededError
	if err := first.Wait(); !errors.As(err, &superseded) || superseded.New <= superseded.Epoch {
		t.Errorf("the first broker ended with %v", err)
	}
	if got := produce(t, c.Client(), "t", 0, "from the second"); got[0] != 0 {
		t.Errorf("offset %d", got[0])
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(3)...)
	b := c.Broker(1)
	b.Stop()
	foreign := map[string]string{}
	for _, dir := range []string{"", "lost+found", "not-a-topic/0", topic.ID.String(), filepath.Join(topic.ID.String(), "0"), filepath.Join(topic.ID.String(), "7x")} {
		path := filepath.Join(b.DataDir(), dir)
		if err := os.MkdirAll(path, 0o750); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"notes.txt", "00000000000000000000.log.bak", ".hidden", "12x.log"} {
			file := filepath.Join(path, name)
			if err := os.WriteFile(file, []byte("mine: "+file), 0o600); err != nil {
				t.Fatal(err)
			}
			foreign[file] = "mine: " + file
		}
	}
	check := func(when string) {
		t.Helper()
		for file, want := range foreign {
			if got, err := os.ReadFile(file); err != nil || string(got) != want {
				t.Errorf("%s: %s holds %q, %v", when, file, got, err)
			}
		}
	}
	b.Start()
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != 3 {
		t.Errorf("%d records beside foreign files", len(got))
	}
	produce(t, cl, "t", 0, "more")
	b.Restart()
	check("after a restart")
}
