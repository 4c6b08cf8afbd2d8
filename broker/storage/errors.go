package storage

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// Errors to test for with errors.Is. The typed errors below carry the details.
var (
	// ErrCorrupt: a file of the data directory is not what was written. Wrapped by *CorruptFileError.
	ErrCorrupt = errors.New("data directory is corrupt")
	// ErrDiskFull: free space is below the reserve; produce is refused until space is back. Wrapped by *DiskFullError.
	ErrDiskFull = errors.New("disk is full")
	// ErrLocked: another process (or another Store of this one) has the data directory open.
	ErrLocked = errors.New("data directory is in use by another process")
	// ErrLogExists: CreateLog names a partition that is there already.
	ErrLogExists = errors.New("partition already exists")
	// ErrLogNotFound: the data directory holds no such partition.
	ErrLogNotFound = errors.New("partition not found")
	// ErrClosed: the store is closed, or it stopped after a failed sync, or the partition was deleted.
	ErrClosed = errors.New("storage is closed")
	// ErrBusy: the partition is being created, deleted or recovered by another call.
	ErrBusy = errors.New("partition is being changed")
	// ErrNotDamaged: Recover names a partition that needs no recovery.
	ErrNotDamaged = errors.New("partition is not damaged")
)

// CorruptFileError says which file is damaged, and where. It wraps ErrCorrupt.
type CorruptFileError struct {
	File   string
	Offset int64 // bytes from the start of the file to the damage
	Detail string
}

func (e *CorruptFileError) Error() string {
	return fmt.Sprintf("%s: damaged at byte %d: %s", e.File, e.Offset, e.Detail)
}

// Unwrap returns ErrCorrupt.
func (e *CorruptFileError) Unwrap() error { return ErrCorrupt }

// FutureFormatError says that a file was written by a newer release. Nothing was changed.
type FutureFormatError struct {
	File      string
	Version   uint32 // found
	Supported uint32 // the newest that this release reads
}

func (e *FutureFormatError) Error() string {
	return fmt.Sprintf("%s: format version %d, this release supports 1 to %d: use a newer release", e.File, e.Version, e.Supported)
}

// ForeignClusterError says that the data directory belongs to another cluster. Nothing was changed.
type ForeignClusterError struct {
	Dir      string
	Found    string // cluster id of the directory
	Expected string // cluster id of the configuration
}

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("data directory %s belongs to cluster %q, this broker to %q: check dataDir and cluster", e.Dir, e.Found, e.Expected)
}

// NetworkStorageError says that the data directory is on a network file system, whose syncs and locks promise too little.
type NetworkStorageError struct {
	Dir  string
	Kind string // such as "nfs"
}

func (e *NetworkStorageError) Error() string {
	return fmt.Sprintf("data directory %s is on a network file system (%s): use a local disk, or set allowNetworkStorage", e.Dir, e.Kind)
}

// UnformattedError says that the directory holds data but its meta file is gone. Formatting it anew would give the data to
// another identity, so it is refused; nothing was changed.
type UnformattedError struct {
	Dir   string
	Found string // an entry that only a formatted directory has
}

func (e *UnformattedError) Error() string {
	return fmt.Sprintf("data directory %s has %s but no %s file: restore that file, or move the data away to start empty", e.Dir, e.Found, metaName)
}

// Unwrap returns ErrCorrupt.
func (e *UnformattedError) Unwrap() error { return ErrCorrupt }

// SyncFailedError is what Run returns when bytes could not be made durable. The broker has to stop: a failed sync marks pages
// clean, so trying again would prove nothing. Nothing that the sync was to cover has been acknowledged.
type SyncFailedError struct {
	What string // file, log or volume whose sync failed
	Err  error
}

func (e *SyncFailedError) Error() string {
	return fmt.Sprintf("sync of %s failed: %v: stopping, because what was written since the last sync may be lost", e.What, e.Err)
}

// Unwrap returns the error of the file system.
func (e *SyncFailedError) Unwrap() error { return e.Err }

// StoppedTooOftenError refuses to start after repeated sync failures: the disk has to be treated as lost until an operator says
// otherwise by removing File (ClearStops does).
type StoppedTooOftenError struct {
	File   string
	Stops  []time.Time // oldest first
	Within time.Duration
}

func (e *StoppedTooOftenError) Error() string {
	times := make([]string, len(e.Stops))
	for i, t := range e.Stops {
		times[i] = t.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("stopped %d times within %v because syncs failed (%s): replace the disk, or remove %s to try again",
		len(e.Stops), e.Within, strings.Join(times, ", "), e.File)
}

// DiskFullError says that free space is below the reserve. It wraps ErrDiskFull.
type DiskFullError struct {
	Dir           string
	Free, Reserve int64 // bytes
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("disk of %s is full: %d bytes free, %d are reserved for recovery and metadata; produce resumes by itself when there is space",
		e.Dir, e.Free, e.Reserve)
}

// Unwrap returns ErrDiskFull.
func (e *DiskFullError) Unwrap() error { return ErrDiskFull }

// PartitionError names the partition that an operation failed on.
type PartitionError struct {
	Op        string
	TopicID   ids.TopicID
	Partition int32
	Err       error
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("%s partition %s/%d: %v", e.Op, e.TopicID, e.Partition, e.Err)
}

// Unwrap returns the cause.
func (e *PartitionError) Unwrap() error { return e.Err }
