package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// shell types commands.
type shell struct{ exe, data, server string }

// result is what a command has left.
type result struct {
	out, err string
	code     int
}

// run types a command, with so many lines 1, 2, … of input if seq is a number.
func (s shell) run(ctx context.Context, seq string, args ...string) (result, error) {
	line := "runnel " + strings.Join(args, " ")
	if args[0] == "dev" || args[0] == "etcd" {
		args = append(args, "--data", s.data)
	}
	cmd := exec.CommandContext(ctx, s.exe, args...)
	cmd.Env = append(os.Environ(), "RUNNEL_SERVER="+s.server)
	if seq != "" {
		n, err := strconv.Atoi(seq)
		if err != nil {
			return result{}, err
		}
		var in bytes.Buffer
		for i := range n {
			fmt.Fprintln(&in, i+1)
		}
		cmd.Stdin = &in
		line = "seq " + seq + " | " + line
	}
	fmt.Println("$", line)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	r := result{out: out.String(), err: errs.String(), code: cmd.ProcessState.ExitCode()}
	fmt.Print(r.err)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && r.code >= 0 {
		err = nil
	}
	return r, err
}

// ok types a command that has to succeed, and returns what it printed.
func (s shell) ok(ctx context.Context, seq string, args ...string) (string, error) {
	r, err := s.run(ctx, seq, args...)
	if err == nil && r.code != 0 {
		err = fmt.Errorf("runnel %s: exit code %d, want 0", strings.Join(args, " "), r.code)
	}
	return r.out, err
}

// refused types a command that has to fail, and to say why.
func (s shell) refused(ctx context.Context, why, seq string, args ...string) error {
	r, err := s.run(ctx, seq, args...)
	if err == nil && (r.code == 0 || !strings.Contains(r.err, why)) {
		err = fmt.Errorf("runnel %s: exit code %d, want a failure that says %q", strings.Join(args, " "), r.code, why)
	}
	return err
}

// consumes reads a topic to its end, or with more arguments as they say, and wants so many records.
func (s shell) consumes(ctx context.Context, topic string, want int, args ...string) error {
	if len(args) == 0 {
		args = []string{"--until-end"}
	}
	out, err := s.ok(ctx, "", append([]string{"consume", topic}, args...)...)
	if n := strings.Count(out, "\n"); err == nil && n != want {
		err = fmt.Errorf("%d records came, want %d", n, want)
	}
	fmt.Printf("%d records\n", strings.Count(out, "\n"))
	return err
}

// print types a command and shows what it prints.
func (s shell) print(ctx context.Context, args ...string) error {
	out, err := s.ok(ctx, "", args...)
	fmt.Print(out)
	return err
}
