package storage

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

// BenchmarkRound measures sync rounds on the real disk: what an acknowledgement costs when nobody else produces.
func BenchmarkRound(b *testing.B) {
	for _, logs := range []int32{1, 8, 200} {
		b.Run(fmt.Sprintf("logs=%d", logs), func(b *testing.B) {
			cfg := DefaultConfig(b.TempDir(), "c1")
			s, err := Open(b.Context(), cfg, vfs.OS(), clock.System(), slog.New(slog.DiscardHandler), nil)
			if err != nil {
				b.Fatal(err)
			}
			for n := range logs {
				if _, err := s.CreateLog(b.Context(), testTopic, n, TopicInfo{Name: "orders"}, log.StartState{}); err != nil {
					b.Fatal(err)
				}
			}
			all := s.Logs()
			text := strings.Repeat("x", 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for _, l := range all {
					mustAppend(b, l, text)
				}
				b.StartTimer()
				if _, err := s.syncer.flush(); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkFdatasync is the yardstick: one file that grows by as much.
func BenchmarkFdatasync(b *testing.B) {
	f, err := vfs.OS().Create(b.TempDir() + "/file")
	if err != nil {
		b.Fatal(err)
	}
	buf, at := make([]byte, 16<<10), int64(0)
	for b.Loop() {
		b.StopTimer()
		if _, err := f.WriteAt(buf, at); err != nil {
			b.Fatal(err)
		}
		at += int64(len(buf))
		b.StartTimer()
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}
