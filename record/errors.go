package record

import (
	"errors"
	"fmt"
)

// The three classes that every *BatchError belongs to (errors.Is).
var (
	// ErrCorrupt: the bytes are not what their writer wrote. Sending or reading them again may help.
	ErrCorrupt = errors.New("record batch is corrupt")
	// ErrTooLarge: a size limit is exceeded. Smaller batches help.
	ErrTooLarge = errors.New("record batch is too large")
	// ErrInvalid: the bytes are intact, and they break a rule of the format or of the broker.
	ErrInvalid = errors.New("record batch is invalid")
)

// Reason tells which check a batch failed.
type Reason uint8

// The reasons, each with the class that it belongs to.
const (
	ReasonTruncated          Reason = iota + 1 // ErrCorrupt: fewer bytes than declared, or a length too small for a header
	ReasonTrailingBytes                        // ErrCorrupt: bytes behind the batch
	ReasonCRC                                  // ErrCorrupt
	ReasonTooLarge                             // ErrTooLarge: the batch itself
	ReasonDecompressionLimit                   // ErrTooLarge: the records, once decompressed
	ReasonMagic                                // ErrInvalid: not format v2
	ReasonAttributes                           // ErrInvalid: unknown codec, control, transactional, reserved bits
	ReasonCount                                // ErrInvalid: record count against last offset delta and content
	ReasonOffset                               // ErrInvalid: base offset negative, or offsets beyond 63 bits
	ReasonRecord                               // ErrInvalid: one record is malformed; BatchError.Record is its index
	ReasonTimestamp                            // ErrInvalid: negative, overflowing, too far ahead, or a wrong maximum
	ReasonProducer                             // ErrInvalid: producer id, epoch and sequence contradict each other
	ReasonDecompression                        // ErrInvalid: the records do not decompress
)

var reasonNames = [...]string{
	ReasonTruncated:          "truncated",
	ReasonTrailingBytes:      "trailing bytes",
	ReasonCRC:                "checksum mismatch",
	ReasonTooLarge:           "too large",
	ReasonDecompressionLimit: "decompressed size over limit",
	ReasonMagic:              "unsupported magic",
	ReasonAttributes:         "unsupported attributes",
	ReasonCount:              "wrong record count",
	ReasonOffset:             "bad offset",
	ReasonRecord:             "malformed record",
	ReasonTimestamp:          "bad timestamp",
	ReasonProducer:           "inconsistent producer fields",
	ReasonDecompression:      "decompression failed",
}

// String returns a short English phrase.
func (r Reason) String() string {
	if int(r) >= len(reasonNames) || reasonNames[r] == "" {
		return fmt.Sprintf("reason(%d)", uint8(r))
	}
	return reasonNames[r]
}

func (r Reason) class() error {
	switch r {
	case ReasonTruncated, ReasonTrailingBytes, ReasonCRC:
		return ErrCorrupt
	case ReasonTooLarge, ReasonDecompressionLimit:
		return ErrTooLarge
	case ReasonMagic, ReasonAttributes, ReasonCount, ReasonOffset, ReasonRecord, ReasonTimestamp, ReasonProducer, ReasonDecompression:
		return ErrInvalid
	}
	return ErrInvalid
}

// BatchError is the error of everything in this package that looks at a batch.
type BatchError struct {
	Reason Reason
	// Record is the index of the offending record within its batch, -1 when the fault is not a record's.
	Record int
	// Value is the offending value and Limit what it was held against; both are spelled out in Detail.
	Value, Limit int64
	Detail       string
	// Err is the codec's error for ReasonDecompression, else nil.
	Err error
}

// Error implements error.
func (e *BatchError) Error() string {
	if e.Record >= 0 {
		return fmt.Sprintf("record batch: %s: record %d: %s", e.Reason, e.Record, e.Detail)
	}
	return fmt.Sprintf("record batch: %s: %s", e.Reason, e.Detail)
}

// Is matches ErrCorrupt, ErrTooLarge and ErrInvalid.
func (e *BatchError) Is(target error) bool { return target == e.Reason.class() }

// Unwrap returns the codec's error, if there is one.
func (e *BatchError) Unwrap() error { return e.Err }

func fault(r Reason, value, limit int64, format string, args ...any) *BatchError {
	return &BatchError{Reason: r, Record: -1, Value: value, Limit: limit, Detail: fmt.Sprintf(format, args...)}
}
