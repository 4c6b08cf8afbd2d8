package objectstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxKeySize is the length of the longest key in bytes.
	MaxKeySize = 1024
	// MaxSegmentSize is the length of the longest part of a key between
	// slashes, in bytes: stores that keep a file per object need room for a
	// mark within the 255 bytes of a file name.
	MaxSegmentSize = 250
)

// CheckKey tells what is wrong with a key: *[KeyError], which is
// ErrInvalidKey. A key is UTF-8 of 1 to MaxKeySize bytes without control
// characters and backslashes. It consists of segments with single slashes
// between them and none at the ends, each of at most MaxSegmentSize bytes, none
// of them "." or "..": services and proxies on the way clean such paths, and a
// cleaned key is another key.
func CheckKey(key string) error {
	if key == "" {
		return &KeyError{Key: key, Reason: "is empty", Limit: fmt.Sprintf("1 to %d bytes", MaxKeySize)}
	}
	if err := checkText(key); err != nil {
		return err
	}
	for segment := range strings.SplitSeq(key, "/") {
		if err := checkSegment(key, segment); err != nil {
			return err
		}
	}
	return nil
}

// CheckPrefix tells why no key can begin with a prefix, with a *[KeyError].
// The empty prefix is valid.
func CheckPrefix(prefix string) error {
	if err := checkText(prefix); err != nil {
		return err
	}
	segments := strings.Split(prefix, "/")
	last := len(segments) - 1
	for _, segment := range segments[:last] {
		if err := checkSegment(prefix, segment); err != nil {
			return err
		}
	}
	return checkSegmentSize(prefix, segments[last])
}

// checkText checks what holds for every part of a key.
func checkText(key string) error {
	if len(key) > MaxKeySize {
		return &KeyError{Key: key, Reason: fmt.Sprintf("has %d bytes", len(key)), Limit: fmt.Sprintf("at most %d bytes", MaxKeySize)}
	}
	if !utf8.ValidString(key) {
		return &KeyError{Key: key, Reason: "is not valid UTF-8", Limit: "UTF-8"}
	}
	for i, r := range key {
		if unicode.IsControl(r) || r == '\\' {
			return &KeyError{Key: key, Reason: fmt.Sprintf("has %q at byte %d", r, i), Limit: "no control characters or backslashes"}
		}
	}
	return nil
}

func checkSegment(key, segment string) error {
	switch segment {
	case "":
		return &KeyError{Key: key, Reason: "has an empty segment", Limit: "single slashes, none at the ends"}
	case ".", "..":
		return &KeyError{Key: key, Reason: fmt.Sprintf("has a segment %q", segment), Limit: `no "." and ".." segments`}
	default:
		return checkSegmentSize(key, segment)
	}
}

func checkSegmentSize(key, segment string) error {
	if len(segment) <= MaxSegmentSize {
		return nil
	}
	return &KeyError{
		Key: key, Reason: fmt.Sprintf("has a segment of %d bytes", len(segment)),
		Limit: fmt.Sprintf("at most %d bytes between slashes", MaxSegmentSize),
	}
}
