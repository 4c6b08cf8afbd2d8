package file

import (
	"errors"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
)

// Config is what a store needs. All fields are required.
type Config struct {
	// FS is the file system. It needs locks that end with their process, so
	// none that is served over a network.
	FS vfs.FS
	// Root is the directory of the store. Open creates it if need be.
	Root string
	// Clock paces the waiting for locks of other processes.
	Clock clock.Clock
}

// Validate reports all faults.
func (c Config) Validate() error {
	var faults []error
	if c.FS == nil {
		faults = append(faults, errors.New("file object store: no file system"))
	}
	if c.Root == "" {
		faults = append(faults, errors.New("file object store: no root directory"))
	}
	if c.Clock == nil {
		faults = append(faults, errors.New("file object store: no clock"))
	}
	return errors.Join(faults...)
}
