package cli

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func fromMilliseconds(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func TestUnits(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "17": 17, "17B": 17, "64MiB": 64 << 20, "1.5GB": 1_500_000_000, "2 KiB": 2048, "9223372036854775807": 1<<63 - 1} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "-1", "1.5", "-2MiB", "NaN", "Inf", "9000000TiB", "1e400B", "MiB", "1 000"} {
		if got, err := parseBytes(s); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", s, got)
		}
	}
	for s, want := range map[string]time.Duration{"7d": 7 * day, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0s": 0, "2d1ms": 2*day + time.Millisecond} {
		if got, err := parseDuration(s); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "7", "d", "-7d", "1.5d", "-1h", "7d-1h", "999999999999d", "106751d999999h"} {
		if got, err := parseDuration(s); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", s, got)
		}
	}
	for d, want := range map[time.Duration]string{7 * day: "7d", 36 * time.Hour: "1d12h", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m", 1500 * time.Millisecond: "1.5s", 0: "0s"} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%d) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 999: "999B", 1 << 20: "1.00MiB", 1500: "1.46KiB", 123 << 30: "123GiB"} {
		if got := roundBytes(n); got != want {
			t.Errorf("roundBytes(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := groupDigits(n); got != want {
			t.Errorf("groupDigits(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestWhatIsPrintedCanBeTyped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<62).Draw(t, "bytes")
		if got, err := parseBytes(formatBytes(n)); err != nil || got != n {
			t.Fatalf("%q is %d, %v, want %d", formatBytes(n), got, err, n)
		}
		d := time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "duration"))
		if got, err := parseDuration(formatDuration(d)); err != nil || got != d {
			t.Fatalf("%q is %d, %v, want %d", formatDuration(d), got, err, d)
		}
	})
}

func TestEverySettingReadsWhatItShows(t *testing.T) {
	values := map[string]string{
		"retention": "7d", "retention-bytes": "unlimited", "segment-bytes": "64MiB", "segment-age": "1h", "max-batch-bytes": "1MiB",
		"compression": "producer", "timestamp-type": "log-append-time", "cleanup-policy": "delete", "max-timestamp-ahead": "1h", "min-in-sync-replicas": "2",
	}
	for _, s := range settings {
		c, err := parseSettings([]string{s.key + "=" + values[s.key]})
		if err != nil {
			t.Errorf("%s=%s: %v", s.key, values[s.key], err)
			continue
		}
		if got := s.show(c); got != values[s.key] {
			t.Errorf("%s shows %q, want %q", s.key, got, values[s.key])
		}
	}
}
