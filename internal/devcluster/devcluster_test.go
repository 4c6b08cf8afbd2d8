package devcluster

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// begin starts a cluster whose processes are this test's executable.
func begin(t *testing.T, o Options) *Cluster {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Executable, o.Tied = t.TempDir(), exe, true
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections() // what it is by default
	})
	return c
}

func running(t *testing.T, c *Cluster) (names []string) {
	t.Helper()
	fresh, err := Open(c.Dir(), c.executable)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range fresh.Processes {
		if p.Alive() {
			names = append(names, p.Name)
		}
	}
	return names
}

func TestStartAndStop(t *testing.T) {
	c := begin(t, Options{Brokers: 2, EtcdMembers: 3})
	all := []string{"etcd-1", "etcd-2", "etcd-3", "1", "2"}
	if got := running(t, c); !slices.Equal(got, all) {
		t.Fatalf("running %v, want %v", got, all)
	}
	if len(c.Addresses()) != 2 || !slices.Equal(c.Brokers(), all[3:]) || !slices.Equal(c.Etcd(), all[:3]) {
		t.Errorf("addresses %v, brokers %v, etcd %v", c.Addresses(), c.Brokers(), c.Etcd())
	}
	if _, err := Start(t.Context(), Options{Dir: c.Dir(), Executable: c.executable, Brokers: 5}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second start: %v", err)
	}
	if err := c.StopProcess(t.Context(), EtcdName); err != nil {
		t.Fatal(err)
	}
	if got := running(t, c); !slices.Equal(got, all[3:]) {
		t.Errorf("after all members were stopped: %v", got)
	}
	if err := c.StartProcess(t.Context(), EtcdName); err != nil {
		t.Fatal(err)
	}
	if err := c.StartProcess(t.Context(), "1"); !errors.Is(err, ErrRunning) {
		t.Errorf("starting what runs: %v", err)
	}
	if err := c.StartProcess(t.Context(), "3"); !errors.Is(err, ErrUnknownProcess) {
		t.Errorf("starting what is not there: %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := running(t, c); len(got) != 0 {
		t.Errorf("after the stop: %v", got)
	}
	// It comes back as it was, whatever number is asked for.
	again, err := Start(t.Context(), Options{Dir: c.Dir(), Executable: c.executable, Brokers: 1, Tied: true})
	if err != nil || !slices.Equal(running(t, again), all) {
		t.Errorf("%v, running %v", err, running(t, again))
	}
}

func TestKillPauseResume(t *testing.T) {
	c := begin(t, Options{Brokers: 2})
	answers := func(name string, within time.Duration) bool {
		p, err := c.process(name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return waitReady(ctx, p.readyURL(), nil) == nil
	}
	if err := c.Pause("1"); err != nil {
		t.Fatal(err)
	}
	if one, alive, two := answers("1", 200*time.Millisecond), c.Alive("1"), answers("2", startTimeout); one || !alive || !two {
		t.Errorf("a paused process answers: %v, is alive: %v; another answers: %v", one, alive, two)
	}
	if err := c.Resume("1"); err != nil || !answers("1", startTimeout) {
		t.Errorf("resumed: %v", err)
	}
	if err := c.Kill(t.Context(), "1"); err != nil || c.Alive("1") {
		t.Errorf("killed: %v", err)
	}
	for what, err := range map[string]error{"kill": c.Kill(t.Context(), "1"), "pause": c.Pause("1"), "resume": c.Resume("1")} {
		if err != nil {
			t.Errorf("%s of what has ended: %v", what, err)
		}
	}
	if err := errors.Join(c.SpawnProcess("1"), c.AwaitProcess(t.Context(), "1")); err != nil || !answers("1", startTimeout) {
		t.Error(err)
	}
	if err := c.SpawnProcess("1"); !errors.Is(err, ErrRunning) {
		t.Errorf("spawned twice: %v", err)
	}
	// A paused process hears that it is to end.
	if err := errors.Join(c.Pause("1"), c.StopProcess(t.Context(), "1")); err != nil || c.Alive("1") {
		t.Error(err)
	}
	// One that is asked what it does writes it down.
	if err := c.Abort(t.Context(), "2"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(c.LogFile("2")); err != nil || !strings.Contains(string(b), "goroutine 1 ") {
		t.Errorf("%v, its log: %s", err, b)
	}
}

// Whoever waits for one process to end does not keep others from being started.
func TestHandlesDoNotWaitForEachOther(t *testing.T) {
	c := begin(t, Options{Brokers: 2})
	if err := c.Kill(t.Context(), "2"); err != nil {
		t.Fatal(err)
	}
	p, err := c.process("1")
	if err != nil {
		t.Fatal(err)
	}
	// Nobody reaps it while it is paused: the stop waits.
	stopping, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	stopped := make(chan error, 1)
	wg.Go(func() { stopped <- waitGone(stopping, *p) })
	if err := c.Handle().StartProcess(t.Context(), "2"); err != nil {
		t.Error(err)
	}
	if err := c.Handle().StopProcess(t.Context(), "1"); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestStartThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{Dir: dir, Executable: exe, Brokers: 1, BrokerEnv: []string{"CHILD=fails"}, Tied: true})
	if err == nil || !strings.Contains(err.Error(), "last words") || !errors.Is(err, errExited) {
		t.Errorf("%v, want what the process said last", err)
	}
	if got := running(t, c); len(got) != 0 {
		t.Errorf("still running: %v", got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections() // what it is by default
}

func TestOpenWithoutACluster(t *testing.T) {
	if _, err := Open(t.TempDir(), ""); !errors.Is(err, ErrNoCluster) {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dev.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, ""); err == nil || !strings.Contains(err.Error(), "dev.json") {
		t.Errorf("half a dev.json: %v", err)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{{Brokers: -1}, {Brokers: 17}, {EtcdMembers: 2}, {EtcdMembers: -1}, {BasePort: 80}, {BasePort: 65001}} {
		if o.Validate() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	for _, o := range []Options{{}, {Brokers: 16, EtcdMembers: 5, BasePort: 1024}} {
		if err := o.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestPorts(t *testing.T) {
	got, err := choosePorts(7650, 3, 3)
	if want := []int{7648, 7649, 7646, 7647, 7644, 7645, 7650, 7651, 7660, 7661, 7670, 7671}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	got, err = choosePorts(0, 3, 16)
	if err != nil || len(got) != 38 {
		t.Fatalf("%v, %v", got, err)
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 38 || got[0] < 20_000 || got[37] >= 32_000 {
		t.Errorf("%v: want 38 different ports that the kernel gives to nobody", got)
	}
}

// A pid that another process has by now is not ours.
func TestRecycledPID(t *testing.T) {
	started, running := processStart(os.Getpid())
	if !running || started == 0 {
		t.Fatalf("own start %d, running %v", started, running)
	}
	if p := (Process{PID: os.Getpid(), Started: started}); !p.Alive() {
		t.Error("this process is not alive")
	}
	if p := (Process{PID: os.Getpid(), Started: started - 1}); p.Alive() {
		t.Error("a process that was started at another time is taken for ours")
	}
	if (Process{}).Alive() {
		t.Error("a process that was never started is alive")
	}
}

func TestNetworkNames(t *testing.T) {
	n := &Network{Bridge: "rnl1", Subnet: "10.70.1"}
	if host, ns := n.place("etcd"); host != "10.70.1.11" || ns != "rnl1-etcd" {
		t.Error(host, ns)
	}
	if host, _ := n.place("1"); host != "10.70.1.12" || n.address(Host) != "10.70.1.1" || n.address("2") != "" {
		t.Error(host, n.address(Host), n.address("2"))
	}
	if host, ns := (*Network)(nil).place("1"); host != "127.0.0.1" || ns != "" {
		t.Error(host, ns)
	}
	c := begin(t, Options{Brokers: 1})
	if err := c.Cut("1", EtcdName); !errors.Is(err, errNotIsolated) {
		t.Error(err)
	}
}

// With the rights and the tools for it, networks between chosen processes are cut; without, the error says what is needed.
func TestCutAndHeal(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), Options{Dir: t.TempDir(), Executable: exe, Brokers: 2, Isolated: true, Tied: true})
	if err != nil {
		if !strings.Contains(err.Error(), "network namespaces need Linux, root, and iproute2") {
			t.Error(err)
		}
		return
	}
	defer func() {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if _, err := net.InterfaceByName(c.Network.Bridge); err == nil {
			t.Errorf("the bridge %s is left behind", c.Network.Bridge)
		}
	}()
	reaches := func(name string) bool {
		p, err := c.process(name)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).DialContext(t.Context(), "tcp", p.HTTP)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}
	if !slices.Equal(c.Others("1"), []string{Host, EtcdName, "2"}) {
		t.Error(c.Others("1"))
	}
	if err := c.Cut("1", Host); err != nil {
		t.Fatal(err)
	}
	if reaches("1") || !reaches("2") {
		t.Error("only broker 1 was cut off")
	}
	if err := c.Heal("1", Host); err != nil || !reaches("1") {
		t.Errorf("after the cut: %v", err)
	}
	if err := c.Cut("1", "7"); !errors.Is(err, ErrUnknownProcess) {
		t.Error(err)
	}
}
