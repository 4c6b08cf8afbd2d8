package storage

import (
	"fmt"
	"log/slog"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

// BenchmarkOpen measures a restart with many partitions, on the real disk: after a clean stop, and after kill -9.
func BenchmarkOpen(b *testing.B) {
	const partitions = 2000
	for _, clean := range []bool{true, false} {
		b.Run(fmt.Sprintf("%d partitions/clean=%v", partitions, clean), func(b *testing.B) {
			cfg := DefaultConfig(b.TempDir(), "c1")
			open := func() *Store {
				s, err := Open(b.Context(), cfg, vfs.OS(), clock.System(), slog.New(slog.DiscardHandler), nil)
				if err != nil {
					b.Fatal(err)
				}
				return s
			}
			s := open()
			for n := range int32(partitions) {
				l, err := s.CreateLog(b.Context(), testTopic, n, TopicInfo{Name: "orders"}, log.StartState{})
				if err != nil {
					b.Fatal(err)
				}
				mustAppend(b, l, "x")
			}
			if _, err := s.syncer.flush(); err != nil {
				b.Fatal(err)
			}
			stop := func() {
				if !clean {
					abandon(b, &storeEnv{t: b, Store: s})
				} else if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			stop()
			for b.Loop() {
				s = open()
				b.StopTimer()
				if r := s.Report(); r.Clean != clean || r.Partitions != partitions {
					b.Fatalf("report: %+v", r)
				}
				stop()
				b.StartTimer()
			}
		})
	}
}
