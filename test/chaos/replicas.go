package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// compareReplicas compares the bytes of all logs. Everything was acknowledged, or given up, while all replicas were in sync, so that all
// have to be the same; brokers are killed, since a clean stop of the last ones would wait for somebody to take over.
func (t *trial) compareReplicas(ctx context.Context) error {
	say("comparing replicas")
	if err := t.awaitWhole(ctx); err != nil {
		return err
	}
	for _, name := range t.cluster.Brokers() {
		if err := t.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	want := map[string]string{}
	for i, name := range t.cluster.Brokers() {
		got, err := digests(t.cluster.DataDir(name))
		if err != nil {
			return err
		}
		if len(got) != partitions {
			return fmt.Errorf("broker %s holds %d partitions, want %d", name, len(got), partitions)
		}
		for partition, sum := range got {
			if i == 0 {
				want[partition] = sum
			} else if want[partition] != sum {
				return fmt.Errorf("the replicas of partition %s on broker %s and broker %s differ: %s and %s", partition, t.cluster.Brokers()[0], name, want[partition], sum)
			}
		}
	}
	return nil
}

// digests hashes the log of each partition in a data directory. Replicas roll at other offsets, so the segments count as one.
func digests(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.log"))
	if err != nil {
		return nil, err
	}
	byPartition := map[string][]string{}
	for _, f := range files {
		at := filepath.Dir(f)
		if strings.Contains(filepath.Base(at), ".") {
			continue // set aside
		}
		key := filepath.Join(filepath.Base(filepath.Dir(at)), filepath.Base(at))
		byPartition[key] = append(byPartition[key], f)
	}
	out := map[string]string{}
	for key, files := range byPartition {
		slices.Sort(files)
		h := sha256.New()
		var size int64
		for _, name := range files {
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			n, err := io.Copy(h, f)
			_ = f.Close()
			if err != nil {
				return nil, err
			}
			size += n
		}
		out[key] = fmt.Sprintf("%x (%d bytes)", h.Sum(nil)[:8], size)
	}
	return out, nil
}
