package segment

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Extensions of the files that belong to a segment.
const (
	ExtLog       = ".log"
	ExtIndex     = ".index"
	ExtTimeIndex = ".timeindex"
	// ExtSnapshot is producer state at the offset in the name; package log owns its content.
	ExtSnapshot = ".snapshot"
)

const nameDigits = 20

// FileName returns the name of a file of the segment (or snapshot) at base: 20 digits and the extension.
func FileName(base int64, ext string) string { return fmt.Sprintf("%0*d%s", nameDigits, base, ext) }

// Path returns the path of that file in dir.
func Path(dir string, base int64, ext string) string { return filepath.Join(dir, FileName(base, ext)) }

// ParseFileName is the reverse of FileName. Anything but exactly 20 digits that fit an int64, followed by one of the
// four extensions, is not ok: such a file is not ours.
func ParseFileName(name string) (base int64, ext string, ok bool) {
	digits, ext, found := strings.Cut(name, ".")
	ext = "." + ext
	if !found || len(digits) != nameDigits {
		return 0, "", false
	}
	switch ext {
	case ExtLog, ExtIndex, ExtTimeIndex, ExtSnapshot:
	default:
		return 0, "", false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, "", false
		}
	}
	base, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, "", false
	}
	return base, ext, true
}
