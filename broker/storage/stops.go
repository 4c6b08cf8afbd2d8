package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"runnel.dev/runnel/internal/vfs"
)

// Sealed file `stops`, version 1: the times at which this broker stopped because a sync failed, oldest first, as 8-byte
// milliseconds since 1970. It exists only after such a stop.
const (
	stopsName = "stops"

	// maxStops within stopsWindow mean that the disk is lost: the store refuses to open until an operator clears them.
	maxStops    = 3
	stopsWindow = 10 * time.Minute
)

var stopsFile = sealedKind{stopsName, "RNLSTOPS", 1}

// readStops returns the recorded stops; none when there is no file.
func readStops(fsys vfs.FS, dir string) ([]time.Time, error) {
	body, err := stopsFile.read(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(body)%8 != 0 {
		return nil, &CorruptFileError{File: filepath.Join(dir, stopsName), Offset: sealedHeaderSize, Detail: "the body is not a list of 8-byte times"}
	}
	stops := make([]time.Time, 0, len(body)/8)
	for ; len(body) > 0; body = body[8:] {
		stops = append(stops, time.UnixMilli(int64(binary.LittleEndian.Uint64(body))).UTC())
	}
	return stops, nil
}

// checkStops refuses when maxStops lie within one stopsWindow. The window is measured between the stops, not back from now: a
// broker that was left down over night is not healed by the clock.
func checkStops(fsys vfs.FS, dir string) error {
	stops, err := readStops(fsys, dir)
	if err != nil {
		return fmt.Errorf("reading the record of failed syncs: %w", err)
	}
	if len(stops) < maxStops {
		return nil
	}
	last := stops[len(stops)-maxStops:]
	if d := last[maxStops-1].Sub(last[0]); d < 0 || d > stopsWindow {
		return nil
	}
	return &StoppedTooOftenError{File: filepath.Join(dir, stopsName), Stops: last, Within: stopsWindow}
}

// recordStop adds now; only the newest maxStops are kept.
func recordStop(fsys vfs.FS, dir string, now time.Time) error {
	stops, err := readStops(fsys, dir)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	stops = append(stops, now)
	stops = stops[max(0, len(stops)-maxStops):]
	body := make([]byte, 0, 8*len(stops))
	for _, t := range stops {
		body = binary.LittleEndian.AppendUint64(body, uint64(t.UnixMilli()))
	}
	return stopsFile.write(fsys, dir, body)
}

// ClearStops forgets the stops after failed syncs, so that a store that was refused with *StoppedTooOftenError opens again. It is
// an operator's decision: the disk was checked or replaced.
func ClearStops(fsys vfs.FS, dir string) error {
	if err := removeIfExists(fsys, filepath.Join(dir, stopsName)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}
