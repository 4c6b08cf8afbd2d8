package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// byteUnits are the suffixes of sizes, longest first where one ends like another.
var byteUnits = []struct {
	suffix string
	bytes  float64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// parseBytes reads "64MiB", "1.5GB" or a plain number of bytes.
func parseBytes(s string) (int64, error) {
	number, factor := s, 1.0
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && factor == 1 {
		if n < 0 {
			return 0, fmt.Errorf("size %q is negative", s)
		}
		return n, nil
	}
	v, err := strconv.ParseFloat(number, 64)
	v *= factor
	if err != nil || math.IsNaN(v) || v < 0 || v >= math.MaxInt64 || v != math.Trunc(v) {
		return 0, fmt.Errorf("size %q: want a number of bytes, such as 1048576, 64MiB or 1.5GB", s)
	}
	return int64(v), nil
}

// formatBytes is exact: the largest binary unit that divides n.
func formatBytes(n int64) string {
	for _, u := range byteUnits[:4] {
		if b := int64(u.bytes); n != 0 && n%b == 0 {
			return strconv.FormatInt(n/b, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// roundBytes is for people: three digits at most.
func roundBytes(n int64) string {
	for _, u := range byteUnits[:4] {
		if v := float64(n) / u.bytes; v >= 1 {
			return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Log10(v))), 64) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration does, with days in front: "7d", "1d12h", "90m".
func parseDuration(s string) (time.Duration, error) {
	bad := func() error {
		return fmt.Errorf("duration %q: want for example 7d, 1d12h, 90m or 250ms, up to %dd", s, math.MaxInt64/day)
	}
	rest := s
	var days time.Duration
	if head, tail, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseInt(head, 10, 64)
		if err != nil || n < 0 || n > int64(math.MaxInt64/day) {
			return 0, bad()
		}
		days, rest = time.Duration(n)*day, tail
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d > math.MaxInt64-days {
		return 0, bad()
	}
	return days + d, nil
}

// formatDuration is the inverse, without units that are zero.
func formatDuration(d time.Duration) string {
	if d <= 0 {
		return d.String()
	}
	var b strings.Builder
	if n := d / day; n > 0 {
		fmt.Fprintf(&b, "%dd", n)
		d -= n * day
	}
	if d > 0 || b.Len() == 0 {
		s := d.String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		b.WriteString(s)
	}
	return b.String()
}

// counted is "1 record" or "2,000 records".
func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return groupDigits(n) + " " + what + "s"
}

// groupDigits writes 1234567 as 1,234,567.
func groupDigits(n int64) string {
	s := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
