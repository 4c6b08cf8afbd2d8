// Package ids holds the identities that Runnel writes to disk and compares byte for byte: topic IDs, storage IDs and log IDs.
//
// Each is a random UUID (RFC 9562, version 4) with a Go type of its own, so that one kind cannot be passed for another. The zero
// value means "none" and is never generated. Only the canonical lower-case form with hyphens is accepted as text: an identity is
// also a directory name, and two spellings of one identity would be two directories.
package ids

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// ErrInvalid is wrapped by every error of a Parse or Unmarshal function: the text is not a canonical UUID.
var ErrInvalid = errors.New("invalid id")

// TopicID names one incarnation of a topic. A topic that is deleted and created again gets another one, so it can never inherit
// bytes, offsets or tier objects.
type TopicID [16]byte

// StorageID names one data directory, from its formatting until it is lost.
type StorageID [16]byte

// LogID names one replica of a partition on one data directory. A log that was emptied or rebuilt in place gets another one.
type LogID [16]byte

// NewTopicID returns a random topic ID. It is safe for concurrent use, as are all functions of this package.
func NewTopicID() TopicID { return TopicID(uuid.New()) }

// NewStorageID returns a random storage ID.
func NewStorageID() StorageID { return StorageID(uuid.New()) }

// NewLogID returns a random log ID.
func NewLogID() LogID { return LogID(uuid.New()) }

// ParseTopicID reads the canonical text form; the error wraps ErrInvalid.
func ParseTopicID(s string) (TopicID, error) {
	id, err := parse(s)
	return TopicID(id), err
}

// ParseStorageID reads the canonical text form; the error wraps ErrInvalid.
func ParseStorageID(s string) (StorageID, error) {
	id, err := parse(s)
	return StorageID(id), err
}

// ParseLogID reads the canonical text form; the error wraps ErrInvalid.
func ParseLogID(s string) (LogID, error) {
	id, err := parse(s)
	return LogID(id), err
}

// String returns the canonical form, 36 characters.
func (id TopicID) String() string { return uuid.UUID(id).String() }

// String returns the canonical form, 36 characters.
func (id StorageID) String() string { return uuid.UUID(id).String() }

// String returns the canonical form, 36 characters.
func (id LogID) String() string { return uuid.UUID(id).String() }

// IsZero reports whether id names nothing.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// IsZero reports whether id names nothing.
func (id StorageID) IsZero() bool { return id == StorageID{} }

// IsZero reports whether id names nothing.
func (id LogID) IsZero() bool { return id == LogID{} }

// MarshalText implements encoding.TextMarshaler.
func (id TopicID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// MarshalText implements encoding.TextMarshaler.
func (id StorageID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// MarshalText implements encoding.TextMarshaler.
func (id LogID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText implements encoding.TextUnmarshaler; on error id keeps its value.
func (id *TopicID) UnmarshalText(b []byte) error { return unmarshal((*[16]byte)(id), b) }

// UnmarshalText implements encoding.TextUnmarshaler; on error id keeps its value.
func (id *StorageID) UnmarshalText(b []byte) error { return unmarshal((*[16]byte)(id), b) }

// UnmarshalText implements encoding.TextUnmarshaler; on error id keeps its value.
func (id *LogID) UnmarshalText(b []byte) error { return unmarshal((*[16]byte)(id), b) }

func unmarshal(dst *[16]byte, b []byte) error {
	id, err := parse(string(b))
	if err != nil {
		return err
	}
	*dst = id
	return nil
}

// parse accepts exactly what String prints. Versions other than 4 are accepted: an id that another tool made is as unique.
func parse(s string) (id [16]byte, err error) {
	const canonical = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	if len(s) != len(canonical) {
		return id, fmt.Errorf("%w: %d characters, a UUID has %d", ErrInvalid, len(s), len(canonical))
	}
	var digits [32]byte
	n := 0
	for i := range len(s) {
		c := s[i]
		switch {
		case canonical[i] == '-' && c == '-':
		case canonical[i] == 'x' && (c >= '0' && c <= '9' || c >= 'a' && c <= 'f'):
			digits[n] = c
			n++
		default:
			return id, fmt.Errorf("%w: %q has %q at position %d, want the form %s in lower case", ErrInvalid, s, c, i, canonical)
		}
	}
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return id, fmt.Errorf("%w: %q: %w", ErrInvalid, s, err)
	}
	return id, nil
}
