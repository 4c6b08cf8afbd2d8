package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// launched is a process that was started and may not be ready yet.
type launched struct {
	Process
	exited <-chan struct{}
}

// launchAll starts those of the named processes that do not run. The lock is held.
func (c *Cluster) launchAll(names []string) (begun []launched, err error) {
	for _, name := range names {
		p, err := c.process(name)
		if err != nil {
			return begun, err
		}
		if p.Alive() {
			continue
		}
		exited, err := c.record(p)
		if err != nil {
			return begun, err
		}
		begun = append(begun, launched{*p, exited})
	}
	return begun, nil
}

// awaitAll waits until all of them answer.
func (c *Cluster) awaitAll(ctx context.Context, begun []launched) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var g errgroup.Group
	for _, p := range begun {
		g.Go(func() error {
			if err := waitReady(ctx, p.readyURL(), p.exited); err != nil {
				return fmt.Errorf("start %s: %w; its output ends:\n%s", p.Name, err, tail(c.LogFile(p.Name), 2048))
			}
			return nil
		})
	}
	return g.Wait()
}

// record starts a process and writes down which one it is. The channel is closed when it has ended.
func (c *Cluster) record(p *Process) (<-chan struct{}, error) {
	cmd, exited, err := c.spawn(p)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	started, _ := processStart(cmd.Process.Pid)
	p.PID, p.Started = cmd.Process.Pid, started
	if err := c.save(); err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	return exited, nil
}

func (p Process) readyURL() string {
	if p.IsEtcd() {
		return "http://" + p.Address + "/health"
	}
	return "http://" + p.HTTP + "/readyz"
}

// spawn starts the child in a process group of its own, so that a Ctrl-C in the terminal reaches only the parent, which then stops
// the children in order. The channel is closed when the child has ended and was reaped.
func (c *Cluster) spawn(p *Process) (*exec.Cmd, <-chan struct{}, error) {
	logFile, err := os.OpenFile(c.LogFile(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = logFile.Close() }()
	args := []string{c.executable, "broker", "--config", filepath.Join(c.dir, "broker-"+p.Name+".yaml")}
	if p.IsEtcd() {
		args = []string{
			c.executable, "etcd", "serve", "--name", p.Name, "--data-dir", c.DataDir(p.Name), "--client-url", "http://" + p.Address,
			"--peer-url", "http://" + p.Peer, "--initial-cluster", c.initialCluster(),
		}
	}
	args = inNamespace(p.Namespace, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.SysProcAttr = childAttributes(c.tied)
	exited := make(chan struct{})
	begun := make(chan error)
	go func() {
		defer close(exited)
		lockThread(c.tied)
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return cmd, exited, <-begun
}

func (c *Cluster) initialCluster() string {
	var members []string
	for _, p := range c.Processes {
		if p.IsEtcd() {
			members = append(members, p.Name+"=http://"+p.Peer)
		}
	}
	return strings.Join(members, ",")
}

// signal does nothing to a process that ends meanwhile.
func (p Process) signal(sig syscall.Signal) error {
	if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %v to %s: %w", sig, p.Name, err)
	}
	return nil
}

func (p Process) terminate(ctx context.Context) error {
	if !p.Alive() {
		return nil
	}
	// One that is paused hears nothing before it goes on.
	if err := errors.Join(p.signal(syscall.SIGTERM), p.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	polite, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if waitGone(polite, p) == nil {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := waitGone(last, p); err != nil {
		return err
	}
	return fmt.Errorf("%s did not stop within %v and was killed", p.Name, stopTimeout)
}

func waitGone(ctx context.Context, p Process) error {
	return poll(ctx, func() (bool, error) { return !p.Alive(), nil })
}

var errExited = errors.New("the process ended")

func waitReady(ctx context.Context, url string, exited <-chan struct{}) error {
	return poll(ctx, func() (bool, error) {
		select {
		case <-exited:
			return false, errExited
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil //nolint:nilerr // not listening yet
		}
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK, res.Body.Close()
	})
}

// poll asks until the answer is yes. Other processes give no event to wait for.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Fields of /proc/PID/stat behind the name.
const (
	statState   = 0
	statThreads = 17
	statStart   = 19
)

// stat reads what the kernel says of a process, nil when it is gone.
func stat(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The name in parentheses may hold anything; the fields behind its last parenthesis begin with the state.
	if fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(fields) > statStart {
		return fields
	}
	return nil
}

// processStart reads a process's start time. A zombie counts as ended, unless other threads of it are still on their way out: they hold
// its ports and files.
func processStart(pid int) (ticks uint64, running bool) {
	fields := stat(pid)
	if fields == nil {
		return 0, false
	}
	if n, err := strconv.Atoi(fields[statThreads]); fields[statState] == "X" || fields[statState] == "Z" && (err != nil || n <= 1) {
		return 0, false
	}
	ticks, err := strconv.ParseUint(fields[statStart], 10, 64)
	return ticks, err == nil
}

// stopped says whether the process stands still because of a signal.
func (p Process) stopped() bool {
	fields := stat(p.PID)
	return len(fields) > statState && fields[statState] == "T"
}

// choosePorts returns two ports for each member of etcd, then two for each broker. With a base, broker i has base+10i and the next, and etcd's
// members the ones below base, downwards.
func choosePorts(base, members, brokers int) ([]int, error) {
	ports := make([]int, 2*(members+brokers))
	if base != 0 {
		for i := range members {
			ports[2*i], ports[2*i+1] = base-2*i-2, base-2*i-1
		}
		for i := range brokers {
			ports[2*(members+i)], ports[2*(members+i)+1] = base+10*i, base+10*i+1
		}
		return ports, nil
	}
	var open []net.Listener
	defer func() {
		for _, l := range open { // only at the end: each port has to differ from the others
			_ = l.Close()
		}
	}()
	for i := range ports {
		l, err := listenBelowEphemeral()
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		ports[i] = l.Addr().(*net.TCPAddr).Port // a TCP listener has a TCP address
	}
	return ports, nil
}

// listenBelowEphemeral finds a free port that the kernel will not give to an outgoing connection while its process is down, as it does
// with ports from 32768 on.
func listenBelowEphemeral() (l net.Listener, err error) {
	const low, high, attempts = 20_000, 32_000, 100
	for range attempts {
		port := low + rand.IntN(high-low)
		if l, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d: %w", low, high, err)
}

func (c *Cluster) writeBrokerConfig(p Process, extra string) error {
	var etcd []string
	for _, m := range c.Processes {
		if m.IsEtcd() {
			etcd = append(etcd, strconv.Quote("http://"+m.Address))
		}
	}
	text := fmt.Sprintf(`brokerID: %s
cluster: `+ClusterName+`
etcd:
  endpoints: [%s]
storage:
  dataDir: %q
listeners:
  - name: client
    address: %q
    advertised: %q
http:
  address: %q
log:
  format: text
%s`, p.Name, strings.Join(etcd, ", "), c.DataDir(p.Name), p.Address, p.Address, p.HTTP, extra)
	return os.WriteFile(filepath.Join(c.dir, "broker-"+p.Name+".yaml"), []byte(text), 0o600)
}

func tail(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
