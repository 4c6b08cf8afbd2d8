package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// describeMachine is one line: what the figures depend on.
func describeMachine(dir string) string {
	return fmt.Sprintf("machine: %s, %d cores, %s memory, Linux %s, %s, %s", field("/proc/cpuinfo", "model name"), runtime.NumCPU(),
		memory(), firstLine("/proc/sys/kernel/osrelease"), fileSystem(dir), runtime.Version())
}

// field reads "name : value" from a file under /proc.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func memory() string {
	var kib int64
	if _, err := fmt.Sscanf(field("/proc/meminfo", "MemTotal"), "%d kB", &kib); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
}

func firstLine(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return string(line)
}

// fileSystem is the type of the mount that dir is on: the longest mount point above it.
func fileSystem(dir string) string {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "unknown"
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "unknown"
	}
	kind, longest := "unknown", -1
	for line := range strings.Lines(string(b)) {
		// 36 35 98:0 /root /mount/point options … - type source options
		head, tail, ok := strings.Cut(line, " - ")
		fields, rest := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(rest) < 1 {
			continue
		}
		point := fields[4]
		if (point == "/" || dir == point || strings.HasPrefix(dir, point+"/")) && len(point) >= longest {
			kind, longest = rest[0], len(point)
		}
	}
	return kind
}
