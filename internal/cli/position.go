package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"runnel.dev/runnel/client"
)

// parsePosition reads where to begin: earliest, latest, -1h, @2026-01-02T03:04:05Z, or an offset.
func parsePosition(s string, now time.Time) (client.Position, error) {
	bad := fmt.Errorf("--from %q: want earliest, latest, -1h (ago), @2006-01-02T15:04:05Z (a time), or an offset", s)
	switch {
	case s == "earliest":
		return client.Earliest, nil
	case s == "latest":
		return client.Latest, nil
	case strings.HasPrefix(s, "-"):
		d, err := parseDuration(s[1:])
		if err != nil {
			return client.Position{}, bad
		}
		return client.Since(now.Add(-d)), nil
	case strings.HasPrefix(s, "@"):
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", time.DateOnly} {
			if t, err := time.ParseInLocation(layout, s[1:], time.UTC); err == nil {
				return client.Since(t), nil
			}
		}
		return client.Position{}, bad
	default:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return client.Position{}, bad
		}
		return client.At(n), nil
	}
}
