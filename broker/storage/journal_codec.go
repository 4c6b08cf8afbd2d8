package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
)

// The journal, version 1. Integers are little-endian. docs/formats/journal.md has the same pictures.
//
// File header, 40 bytes; the CRC-32C covers bytes 0 to 36:
//
//	 0       8         12           28               36      40
//	┌───────┬─────────┬────────────┬────────────────┬───────┐
//	│ magic │ version │ storage ID │ first sequence │ crc   │
//	└───────┴─────────┴────────────┴────────────────┴───────┘
//
// then frames; the CRC-32C covers bytes 0 to 16 of the frame and its records:
//
//	 0       4        8          16     20
//	┌───────┬────────┬──────────┬──────┬───────────┐
//	│ magic │ length │ sequence │ crc  │ records … │
//	└───────┴────────┴──────────┴──────┴───────────┘
//	                                     length
//
// and in a frame any number of records, 75 bytes and 12 for each epoch:
//
//	 0        16        20     36   37      39      47     55        63           71      75
//	┌────────┬─────────┬──────┬────┬───────┬───────┬──────┬─────────┬────────────┬───────┬─────────────────────┐
//	│ topic  │partition│log ID│kind│epochs │flushed│ HW   │log start│wanted start│adopted│ epoch (4) start (8)…│
//	└────────┴─────────┴──────┴────┴───────┴───────┴──────┴─────────┴────────────┴───────┴─────────────────────┘
const (
	journalName       = "journal"
	journalMagic      = "RNLJRNL\x00"
	journalVersion    = 1
	journalHeaderSize = 40

	frameMagic      = 0xF3464A52 // "RJF\xf3"
	frameHeaderSize = 20
	frameMaxBytes   = 1 << 20 // of records; a larger set of records is split over frames

	recordFixedSize = 75
	epochSize       = 12
)

// recordKind says how a record changes what is known about its log.
type recordKind uint8

const (
	// kindProgress raises flushed, high watermark, both log starts and the adopted epoch, and adds epochs.
	kindProgress recordKind = 1
	// kindTruncated lowers flushed and high watermark to the bound in the record, and drops epochs that begin at or above it.
	kindTruncated recordKind = 2
	// kindState replaces everything known: a new log, a rebuilt one, or a snapshot.
	kindState recordKind = 3
	// kindRemoved forgets the log: its directory was deleted on purpose.
	kindRemoved recordKind = 4
	// kindLogStart says what kindProgress says; a log start in it is about to be acknowledged, or published and files below it
	// unlinked.
	kindLogStart recordKind = 5
	// kindAdopted says what kindProgress says; the adopted epoch in it is new.
	kindAdopted recordKind = 6
)

// partitionKey names a log in the data directory.
type partitionKey struct {
	TopicID   ids.TopicID
	Partition int32
}

func (k partitionKey) String() string { return fmt.Sprintf("%s/%d", k.TopicID, k.Partition) }

// journalRecord is one statement about one log.
type journalRecord struct {
	key           partitionKey
	logID         ids.LogID
	kind          recordKind
	flushed       int64
	highWatermark int64
	logStart      int64 // published
	wantedStart   int64 // journaled, at or above logStart
	adopted       int32 // newest epoch that the replica takes part in
	epochs        []log.EpochStart
}

// critical tells whether losing the record could make recovery refuse acknowledged bytes or believe a wrong bound. A lost progress
// record without epochs only lowers the bound up to which a damage is told from a torn tail.
func (r journalRecord) critical() bool { return r.kind != kindProgress || len(r.epochs) > 0 }

func (r journalRecord) size() int { return recordFixedSize + epochSize*len(r.epochs) }

// encodeJournalHeader names the sequence of the file's first frame, so that a lost one is noticed.
func encodeJournalHeader(id ids.StorageID, first uint64) []byte {
	b := make([]byte, journalHeaderSize)
	copy(b, journalMagic)
	binary.LittleEndian.PutUint32(b[8:], journalVersion)
	copy(b[12:], id[:])
	binary.LittleEndian.PutUint64(b[28:], first)
	binary.LittleEndian.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
	return b
}

// decodeJournalHeader checks the header. Its errors are *CorruptFileError and *FutureFormatError.
func decodeJournalHeader(name string, b []byte) (id ids.StorageID, first uint64, err error) {
	corrupt := func(offset int64, format string, args ...any) error {
		return &CorruptFileError{File: name, Offset: offset, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(b) < journalHeaderSize:
		return id, 0, corrupt(int64(len(b)), "%d bytes, a header has %d", len(b), journalHeaderSize)
	case string(b[:8]) != journalMagic:
		return id, 0, corrupt(0, "begins with %q, want %q", b[:8], journalMagic)
	case crc32.Checksum(b[:36], castagnoli) != binary.LittleEndian.Uint32(b[36:]):
		return id, 0, corrupt(0, "header checksum does not match")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != journalVersion {
		return id, 0, &FutureFormatError{File: name, Version: v, Supported: journalVersion}
	}
	return ids.StorageID(b[12:28]), binary.LittleEndian.Uint64(b[28:]), nil
}

// appendFrame adds one frame to b. The records must fit in frameMaxBytes.
func appendFrame(b []byte, sequence uint64, records []journalRecord) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, frameMagic)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, sequence)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, r := range records {
		b = append(b, r.key.TopicID[:]...)
		b = binary.LittleEndian.AppendUint32(b, uint32(r.key.Partition))
		b = append(b, r.logID[:]...)
		b = append(b, byte(r.kind))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(r.epochs)))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.flushed))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.highWatermark))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.logStart))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.wantedStart))
		b = binary.LittleEndian.AppendUint32(b, uint32(r.adopted))
		for _, e := range r.epochs {
			b = binary.LittleEndian.AppendUint32(b, uint32(e.Epoch))
			b = binary.LittleEndian.AppendUint64(b, uint64(e.Start))
		}
	}
	frame := b[start:]
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-frameHeaderSize))
	crc := crc32.Update(crc32.Checksum(frame[:16], castagnoli), castagnoli, frame[frameHeaderSize:])
	binary.LittleEndian.PutUint32(frame[16:], crc)
	return b
}

// appendFrames adds records in as many frames as they need, beginning with sequence, and returns the next sequence. A frame that
// holds a critical record is written twice, so that no single damaged place loses it.
func appendFrames(b []byte, sequence uint64, records []journalRecord) ([]byte, uint64) {
	for len(records) > 0 {
		n, size, critical := 0, 0, false
		for n < len(records) && (n == 0 || size+records[n].size() <= frameMaxBytes) {
			size += records[n].size()
			critical = critical || records[n].critical()
			n++
		}
		b = appendFrame(b, sequence, records[:n])
		if critical {
			b = appendFrame(b, sequence, records[:n])
		}
		records = records[n:]
		sequence++
	}
	return b, sequence
}

// parsedFrame is one frame whose checksum is right.
type parsedFrame struct {
	sequence uint64
	records  []journalRecord
	size     int
}

// critical tells whether the frame was written twice.
func (f parsedFrame) critical() bool {
	return slices.ContainsFunc(f.records, journalRecord.critical)
}

// parseFrame reads the frame at the start of b; ok is false when there is none, or none that is whole.
func parseFrame(b []byte) (f parsedFrame, ok bool) {
	if len(b) < frameHeaderSize || binary.LittleEndian.Uint32(b) != frameMagic {
		return f, false
	}
	length := int64(binary.LittleEndian.Uint32(b[4:]))
	if length > frameMaxBytes+recordFixedSize+epochSize*maxJournalEpochs || length > int64(len(b)-frameHeaderSize) {
		return f, false
	}
	payload := b[frameHeaderSize : frameHeaderSize+length]
	crc := crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, payload)
	if crc != binary.LittleEndian.Uint32(b[16:]) {
		return f, false
	}
	f.sequence = binary.LittleEndian.Uint64(b[8:])
	f.size = frameHeaderSize + int(length)
	for len(payload) > 0 {
		r, n, ok := parseRecord(payload)
		if !ok {
			return f, false
		}
		f.records = append(f.records, r)
		payload = payload[n:]
	}
	return f, true
}

func parseRecord(b []byte) (r journalRecord, n int, ok bool) {
	if len(b) < recordFixedSize {
		return r, 0, false
	}
	r = journalRecord{
		key: partitionKey{
			TopicID:   ids.TopicID(b[:16]),
			Partition: int32(binary.LittleEndian.Uint32(b[16:])),
		},
		logID:         ids.LogID(b[20:36]),
		kind:          recordKind(b[36]),
		flushed:       int64(binary.LittleEndian.Uint64(b[39:])),
		highWatermark: int64(binary.LittleEndian.Uint64(b[47:])),
		logStart:      int64(binary.LittleEndian.Uint64(b[55:])),
		wantedStart:   int64(binary.LittleEndian.Uint64(b[63:])),
		adopted:       int32(binary.LittleEndian.Uint32(b[71:])),
	}
	count := int(binary.LittleEndian.Uint16(b[37:]))
	n = recordFixedSize + epochSize*count
	if r.kind < kindProgress || r.kind > kindAdopted || len(b) < n || count > maxJournalEpochs || r.key.Partition < 0 {
		return r, 0, false
	}
	if count > 0 {
		r.epochs = make([]log.EpochStart, count)
	}
	for i := range r.epochs {
		at := b[recordFixedSize+epochSize*i:]
		r.epochs[i].Epoch = int32(binary.LittleEndian.Uint32(at))
		r.epochs[i].Start = int64(binary.LittleEndian.Uint64(at[4:]))
	}
	return r, n, true
}
