package log

import (
	"errors"
	"path/filepath"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
)

// Names of files in a partition directory: what the directory is, and where each leader epoch starts.
const (
	MetaFile   = MetaFile
	EpochsFile = epochsName
)

// IsSmallFile tells whether name is that of a file of a partition directory that belongs to no segment: partition.meta,
// the epoch checkpoint, the clean marker, a producer snapshot, or the temporary form of one.
func IsSmallFile(name string) bool {
	switch name {
	case MetaFile, epochsName, cleanName, MetaFile + tmpSuffix, epochsName + tmpSuffix:
		return true
	}
	_, ext, ok := segment.ParseFileName(name)
	return ok && ext == segment.ExtSnapshot
}

// VerifySmallFile reads one of those files and checks it as far as it can be checked alone: *CorruptError, ErrVersion,
// or an error of the disk. A temporary file is never wrong: a crash may leave it half written.
func VerifySmallFile(fsys vfs.FS, path string) error {
	name := filepath.Base(path)
	if filepath.Ext(name) == tmpSuffix {
		return nil
	}
	b, err := readFile(fsys, path)
	if err != nil {
		return err
	}
	switch name {
	case MetaFile:
		_, err = decodeMeta(path, b)
	case epochsName:
		_, err = decodeEpochs(path, b)
	case cleanName:
		_, err = decodeClean(path, b)
	default:
		at, ext, ok := segment.ParseFileName(name)
		if !ok || ext != segment.ExtSnapshot {
			return errors.New(path + " is not a small file of a partition directory")
		}
		var offset int64
		if offset, _, err = decodeSnapshot(path, b); err == nil && offset != at {
			err = &CorruptError{File: path, Offset: at, Detail: "the snapshot is of another offset than its name"}
		}
	}
	return err
}
