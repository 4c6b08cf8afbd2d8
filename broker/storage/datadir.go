package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

const lockName = "lock"

// rootFiles are the names of ours in the root of a data directory, beside the directories of topics.
var rootFiles = map[string]bool{
	metaName: true, lockName: true, journalName: true, stopsName: true, cleanName: true, positionName: true,
	positionName + tmpSuffix: true, snapshotName: true, snapshotName + tmpSuffix: true,
	metaName + tmpSuffix: true, journalName + tmpSuffix: true, stopsName + tmpSuffix: true, cleanName + tmpSuffix: true,
}

// dataDir is a locked data directory whose identity was checked.
type dataDir struct {
	fsys   vfs.FS
	path   string
	meta   meta
	lock   io.Closer
	volume vfs.Volume // opened before the first write, so that its sync reports every error
}

// openDataDir locks dir, and checks its identity or formats it. It refuses, without changing anything: a directory in use
// (ErrLocked), a network file system (*NetworkStorageError), another cluster's directory (*ForeignClusterError), a newer format
// (*FutureFormatError), one whose meta file is gone (*UnformattedError) or damaged (*CorruptFileError), and one that stopped too
// often (*StoppedTooOftenError).
func openDataDir(cfg Config, fsys vfs.FS, clk clock.Clock) (_ *dataDir, err error) {
	if err := checkFileSystem(cfg, fsys); err != nil {
		return nil, err
	}
	if err := mkdirDurable(fsys, cfg.DataDir); err != nil {
		return nil, fmt.Errorf("creating data directory %s: %w", cfg.DataDir, err)
	}
	d := &dataDir{fsys: fsys, path: cfg.DataDir}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	d.lock, err = fsys.Lock(filepath.Join(d.path, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%w: %s: %w", ErrLocked, d.path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("locking data directory %s: %w", d.path, err)
	}
	if err := checkStops(fsys, d.path); err != nil {
		return nil, err
	}
	if d.volume, err = fsys.OpenVolume(d.path); err != nil {
		return nil, fmt.Errorf("opening the volume of %s: %w", d.path, err)
	}
	d.meta, err = readMeta(fsys, d.path)
	if errors.Is(err, fs.ErrNotExist) {
		d.meta, err = formatDataDir(cfg, fsys, clk)
	}
	if err != nil {
		return nil, err
	}
	if d.meta.ClusterID != cfg.ClusterID {
		return nil, &ForeignClusterError{Dir: d.path, Found: d.meta.ClusterID, Expected: cfg.ClusterID}
	}
	for name := range rootFiles {
		if filepath.Ext(name) == tmpSuffix {
			if err := removeIfExists(fsys, filepath.Join(d.path, name)); err != nil {
				return nil, fmt.Errorf("removing what an interrupted write left: %w", err)
			}
		}
	}
	return d, nil
}

func (d *dataDir) close() error {
	var errs []error
	if d.volume != nil {
		errs = append(errs, d.volume.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}

// checkFileSystem looks at the directory or, where that is still to be made, at its nearest parent.
func checkFileSystem(cfg Config, fsys vfs.FS) error {
	at := filepath.Clean(cfg.DataDir)
	for at != filepath.Dir(at) {
		if _, err := fsys.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		at = filepath.Dir(at)
	}
	kind, network, err := fsys.FileSystem(at)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil // a platform for development only
	case err != nil:
		return fmt.Errorf("finding the file system of %s: %w", cfg.DataDir, err)
	case network && !cfg.AllowNetworkStorage:
		return &NetworkStorageError{Dir: cfg.DataDir, Kind: kind}
	}
	return nil
}

func readMeta(fsys vfs.FS, dir string) (meta, error) {
	path := filepath.Join(dir, metaName)
	b, err := readWhole(fsys, path, 1<<20)
	if err != nil {
		return meta{}, err
	}
	return decodeMeta(path, b)
}

// formatDataDir gives an unused directory an identity. Files of others may be in it; anything of ours means that meta was lost.
//
// Crash windows: the journal is made before meta, so that a formatted directory without a journal is one that lost it. A crash in
// between leaves an empty journal, which the next attempt replaces.
func formatDataDir(cfg Config, fsys vfs.FS, clk clock.Clock) (meta, error) {
	entries, err := fsys.ReadDir(cfg.DataDir)
	if err != nil {
		return meta{}, err
	}
	for _, e := range entries {
		_, notTopic := ids.ParseTopicID(e.Name)
		used := e.IsDir && notTopic == nil || e.Name == cleanName || e.Name == journalName && e.Size > journalHeaderSize
		if used {
			return meta{}, &UnformattedError{Dir: cfg.DataDir, Found: e.Name}
		}
	}
	m := meta{StorageID: ids.NewStorageID(), ClusterID: cfg.ClusterID, Formatted: clk.Now()}
	if err := replaceDurably(fsys, cfg.DataDir, journalName, encodeJournalHeader(m.StorageID, 1)); err != nil {
		return meta{}, fmt.Errorf("formatting %s: %w", cfg.DataDir, err)
	}
	if err := replaceDurably(fsys, cfg.DataDir, metaName, m.encode()); err != nil {
		return meta{}, fmt.Errorf("formatting %s: %w", cfg.DataDir, err)
	}
	return m, nil
}

// mkdirDurable creates dir and its missing parents, and syncs every directory that got an entry.
func mkdirDurable(fsys vfs.FS, dir string) error {
	dir = filepath.Clean(dir)
	var created []string // the parents that get a new entry, innermost first
	for at := dir; ; at = filepath.Dir(at) {
		info, err := fsys.Stat(at)
		if err == nil && !info.IsDir {
			return &fs.PathError{Op: "mkdir", Path: at, Err: errors.New("is not a directory")}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		created = append(created, filepath.Dir(at))
		if at == filepath.Dir(at) {
			break
		}
	}
	if len(created) == 0 {
		return nil
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	for _, parent := range created {
		if err := fsys.SyncDir(parent); err != nil {
			return err
		}
	}
	return nil
}

// parsePartition reads the name of a partition's directory: a decimal number without a sign or leading zeros.
func parsePartition(name string) (int32, bool) {
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != name {
		return 0, false
	}
	return int32(n), true
}
