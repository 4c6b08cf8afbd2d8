package v1alpha1

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Forever is the DurationOrForever that never ends.
const Forever DurationOrForever = "forever"

// Unlimited is the BytesOrUnlimited without a limit.
const Unlimited BytesOrUnlimited = "unlimited"

// ErrQuantity is matched by every *QuantityError.
var ErrQuantity = errors.New("not a valid quantity")

// QuantityError is a duration or size that cannot be used.
type QuantityError struct {
	// Value is the text.
	Value string
	// Limit says what would be accepted.
	Limit string
}

// Error names value and limit.
func (e *QuantityError) Error() string {
	return fmt.Sprintf("%v: %s, want %s", ErrQuantity, e.Shown(), e.Limit)
}

// Is makes errors.Is(err, ErrQuantity) true.
func (e *QuantityError) Is(target error) bool { return target == ErrQuantity }

// Shown is the value, quoted and cut to a length that fits a line.
func (e *QuantityError) Shown() string {
	const most = 40
	if len(e.Value) > most {
		return fmt.Sprintf("%q (%d bytes)", e.Value[:most]+"…", len(e.Value))
	}
	return strconv.Quote(e.Value)
}

// Duration is a whole number, at least 1, of seconds, minutes, hours or days: 30s, 10m, 6h, 7d. At most 16 characters.
//
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:Pattern=`^[1-9][0-9]*(s|m|h|d)$`
type Duration string

// DurationOrForever is a Duration or the word forever.
//
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:Pattern=`^([1-9][0-9]*(s|m|h|d)|forever)$`
type DurationOrForever string

// Bytes is a size in bytes as Kubernetes writes quantities: 512Mi, 1.5Gi, 1000000. At most 32 characters.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="isQuantity(self)",message="bytes must be a quantity"
type Bytes string

// BytesOrUnlimited is a Bytes or the word unlimited.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="self == 'unlimited' || isQuantity(self)",message="bytes must be a quantity or unlimited"
type BytesOrUnlimited string

// Milliseconds returns the duration in milliseconds, at least 1,000. The error is a *QuantityError.
func (d Duration) Milliseconds() (int64, error) {
	return milliseconds(string(d), "a whole number of s, m, h or d, e.g. 24h")
}

// Milliseconds returns the duration in milliseconds, at least 1,000, or -1 for Forever. The error is a *QuantityError.
func (d DurationOrForever) Milliseconds() (int64, error) {
	if d == Forever {
		return -1, nil
	}
	return milliseconds(string(d), "a whole number of s, m, h or d, e.g. 7d, or forever")
}

// Value returns the size in bytes, at least 1. The error is a *QuantityError.
func (b Bytes) Value() (int64, error) {
	return bytesOf(string(b), "a positive whole number of bytes, e.g. 512Mi")
}

// Value returns the size in bytes, at least 1, or -1 for Unlimited. The error is a *QuantityError.
func (b BytesOrUnlimited) Value() (int64, error) {
	if b == Unlimited {
		return -1, nil
	}
	return bytesOf(string(b), "a positive whole number of bytes, e.g. 100Gi, or unlimited")
}

var unitMilliseconds = map[byte]int64{
	's': time.Second.Milliseconds(),
	'm': time.Minute.Milliseconds(),
	'h': time.Hour.Milliseconds(),
	'd': 24 * time.Hour.Milliseconds(),
}

func milliseconds(s, want string) (int64, error) {
	const longest = 16 // characters, as in the schema
	fault := func(want string) (int64, error) { return 0, &QuantityError{Value: s, Limit: want} }
	if len(s) < 2 || len(s) > longest {
		return fault(want)
	}
	unit, known := unitMilliseconds[s[len(s)-1]]
	digits := s[:len(s)-1]
	if !known || strings.Trim(digits, "0123456789") != "" || digits[0] == '0' {
		return fault(want)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return fault("at most " + strconv.FormatInt(math.MaxInt64/unit, 10) + s[len(s)-1:])
	}
	return n * unit, nil
}

func bytesOf(s, want string) (int64, error) {
	const longest = 32 // characters, as in the schema
	fault := func(want string) (int64, error) { return 0, &QuantityError{Value: s, Limit: want} }
	if s == "" || len(s) > longest {
		return fault(want)
	}
	// The parser takes exponents at their word: it would work for minutes on the digits of 1e999999999.
	if exponentOf(s) > largestExponent {
		return fault(want + ", at most 8Ei - 2")
	}
	quantity, err := resource.ParseQuantity(s)
	if err != nil {
		return fault(want)
	}
	// Value rounds up, wraps around, or stops at the largest integer; a size that it met exactly is one.
	n := quantity.Value()
	if n < 1 || n == math.MaxInt64 || quantity.CmpInt64(n) != 0 {
		return fault(want + ", at most 8Ei - 2")
	}
	return n, nil
}

// largestExponent is that of 8Ei, about 9.2e18.
const largestExponent = 18

// exponentOf returns the size of the decimal exponent of a quantity such as 1e3 or 1E-3, and 0 where there is none: in 1E and 1Ei the
// letter is a suffix. What is no number counts as too large.
func exponentOf(s string) int {
	_, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	if exponent == "" || exponent == "i" {
		return 0
	}
	n, err := strconv.Atoi(exponent)
	if err != nil {
		return math.MaxInt
	}
	return max(n, -n)
}
