package storage

import (
	"path/filepath"
	"time"

	"runnel.dev/runnel/broker/log"
)

// Report says what Open found. Paths are below the data directory's.
type Report struct {
	// Clean: the last stop was a clean one.
	Clean bool
	// Partitions is the number of partition directories.
	Partitions int
	// Took is the time that opening needed.
	Took time.Duration
	// Damage lists damaged files of the data directory itself, such as the journal. Partitions report theirs in their state.
	Damage []error
	// JournalLost: the journal is missing, or records of it are. Logs have kept every whole batch.
	JournalLost bool
	// Quarantined lists partitions that serve nothing until they are recovered, the missing ones included.
	Quarantined []PartitionRef
	// Missing lists partitions that the journal knows and whose directory is gone.
	Missing []PartitionRef
	// Foreign lists files and directories that are not Runnel's, which were left alone.
	Foreign []string
	// SetAside lists directories that `partition recover` kept.
	SetAside []string
}

// note adds what the opening of a partition found to the report.
func (o *opening) note(k partitionKey, dir string, rep log.Report) {
	lg := o.lg.With("topic_id", k.TopicID.String(), "partition", k.Partition)
	if rep.CutBytes > 0 || rep.CutSegments > 0 {
		lg.Warn("Bytes that were never acknowledged were cut off", "bytes", rep.CutBytes, "segments", rep.CutSegments, "reason", rep.CutReason)
	}
	if rep.Unknown {
		lg.Warn("The journal did not know this log: every whole batch was kept", "dir", dir)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range rep.Foreign {
		o.report.Foreign = append(o.report.Foreign, filepath.Join(dir, name))
	}
}

func (s *Store) logReport() {
	r := s.report
	lg := s.lg.With("dir", s.cfg.DataDir)
	for _, err := range r.Damage {
		lg.Error("The data directory is damaged", "error", err)
	}
	for _, ref := range r.Quarantined {
		p, _ := s.get(partitionKey(ref))
		lg.Error("A partition is quarantined", "topic_id", ref.TopicID.String(), "partition", ref.Partition, "error", p.state().Err)
	}
	for _, path := range r.Foreign {
		lg.Warn("A file that is not Runnel's is left alone", "path", path)
	}
	for _, path := range r.SetAside {
		lg.Info("A recovery set these files aside", "path", path)
	}
	lg.Info("Opened the data directory", "storage_id", s.StorageID().String(), "cluster_id", s.ClusterID(),
		"partitions", r.Partitions, "quarantined", len(r.Quarantined), "clean", r.Clean, "took", r.Took)
}
