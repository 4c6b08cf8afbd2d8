package log

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// Meta is what a partition directory says of itself, for people and for recovering metadata.
type Meta struct {
	TopicID   ids.TopicID
	Partition int32
	LogID     ids.LogID
	TopicName string
	// TopicConfig is the topic's configuration as the metadata store encodes it; opaque here.
	TopicConfig []byte
}

// partition.meta, version 1: the frame of envelope.go with magic "RNLM" around
//
//	topic ID 16 | log ID 16 | partition 4 | name length 4 | name | config length 4 | config
const (
	// MetaFile is the name of the file.
	MetaFile = "partition.meta"
	maxName  = 249 // of a topic
)

var metaFormat = format{magic: "RNLM", version: 1}

func encodeMeta(m Meta) []byte {
	b := append(make([]byte, 0, 64+len(m.TopicName)+len(m.TopicConfig)), m.TopicID[:]...)
	b = append(b, m.LogID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Partition))      // #nosec G115 -- not negative
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.TopicName))) // #nosec G115 -- at most 249
	b = append(b, m.TopicName...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.TopicConfig))) // #nosec G115 -- small
	b = append(b, m.TopicConfig...)
	return seal(metaFormat, b)
}

func decodeMeta(name string, file []byte) (Meta, error) {
	b, err := unseal(name, metaFormat, file)
	if err != nil {
		return Meta{}, err
	}
	d := decoder{name: name, b: b}
	m := Meta{TopicID: ids.TopicID(d.take(16)), LogID: ids.LogID(d.take(16)), Partition: d.int32()}
	m.TopicName = string(d.bytes())
	m.TopicConfig = d.bytes()
	if d.err == nil && (len(d.b) > 0 || m.Partition < 0 || len(m.TopicName) > maxName || m.TopicID.IsZero() || m.LogID.IsZero()) {
		d.fail("partition %d, topic %q, %d bytes at the end", m.Partition, m.TopicName, len(d.b))
	}
	return m, d.err
}

// ReadMeta reads partition.meta of dir.
func ReadMeta(fsys vfs.FS, dir string) (Meta, error) {
	name := filepath.Join(dir, MetaFile)
	b, err := readFile(fsys, name)
	if err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", name, err)
	}
	return decodeMeta(name, b)
}

// UpdateTopic replaces the topic's name and configuration in partition.meta, durably. ErrClosed after Close: another log may
// be in the directory by then. Blocks on the disk.
func (l *Log) UpdateTopic(name string, config []byte) error {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	if s := l.state.Load(); s.Health == Offline {
		return s.Err
	}
	m := l.Meta()
	m.TopicName, m.TopicConfig = name, config
	if err := replaceFile(l.fs, filepath.Join(l.dir, MetaFile), encodeMeta(m)); err != nil {
		return diskError(err)
	}
	l.meta.Store(&m)
	return nil
}
