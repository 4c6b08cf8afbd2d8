package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// Severity tells a damage from something that is merely worth knowing.
type Severity uint8

const (
	// Note is something unfinished, foreign, or above what was made durable. Nothing that was acknowledged is affected.
	Note Severity = iota
	// Damage is something that is not as it was written.
	Damage
)

// String returns "note" or "damage".
func (s Severity) String() string {
	if s == Damage {
		return "damage"
	}
	return "note"
}

// Finding is one thing that VerifyDir has to say.
type Finding struct {
	Severity Severity
	File     string
	// Segment is the base offset of the segment, Offset the log offset from which the file cannot be trusted; -1 outside of segments.
	Segment, Offset int64
	Position        int64 // bytes from the start of File; -1 when it concerns all of it
	Detail          string
}

// String is one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: file %s", f.Severity, f.File)
	if f.Segment >= 0 {
		s += fmt.Sprintf(", segment %d, offset %d", f.Segment, f.Offset)
	}
	if f.Position >= 0 {
		s += fmt.Sprintf(", position %d", f.Position)
	}
	return s + ": " + f.Detail
}

// Summary counts what VerifyDir has seen.
type Summary struct {
	Partitions, Segments, Batches, Records int64
	Bytes                                  int64 // of batches
	Damages, Notes                         int64
}

// verifier walks a data directory.
type verifier struct {
	fsys    vfs.FS
	dir     string
	report  func(Finding)
	summary Summary
	state   journalState
}

// VerifyDir reads every file of a data directory and reports what is wrong, in the order of the directory. It changes nothing and
// takes no lock, so it works beside a running broker; what that broker has not made durable yet, or removes meanwhile, is no
// damage. The error is for a directory that cannot be read, not for what is in it; report is called from this goroutine only.
func VerifyDir(ctx context.Context, fsys vfs.FS, dir string, report func(Finding)) (Summary, error) {
	v := &verifier{fsys: fsys, dir: dir, report: report}
	found, err := scanDataDir(fsys, dir)
	if err != nil {
		return v.summary, fmt.Errorf("verifying %s: %w", dir, err)
	}
	if err := v.root(found); err != nil {
		return v.summary, fmt.Errorf("verifying %s: %w", dir, err)
	}
	for _, path := range found.foreign {
		v.note(path, "not a file of Runnel's")
	}
	for _, list := range [][]leftover{found.recovering, found.deleted} {
		for _, l := range list {
			v.note(l.path, "left by an interrupted operation; the next start deals with it")
		}
	}
	for _, l := range found.damaged {
		v.note(l.path, "set aside by a recovery; not verified")
	}
	for _, k := range sortedKeys(found.partitions) {
		if err := ctx.Err(); err != nil {
			return v.summary, err
		}
		if err := v.partition(ctx, k, found.partitions[k]); err != nil {
			return v.summary, fmt.Errorf("verifying partition %v: %w", k, err)
		}
	}
	for _, k := range sortedKeys(v.state) {
		if path := partitionDir(dir, k); found.partitions[k] == "" && !deletedNow(found, k) && v.gone(path) {
			v.damage(Finding{File: path, Segment: -1, Position: -1, Detail: "the journal knows this partition, and its directory is missing"})
		}
	}
	return v.summary, nil
}

func (v *verifier) gone(path string) bool {
	_, err := v.fsys.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// deletedNow tells whether a deletion or a recovery of the partition was under way.
func deletedNow(c contents, k partitionKey) bool {
	for _, list := range [][]leftover{c.deleted, c.recovering} {
		for _, l := range list {
			if l.key == k {
				return true
			}
		}
	}
	return false
}

func (v *verifier) damage(f Finding) {
	f.Severity = Damage
	v.summary.Damages++
	v.report(f)
}

func (v *verifier) note(path, detail string) {
	v.noteAt(Finding{File: path, Segment: -1, Offset: -1, Position: -1, Detail: detail})
}

func (v *verifier) noteAt(f Finding) {
	f.Severity = Note
	v.summary.Notes++
	v.report(f)
}

// fault reports a damage if err is one, and returns every other error. A file that is gone was removed by a running broker.
func (v *verifier) fault(path string, err error) error {
	var corrupt *CorruptFileError
	var future *FutureFormatError
	var inLog *log.CorruptError
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &corrupt):
		v.damage(Finding{File: corrupt.File, Segment: -1, Offset: -1, Position: corrupt.Offset, Detail: corrupt.Detail})
	case errors.As(err, &inLog):
		v.damage(Finding{File: inLog.File, Segment: inLog.Segment, Offset: inLog.Offset, Position: inLog.Position, Detail: causeOf(inLog)})
	case errors.As(err, &future), errors.Is(err, log.ErrVersion):
		v.damage(Finding{File: path, Segment: -1, Offset: -1, Position: 0, Detail: err.Error()})
	default:
		return err
	}
	return nil
}

func causeOf(e *log.CorruptError) string {
	if e.Err == nil {
		return e.Detail
	}
	return e.Detail + ": " + e.Err.Error()
}

// root verifies the files of the data directory itself.
func (v *verifier) root(found contents) error {
	path := func(name string) string { return filepath.Join(v.dir, name) }
	m, err := readMeta(v.fsys, v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(found.partitions) == 0 {
			return fmt.Errorf("%w: there is no %s file: this is not a data directory", fs.ErrNotExist, metaName)
		}
		v.damage(Finding{File: path(metaName), Segment: -1, Offset: -1, Position: -1, Detail: "missing"})
	}
	if err := v.fault(path(metaName), err); err != nil {
		return err
	}
	if _, err := readStops(v.fsys, v.dir); v.fault(path(stopsName), err) != nil {
		return err
	}
	if _, err := LoadPosition(v.fsys, v.dir); v.fault(path(positionName), err) != nil {
		return err
	}
	seal, err := readClean(v.fsys, v.dir)
	if err := v.fault(path(cleanName), err); err != nil {
		return err
	}
	v.state = journalState{}
	id := m.StorageID
	if id.IsZero() {
		id = v.storageOfJournal()
	}
	r, err := replayJournal(v.fsys, path(journalName), id)
	if errors.Is(err, fs.ErrNotExist) {
		v.damage(Finding{File: path(journalName), Segment: -1, Offset: -1, Position: -1, Detail: "missing"})
		return nil
	}
	if err != nil {
		return v.fault(path(journalName), err)
	}
	v.state = r.state
	for _, d := range r.damage {
		v.damage(Finding{File: d.File, Segment: -1, Offset: -1, Position: d.Offset, Detail: d.Detail})
	}
	return v.journalEnd(r, seal)
}

func (v *verifier) journalEnd(r replayed, seal *journalSeal) error {
	path := filepath.Join(v.dir, journalName)
	if seal != nil {
		differs, err := checkSeal(v.fsys, v.dir, *seal)
		if err != nil {
			return v.fault(path, err)
		}
		// A broker that started meanwhile took the marker away, and may have written.
		if differs != nil && len(r.damage) == 0 && !v.gone(filepath.Join(v.dir, cleanName)) {
			v.damage(Finding{File: path, Segment: -1, Offset: -1, Position: r.end, Detail: differs.Detail})
		}
		return nil
	}
	if r.torn {
		v.noteAt(Finding{File: path, Segment: -1, Offset: -1, Position: r.end, Detail: "the last write was interrupted, or is going on"})
	}
	return nil
}

// storageOfJournal is the storage ID in the journal, for a directory whose meta cannot tell.
func (v *verifier) storageOfJournal() ids.StorageID {
	path := filepath.Join(v.dir, journalName)
	b, err := readWhole(v.fsys, path, journalMaxSize)
	if err != nil {
		return ids.StorageID{}
	}
	id, _, err := decodeJournalHeader(path, b)
	if err != nil {
		return ids.StorageID{}
	}
	return id
}
