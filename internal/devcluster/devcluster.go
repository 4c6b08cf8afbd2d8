// Package devcluster runs a cluster on one machine as ordinary processes: etcd and some brokers, each a child that may be killed, paused
// and started again. It is what `runnel dev`, the quickstart, and the tests with real processes stand on.
//
// Everything is in one directory:
//
//	dev.json          which processes there are, their ports, and the pids last seen
//	dev.lock          held while a command changes processes
//	etcd/  etcd.log   etcd's data and output (etcd-1 … of several members)
//	broker-N/ .yaml .log
//
// A process is known by pid and start time, so that a recycled pid is never signalled. Nothing here survives in memory: every
// command reads dev.json again.
//
// With Options.Isolated each process has a network namespace and an address of its own, on a bridge that the cluster makes and removes,
// so that the network between chosen processes can be cut (network.go).
package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// EtcdName is the name of the etcd process, or of all of them together when there are several: those are "etcd-1", "etcd-2", ….
// Brokers are "1", "2", ….
const EtcdName = "etcd"

// ClusterName is the name of every dev cluster in its etcd.
const ClusterName = "dev"

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 40 * time.Second
	pauseTimeout = 5 * time.Second
	pollInterval = 10 * time.Millisecond
)

// ErrNoCluster says that the directory holds no dev cluster.
var ErrNoCluster = errors.New("no dev cluster here")

// ErrRunning says that the cluster, or the process, is running already.
var ErrRunning = errors.New("already running")

// ErrUnknownProcess says that the cluster has no process of that name.
var ErrUnknownProcess = errors.New("no such process")

// Process is one child as dev.json records it.
type Process struct {
	// Name is "etcd", "etcd-N" or a broker id.
	Name string `json:"name"`
	// Address is host:port of the client endpoint; HTTP that of a broker's operational endpoint, Peer that of etcd's peer endpoint.
	Address string `json:"address"`
	HTTP    string `json:"http,omitempty"`
	Peer    string `json:"peer,omitempty"`
	// PID and Started identify the process last started; PID 0: none. Started is in clock ticks since boot.
	PID     int    `json:"pid"`
	Started uint64 `json:"started"`
	// Env is added to the child's environment.
	Env []string `json:"env,omitempty"`
	// Namespace is the network namespace that the process runs in, empty for that of its parent.
	Namespace string `json:"namespace,omitempty"`
}

// IsEtcd tells etcd's members from brokers.
func (p Process) IsEtcd() bool { return strings.HasPrefix(p.Name, EtcdName) }

// Alive says whether that very process still runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	started, running := processStart(p.PID)
	return running && started == p.Started
}

// Cluster is a dev cluster in a directory. Its methods are not safe for concurrent use: each goroutine has a Handle of its own. Handles,
// like commands, are kept apart by a lock file for as long as each changes something; nobody holds it while waiting for one process.
type Cluster struct {
	dir        string
	executable string
	tied       bool
	Processes  []Process `json:"processes"`
	// Network is set when processes have namespaces of their own.
	Network *Network `json:"network,omitempty"`
}

// Options says what to create.
type Options struct {
	// Dir holds everything; it is created when absent.
	Dir string
	// Executable is the runnel binary that the children run.
	Executable string
	// Brokers is how many brokers there are, 1 to 16. An existing cluster keeps its number.
	Brokers int
	// EtcdMembers is how many members etcd has, 1, 3 or 5; 0: one. An existing cluster keeps its number.
	EtcdMembers int
	// Isolated gives each process a network namespace of its own. Linux, root and iproute2 are needed.
	Isolated bool
	// BasePort is the first broker's gRPC port; the others follow from it. 0 picks free ports.
	BasePort int
	// BrokerEnv is added to the brokers' environment.
	BrokerEnv []string
	// BrokerConfig is YAML appended to each broker's generated configuration.
	BrokerConfig string
	// Tied makes children end with this process, should it die without stopping them.
	Tied bool
}

// Validate reports what is out of range.
func (o Options) Validate() error {
	if o.Brokers < 0 || o.Brokers > 16 {
		return fmt.Errorf("brokers %d: want 1 to 16", o.Brokers)
	}
	if o.EtcdMembers != 0 && o.EtcdMembers != 1 && o.EtcdMembers != 3 && o.EtcdMembers != 5 {
		return fmt.Errorf("etcd members %d: want 1, 3 or 5", o.EtcdMembers)
	}
	if o.BasePort != 0 && (o.BasePort < 1024 || o.BasePort > 65000) {
		return fmt.Errorf("port %d: want 1024 to 65000, or 0 for any free port", o.BasePort)
	}
	return nil
}

// Open reads the cluster in dir. The error is ErrNoCluster when there is none.
func Open(dir, executable string) (*Cluster, error) {
	b, err := os.ReadFile(filepath.Join(dir, "dev.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoCluster)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, executable: executable}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "dev.json"), err)
	}
	return c, nil
}

// Start creates the cluster in o.Dir, or opens the one that is there, and starts every process that does not run. It returns once
// all of them are ready; on failure it stops what it started.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	c, err := Open(o.Dir, o.Executable)
	if errors.Is(err, ErrNoCluster) {
		c, err = create(o)
	}
	if err != nil {
		return nil, err
	}
	c.tied = o.Tied
	started := 0
	err = c.locked(func() error {
		if err := c.Network.up(); err != nil {
			return err
		}
		for _, group := range c.groups() {
			begun, err := c.launchAll(group)
			started += len(begun)
			if err := errors.Join(err, c.awaitAll(ctx, begun)); err != nil {
				return err
			}
		}
		if started == 0 {
			return fmt.Errorf("%s: %w", o.Dir, ErrRunning)
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrRunning) {
		err = errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, err
}

// Handle is the same cluster for another goroutine.
func (c *Cluster) Handle() *Cluster {
	h := *c
	h.Processes = slices.Clone(c.Processes)
	return &h
}

// groups are the processes in the order in which they start: those of one group depend on each other.
func (c *Cluster) groups() [][]string {
	var etcd, brokers []string
	for _, p := range c.Processes {
		if p.IsEtcd() {
			etcd = append(etcd, p.Name)
		} else {
			brokers = append(brokers, p.Name)
		}
	}
	return [][]string{etcd, brokers}
}

func create(o Options) (*Cluster, error) {
	c := &Cluster{dir: o.Dir, executable: o.Executable}
	members, brokers := max(o.EtcdMembers, 1), max(o.Brokers, 1)
	if o.Isolated {
		network, err := newNetwork()
		if err != nil {
			return nil, err
		}
		c.Network = network
	}
	ports, err := choosePorts(o.BasePort, members, brokers)
	if err != nil {
		return nil, err
	}
	for n := range members {
		name := EtcdName
		if members > 1 {
			name += "-" + strconv.Itoa(n+1)
		}
		host, namespace := c.Network.place(name)
		c.Processes = append(c.Processes, Process{
			Name: name, Address: join(host, ports[2*n]), Peer: join(host, ports[2*n+1]), Namespace: namespace,
		})
	}
	for n := range brokers {
		name := strconv.Itoa(n + 1)
		host, namespace := c.Network.place(name)
		i := 2 * (members + n)
		c.Processes = append(c.Processes, Process{
			Name: name, Address: join(host, ports[i]), HTTP: join(host, ports[i+1]), Env: o.BrokerEnv, Namespace: namespace,
		})
	}
	for _, p := range c.Processes {
		if p.IsEtcd() {
			continue
		}
		if err := c.writeBrokerConfig(p, o.BrokerConfig); err != nil {
			return nil, err
		}
	}
	return c, c.save()
}

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Dir is the directory of the cluster.
func (c *Cluster) Dir() string { return c.dir }

// Addresses are the brokers' gRPC endpoints.
func (c *Cluster) Addresses() []string {
	var out []string
	for _, p := range c.Processes {
		if !p.IsEtcd() {
			out = append(out, p.Address)
		}
	}
	return out
}

// Brokers are the names of the brokers.
func (c *Cluster) Brokers() []string { return c.groups()[1] }

// Etcd are the names of etcd's members.
func (c *Cluster) Etcd() []string { return c.groups()[0] }

// DataDir is where the named process keeps its data.
func (c *Cluster) DataDir(name string) string {
	if (Process{Name: name}).IsEtcd() {
		return filepath.Join(c.dir, name)
	}
	return filepath.Join(c.dir, "broker-"+name)
}

// LogFile is where the named process's output goes.
func (c *Cluster) LogFile(name string) string { return c.DataDir(name) + ".log" }

// StartProcess starts one process, or with EtcdName all of etcd's members, and waits until it is ready. ErrRunning when it runs.
func (c *Cluster) StartProcess(ctx context.Context, name string) error {
	var begun []launched
	err := c.locked(func() error {
		names, err := c.named(name)
		if err != nil {
			return err
		}
		begun, err = c.launchAll(names)
		if err == nil && len(begun) == 0 {
			err = fmt.Errorf("%s: %w", name, ErrRunning)
		}
		return err
	})
	return errors.Join(err, c.awaitAll(ctx, begun))
}

// Alive says whether the named process runs.
func (c *Cluster) Alive(name string) bool {
	alive := false
	err := c.locked(func() error {
		p, err := c.process(name)
		alive = err == nil && p.Alive()
		return err
	})
	return err == nil && alive
}

// SpawnProcess starts one process and does not wait until it is ready, which it may not become: AwaitProcess does. ErrRunning when it runs.
func (c *Cluster) SpawnProcess(name string) error {
	return c.locked(func() error {
		p, err := c.process(name)
		if err != nil {
			return err
		}
		if p.Alive() {
			return fmt.Errorf("%s: %w", name, ErrRunning)
		}
		_, err = c.record(p)
		return err
	})
}

// AwaitProcess waits until a process is ready.
func (c *Cluster) AwaitProcess(ctx context.Context, name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	return waitReady(ctx, p.readyURL(), nil)
}

// StopProcess ends one process, or with EtcdName all of etcd's members, with SIGTERM and waits until it is gone; after 40 s, or when ctx
// ends, with SIGKILL.
func (c *Cluster) StopProcess(ctx context.Context, name string) error {
	var ending []Process
	err := c.locked(func() error {
		names, err := c.named(name)
		for _, name := range names {
			if p, err := c.process(name); err == nil {
				ending = append(ending, *p)
			}
		}
		return err
	})
	var g errgroup.Group
	for _, p := range ending {
		g.Go(func() error { return p.terminate(ctx) })
	}
	return errors.Join(err, g.Wait())
}

// Kill ends one process with SIGKILL and waits until it is gone.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	p, err := c.signal(name, syscall.SIGKILL)
	if err != nil {
		return err
	}
	return waitGone(ctx, p)
}

// Abort ends one process with SIGQUIT, at which it writes what each of its goroutines does to its log.
func (c *Cluster) Abort(ctx context.Context, name string) error {
	p, err := c.signal(name, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	return waitGone(ctx, p)
}

// Pause stops one process where it is (SIGSTOP), and returns once it stands still; Resume lets it go on.
func (c *Cluster) Pause(name string) error {
	p, err := c.signal(name, syscall.SIGSTOP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pauseTimeout)
	defer cancel()
	return poll(ctx, func() (bool, error) { return !p.Alive() || p.stopped(), nil })
}

// Resume lets a paused process go on.
func (c *Cluster) Resume(name string) error {
	_, err := c.signal(name, syscall.SIGCONT)
	return err
}

// signal does nothing to a process that does not run.
func (c *Cluster) signal(name string, sig syscall.Signal) (p Process, err error) {
	return p, c.locked(func() error {
		found, err := c.process(name)
		if err != nil {
			return err
		}
		if p = *found; !p.Alive() {
			return nil
		}
		return p.signal(sig)
	})
}

// named returns the process of that name, or all of etcd's members.
func (c *Cluster) named(name string) ([]string, error) {
	if members := c.Etcd(); name == EtcdName && len(members) > 0 {
		return members, nil
	}
	_, err := c.process(name)
	return []string{name}, err
}

// Stop ends the brokers, then etcd.
func (c *Cluster) Stop(ctx context.Context) error {
	return c.locked(func() error {
		var errs []error
		for _, p := range slices.Backward(c.Processes) {
			errs = append(errs, p.terminate(ctx))
		}
		errs = append(errs, c.Network.down())
		return errors.Join(errs...)
	})
}

func (c *Cluster) process(name string) (*Process, error) {
	for i := range c.Processes {
		if c.Processes[i].Name == name {
			return &c.Processes[i], nil
		}
	}
	return nil, fmt.Errorf("%q: %w (there are %s and brokers 1 to %d)", name, ErrUnknownProcess, strings.Join(c.Etcd(), ", "), len(c.Brokers()))
}

// locked runs f while no other command changes this cluster, on freshly read state.
func (c *Cluster) locked(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(c.dir, "dev.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	fresh, err := Open(c.dir, c.executable)
	if err != nil {
		return err
	}
	c.Processes, c.Network = fresh.Processes, fresh.Network
	return f()
}

// save replaces dev.json at once, so that a reader never sees half of it.
func (c *Cluster) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(c.dir, "dev.json")
	if err := os.WriteFile(name+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
