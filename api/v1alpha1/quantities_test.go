package v1alpha1

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestDurationMilliseconds(t *testing.T) {
	for in, want := range map[string]int64{
		"1s": 1_000, "90s": 90_000, "10m": 600_000, "24h": 86_400_000, "7d": 604_800_000, "106751991167d": 106751991167 * 86_400_000,
	} {
		if got, err := Duration(in).Milliseconds(); err != nil || got != want {
			t.Errorf("Duration(%q) = %d, %v, want %d", in, got, err, want)
		}
		if got, err := DurationOrForever(in).Milliseconds(); err != nil || got != want {
			t.Errorf("DurationOrForever(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	if got, err := Forever.Milliseconds(); err != nil || got != -1 {
		t.Errorf("Forever = %d, %v, want -1", got, err)
	}
	for _, in := range []string{
		"", "s", "0s", "00s", "01s", "1", "-1s", "+1s", "1.5h", "1 h", "1h30m", "500ms", "1w", "1S", "Forever", "1\ns", "１s",
		"106751991168d", "99999999999999d", "999999999999999d", "9999999999999999999999s",
	} {
		if got, err := DurationOrForever(in).Milliseconds(); !errors.Is(err, ErrQuantity) || got != 0 {
			t.Errorf("DurationOrForever(%q) = %d, %v, want ErrQuantity", in, got, err)
		}
	}
	if _, err := Duration(Forever).Milliseconds(); !errors.Is(err, ErrQuantity) {
		t.Errorf("Duration(forever): %v, want ErrQuantity", err)
	}
}

func TestBytesValue(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "1k": 1_000, "1Ki": 1_024, "512Mi": 512 << 20, "1.5Gi": 3 << 29, "2e3": 2_000, "7Ei": 7 << 60, "1000m": 1, "9223372036854775806": math.MaxInt64 - 1,
	} {
		if got, err := Bytes(in).Value(); err != nil || got != want {
			t.Errorf("Bytes(%q) = %d, %v, want %d", in, got, err, want)
		}
		if got, err := BytesOrUnlimited(in).Value(); err != nil || got != want {
			t.Errorf("BytesOrUnlimited(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	if got, err := Unlimited.Value(); err != nil || got != -1 {
		t.Errorf("Unlimited = %d, %v, want -1", got, err)
	}
	for _, in := range []string{
		"", "0", "-1", "-5Gi", "0.5", "1m", "100m", "Gi", "1 Gi", "1GB", "1gi", "8Ei", "1e30", "9223372036854775807", "99999999999999999999",
		"1e999999999", "1e-999999999", "1e2147483647", "Unlimited", strings.Repeat("1", 33),
	} {
		if got, err := BytesOrUnlimited(in).Value(); !errors.Is(err, ErrQuantity) || got != 0 {
			t.Errorf("BytesOrUnlimited(%q) = %d, %v, want ErrQuantity", in, got, err)
		}
	}
	if _, err := Bytes(Unlimited).Value(); !errors.Is(err, ErrQuantity) {
		t.Errorf("Bytes(unlimited): %v, want ErrQuantity", err)
	}
}

func TestQuantityErrorsNameValueAndLimit(t *testing.T) {
	_, err := Bytes(strings.Repeat("x", 5_000)).Value()
	if err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), "5000 bytes") || !strings.Contains(err.Error(), "512Mi") {
		t.Errorf("error %v, want a short one with the length and an example", err)
	}
	_, err = Duration("999999999999999d").Milliseconds()
	if err == nil || !strings.Contains(err.Error(), `"999999999999999d", want at most 106751991167d`) {
		t.Errorf("error %v, want one with the largest value", err)
	}
}

// TestQuantitiesAreTotal: any text gives a value in range or ErrQuantity.
func TestQuantitiesAreTotal(t *testing.T) {
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9.eE+-]{1,8}(s|m|h|d|Ki|Mi|Gi|Ei|k|M)?`))
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text")
		if got, err := Bytes(text).Value(); (err == nil) != (got >= 1) || err != nil && !errors.Is(err, ErrQuantity) {
			t.Errorf("Bytes(%q) = %d, %v", text, got, err)
		}
		if got, err := Duration(text).Milliseconds(); (err == nil) != (got >= 1_000) || err != nil && !errors.Is(err, ErrQuantity) {
			t.Errorf("Duration(%q) = %d, %v", text, got, err)
		}
	})
}
