package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"runnel.dev/runnel/client"
)

// maxLine cuts what is no text, so that every record stays small.
const maxLine = 64 << 10

// fileSet is the input.
type fileSet struct {
	root  string
	names []string
	bytes int64
}

// load lists the regular files that are not empty: an empty file has no line.
func load(root string) (fileSet, error) {
	s := fileSet{root: root}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() == 0 {
			return err
		}
		name, err := filepath.Rel(root, path)
		s.names, s.bytes = append(s.names, name), s.bytes+info.Size()
		return err
	})
	if err == nil && len(s.names) == 0 {
		err = fmt.Errorf("no files under %s", root)
	}
	return s, err
}

// content reads a file again, so that a comparison is with the disk and not with what the writer had in memory.
func (s fileSet) content(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.root, name))
}

// lines cuts content into records; joined, they are content again.
func lines(content []byte, yield func([]byte)) {
	for len(content) > 0 {
		n := bytes.IndexByte(content[:min(len(content), maxLine)], '\n') + 1
		if n == 0 {
			n = min(len(content), maxLine)
		}
		yield(content[:n])
		content = content[n:]
	}
}

// written is what the acks said: a checksum for each offset, and a moment in the middle of the writing.
type written struct {
	records int
	took    time.Duration
	middle  time.Time
	mu      struct {
		sync.Mutex
		sums   [partitions][]uint32
		failed error
		// acked is the time of each partition's last acknowledgement, gap its longest time without one since watching began.
		acked    [partitions]time.Time
		gap      [partitions]time.Duration
		watching bool
	}
}

func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(key), crc32.IEEETable, value)
}

// acked notes one record's outcome. Acks come in offset order per partition.
func (w *written) acked(r *client.Record, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sums := &w.mu.sums[r.Partition]
	if err == nil && r.Offset != int64(len(*sums)) {
		err = fmt.Errorf("acked offset %d of partition %d, want %d", r.Offset, r.Partition, len(*sums))
	}
	if err != nil {
		if w.mu.failed == nil {
			w.mu.failed = err
		}
		return
	}
	*sums = append(*sums, sum(r.Key, r.Value))
	now := time.Now()
	if at := w.mu.acked[r.Partition]; w.mu.watching {
		w.mu.gap[r.Partition] = max(w.mu.gap[r.Partition], now.Sub(at))
	}
	w.mu.acked[r.Partition] = now
}

// watch measures gaps from now on.
func (w *written) watch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.watching = true
}

// longestGap is the longest time that one of the partitions had no acknowledgement, since watch.
func (w *written) longestGap(of []int32) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range of {
		longest = max(longest, w.mu.gap[p])
	}
	return longest
}

// produceAll sends every line of every file, calls halfway in the middle, and waits for all acks.
func produceAll(ctx context.Context, c *client.Client, files fileSet, halfway func(context.Context, *written) error) (*written, error) {
	p, err := c.NewProducer()
	if err != nil {
		return nil, err
	}
	w := &written{}
	began := time.Now()
	for i, name := range files.names {
		if i == len(files.names)/2 {
			w.middle = time.Now()
			if err := halfway(ctx, w); err != nil {
				return nil, err
			}
		}
		content, err := files.content(name)
		if err != nil {
			return nil, err
		}
		key := []byte(name)
		lines(content, func(line []byte) {
			w.records++
			p.Produce(ctx, &client.Record{Topic: topic, Key: key, Value: line}, w.acked)
		})
	}
	if err := p.Close(ctx); err != nil {
		return nil, err
	}
	w.took = time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w, w.mu.failed
}
