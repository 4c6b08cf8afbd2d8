package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// processes are the servers of one system. They end with this process.
type processes []*exec.Cmd

func (p *processes) start(logFile string, name string, args ...string) error {
	f, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	*p = append(*p, cmd)
	return nil
}

func (p *processes) stop() {
	for _, cmd := range *p {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	*p = nil
}

// freePorts returns n ports below the range that the kernel takes for outgoing connections.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		port := 12_000 + rand.IntN(8_000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // only at the end: each port has to differ from the others
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports")
}

// until tries f until it succeeds. Other programs give no event to wait for.
func until(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
