package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size. In text it is a whole number with an optional unit: B, KiB, MiB, GiB, TiB (powers of 1,024) or kB, MB, GB, TB
// (powers of 1,000).
type Bytes int64

var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"B", 1},
}

// ParseBytes reads a size. It refuses negative numbers, fractions and unknown units.
func ParseBytes(s string) (Bytes, error) {
	digits, factor := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, factor = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size: want a whole number with an optional unit such as 512MiB", s)
	}
	return Bytes(n * factor), nil
}

// String prints the size in the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Set implements pflag.Value.
func (b *Bytes) Set(s string) (err error) {
	*b, err = ParseBytes(s)
	return err
}

// Type implements pflag.Value.
func (b *Bytes) Type() string { return "size" }

// UnmarshalText reads a size from YAML; plain numbers are bytes.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// MarshalText writes what UnmarshalText reads.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Duration is a span of time; in text as Go writes it: 500ms, 24h, -1ms.
type Duration time.Duration

// Std returns the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String prints the duration as Go does.
func (d Duration) String() string { return time.Duration(d).String() }

// Set implements pflag.Value.
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		return fmt.Errorf("%q is not a duration: want a number with a unit such as 500ms, 30s or 24h", s)
	}
	*d = Duration(v)
	return nil
}

// Type implements pflag.Value.
func (d *Duration) Type() string { return "duration" }

// UnmarshalText reads a duration from YAML.
func (d *Duration) UnmarshalText(text []byte) error { return d.Set(string(text)) }

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
