// Package devcluster runs a cluster on one machine as ordinary processes: one etcd and some brokers, each a child that may be
// killed and started again. It is what `runnel dev`, the quickstart and the crash tests stand on.
//
// Everything is in one directory:
//
//	dev.json          which processes there are, their ports, and the pids last seen
//	dev.lock          held while a command changes processes
//	etcd/  etcd.log   etcd's data and output
//	broker-N/ .yaml .log
//
// A process is known by pid and start time, so that a recycled pid is never signalled. Nothing here survives in memory: every
// command reads dev.json again.
package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// EtcdName is the name of the etcd process; brokers are "1", "2", ….
const EtcdName = "etcd"

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 40 * time.Second
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
	// Name is "etcd" or a broker id.
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
}

// Alive says whether that very process still runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	started, running := processStart(p.PID)
	return running && started == p.Started
}

// Cluster is a dev cluster in a directory. Its methods are not safe for concurrent use; concurrent commands are kept apart by a lock
// file for as long as each changes something.
type Cluster struct {
	dir        string
	executable string
	tied       bool
	Processes  []Process `json:"processes"`
}

// Options says what to create.
type Options struct {
	// Dir holds everything; it is created when absent.
	Dir string
	// Executable is the runnel binary that the children run.
	Executable string
	// Brokers is how many brokers there are, 1 to 16. An existing cluster keeps its number when 0.
	Brokers int
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
	var started []string
	err = c.locked(func() error {
		for _, p := range c.Processes {
			if p.Alive() {
				continue
			}
			if err := c.launch(ctx, p.Name); err != nil {
				return err
			}
			started = append(started, p.Name)
		}
		if len(started) == 0 {
			return fmt.Errorf("%s: %w", o.Dir, ErrRunning)
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrRunning) {
		err = errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, err
}

func create(o Options) (*Cluster, error) {
	c := &Cluster{dir: o.Dir, executable: o.Executable}
	ports, err := choosePorts(o.BasePort, 2+2*max(o.Brokers, 1))
	if err != nil {
		return nil, err
	}
	addr := func(i int) string { return "127.0.0.1:" + strconv.Itoa(ports[i]) }
	c.Processes = []Process{{Name: EtcdName, Address: addr(0), Peer: addr(1)}}
	for n := 1; n <= max(o.Brokers, 1); n++ {
		p := Process{Name: strconv.Itoa(n), Address: addr(2 * n), HTTP: addr(2*n + 1), Env: o.BrokerEnv}
		c.Processes = append(c.Processes, p)
		if err := c.writeBrokerConfig(n, p, o.BrokerConfig); err != nil {
			return nil, err
		}
	}
	return c, c.save()
}

// Dir is the directory of the cluster.
func (c *Cluster) Dir() string { return c.dir }

// Addresses are the brokers' gRPC endpoints.
func (c *Cluster) Addresses() []string {
	var out []string
	for _, p := range c.Processes {
		if p.Name != EtcdName {
			out = append(out, p.Address)
		}
	}
	return out
}

// DataDir is where the named process keeps its data.
func (c *Cluster) DataDir(name string) string {
	if name == EtcdName {
		return filepath.Join(c.dir, EtcdName)
	}
	return filepath.Join(c.dir, "broker-"+name)
}

// LogFile is where the named process's output goes.
func (c *Cluster) LogFile(name string) string { return c.DataDir(name) + ".log" }

// StartProcess starts one process and waits until it is ready. ErrRunning when it runs.
func (c *Cluster) StartProcess(ctx context.Context, name string) error {
	return c.locked(func() error {
		p, err := c.process(name)
		if err != nil {
			return err
		}
		if p.Alive() {
			return fmt.Errorf("%s: %w", name, ErrRunning)
		}
		return c.launch(ctx, name)
	})
}

// StopProcess ends one process with SIGTERM and waits until it is gone; after 40 s, or when ctx ends, with SIGKILL.
func (c *Cluster) StopProcess(ctx context.Context, name string) error {
	return c.locked(func() error { return c.terminate(ctx, name) })
}

// Kill ends one process with SIGKILL and waits until it is gone.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	return c.locked(func() error {
		p, err := c.process(name)
		if err != nil || !p.Alive() {
			return err
		}
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		return waitGone(ctx, *p)
	})
}

// Stop ends the brokers, then etcd.
func (c *Cluster) Stop(ctx context.Context) error {
	return c.locked(func() error {
		var errs []error
		for _, p := range slices.Backward(c.Processes) {
			errs = append(errs, c.terminate(ctx, p.Name))
		}
		return errors.Join(errs...)
	})
}

func (c *Cluster) process(name string) (*Process, error) {
	for i := range c.Processes {
		if c.Processes[i].Name == name {
			return &c.Processes[i], nil
		}
	}
	return nil, fmt.Errorf("%q: %w (there are %s and brokers 1 to %d)", name, ErrUnknownProcess, EtcdName, len(c.Processes)-1)
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
	c.Processes = fresh.Processes
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
