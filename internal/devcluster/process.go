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
)

// launch starts a process, records it, and waits until it answers. The lock is held.
func (c *Cluster) launch(ctx context.Context, name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	cmd, exited, err := c.spawn(p)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	started, _ := processStart(cmd.Process.Pid)
	p.PID, p.Started = cmd.Process.Pid, started
	if err := c.save(); err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	url := "http://" + p.HTTP + "/readyz"
	if name == EtcdName {
		url = "http://" + p.Address + "/health"
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := waitReady(ctx, url, exited); err != nil {
		return fmt.Errorf("start %s: %w; its output ends:\n%s", name, err, tail(c.LogFile(name), 2048))
	}
	return nil
}

// spawn starts the child in a process group of its own, so that a Ctrl-C in the terminal reaches only the parent, which then stops
// the children in order. The channel is closed when the child has ended and was reaped.
func (c *Cluster) spawn(p *Process) (*exec.Cmd, <-chan struct{}, error) {
	logFile, err := os.OpenFile(c.LogFile(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = logFile.Close() }()
	args := []string{"broker", "--config", filepath.Join(c.dir, "broker-"+p.Name+".yaml")}
	if p.Name == EtcdName {
		args = []string{"etcd", "serve", "--data-dir", c.DataDir(EtcdName), "--client-url", "http://" + p.Address, "--peer-url", "http://" + p.Peer}
	}
	cmd := exec.Command(c.executable, args...)
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

func (c *Cluster) terminate(ctx context.Context, name string) error {
	p, err := c.process(name)
	if err != nil || !p.Alive() {
		return err
	}
	if err := syscall.Kill(p.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	polite, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if waitGone(polite, *p) == nil {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := waitGone(last, *p); err != nil {
		return err
	}
	return fmt.Errorf("%s did not stop within %v and was killed", name, stopTimeout)
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

// processStart reads a process's start time. A zombie counts as ended, unless other threads of it are still on their way out: they hold
// its ports and files.
func processStart(pid int) (ticks uint64, running bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name in parentheses may hold anything; the fields behind its last parenthesis begin with the state, field 3.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const state, threads, start = 0, 17, 19
	if len(fields) <= start {
		return 0, false
	}
	if n, err := strconv.Atoi(fields[threads]); fields[state] == "X" || fields[state] == "Z" && (err != nil || n <= 1) {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[start], 10, 64)
	return ticks, err == nil
}

// choosePorts returns n ports: etcd's two, then two per broker. With a base, broker i has base+10i and the next, etcd the two below base.
func choosePorts(base, n int) ([]int, error) {
	ports := make([]int, n)
	if base != 0 {
		ports[0], ports[1] = base-2, base-1
		for i := 2; i < n; i += 2 {
			ports[i] = base + 5*(i-2)
			ports[i+1] = ports[i] + 1
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

func (c *Cluster) writeBrokerConfig(id int, p Process, extra string) error {
	text := fmt.Sprintf(`brokerID: %d
cluster: dev
etcd:
  endpoints: ["http://%s"]
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
%s`, id, c.Processes[0].Address, c.DataDir(p.Name), p.Address, p.Address, p.HTTP, extra)
	return os.WriteFile(filepath.Join(c.dir, "broker-"+p.Name+".yaml"), []byte(text), 0o600)
}

func tail(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
