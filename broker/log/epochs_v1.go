package log

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// The epoch checkpoint, version 1: the frame of envelope.go with magic "RNLE" around
//
//	count 4 | count × ( epoch 4 | start offset 8 )
//
// Epochs and starts increase strictly. The file may lack the newest epochs: those are in the journal.
const (
	epochsName  = "epochs"
	epochsEntry = 12
)

var epochsFormat = format{magic: "RNLE", version: 1}

func encodeEpochs(g []EpochStart) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(g))) // #nosec G115 -- bounded by epochs
	for _, e := range g {
		b = binary.BigEndian.AppendUint32(b, uint32(e.Epoch)) // #nosec G115 -- bits kept
		b = binary.BigEndian.AppendUint64(b, uint64(e.Start)) // #nosec G115 -- bits kept
	}
	return seal(epochsFormat, b)
}

func decodeEpochs(name string, file []byte) ([]EpochStart, error) {
	b, err := unseal(name, epochsFormat, file)
	if err != nil {
		return nil, err
	}
	d := decoder{name: name, b: b}
	count := d.uint32()
	if d.err == nil && int64(count)*epochsEntry != int64(len(d.b)) {
		d.fail("%d entries in %d bytes", count, len(d.b))
	}
	if d.err != nil {
		return nil, d.err
	}
	g := make([]EpochStart, 0, count)
	for range count {
		e := EpochStart{Epoch: d.int32(), Start: d.int64()}
		if n := len(g); e.Epoch < 0 || e.Start < 0 || n > 0 && (e.Epoch <= g[n-1].Epoch || e.Start <= g[n-1].Start) {
			d.fail("epoch %d at %d is out of order", e.Epoch, e.Start)
			return nil, d.err
		}
		g = append(g, e)
	}
	return g, nil
}

// readEpochs returns the checkpoint; an absent file is an empty one.
func readEpochs(fsys vfs.FS, dir string) ([]EpochStart, error) {
	name := filepath.Join(dir, epochsName)
	b, err := readFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeEpochs(name, b)
}

// saveEpochs writes the checkpoint of an open log if it lacks something. A sync that fails there fails the log, as any other one
// does. Needs appendMu.
func (l *Log) saveEpochs() error {
	err := l.checkpointEpochs(false)
	if errors.Is(err, errSync) {
		return l.syncFailed(err)
	}
	return err
}

// checkpointEpochs writes the checkpoint if it lacks something. Needs appendMu.
func (l *Log) checkpointEpochs(force bool) error {
	l.mu.Lock()
	n := len(l.mu.uncheckpointed)
	g := *l.epochs.Load()
	l.mu.Unlock()
	if n == 0 && !force {
		return nil
	}
	if err := replaceFile(l.fs, filepath.Join(l.dir, epochsName), encodeEpochs(g)); err != nil {
		return err
	}
	l.checkpointed(n)
	return nil
}

// commitEpochs gives the checkpoint that was prepared for the present epochs its name. Needs appendMu.
func (l *Log) commitEpochs() error {
	if err := commitFile(l.fs, filepath.Join(l.dir, epochsName)); err != nil {
		return err
	}
	l.mu.Lock()
	n := len(l.mu.uncheckpointed)
	l.mu.Unlock()
	l.checkpointed(n)
	return nil
}

// checkpointed forgets the first n epochs that the checkpoint lacked.
func (l *Log) checkpointed(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.uncheckpointed = l.mu.uncheckpointed[n:]
}
