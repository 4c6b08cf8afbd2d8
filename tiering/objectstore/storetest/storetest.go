// Package storetest is the contract of objectstore.Store as a suite of tests.
package storetest

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"runnel.dev/runnel/tiering/objectstore"
)

// Run tests a store. newStore returns an empty one each time, which belongs to
// the test that it is given; it also cleans up.
func Run(t *testing.T, newStore func(t testing.TB) objectstore.Store) {
	for name, test := range map[string]func(*testing.T, objectstore.Store){
		"round trip":                    testRoundTrip,
		"put refuses wrong bytes":       testPutWrongBytes,
		"put refuses invalid requests":  testPutInvalid,
		"put replaces":                  testReplace,
		"buffers belong to the caller":  testBuffers,
		"if-none-match":                 testIfNoneMatch,
		"one of many writers wins":      testRace,
		"ranges":                        testRanges,
		"missing objects":               testMissing,
		"reader of a replaced object":   testReaderKeepsState,
		"delete":                        testDelete,
		"delete limit":                  testDeleteLimit,
		"keys":                          testKeys,
		"invalid keys":                  testInvalidKeys,
		"list pages":                    testListPages,
		"list prefixes":                 testListPrefixes,
		"list while objects go":         testListWhileDeleting,
		"list refuses invalid requests": testListInvalid,
		"contexts that have ended":      testEndedContext,
		"context ends during a body":    testBodyContext,
		"context ends during a put":     testPutContext,
		"readers see whole objects":     testWholeObjects,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

// request is a put of bytes in memory.
func request(key string, data []byte) objectstore.PutRequest {
	return objectstore.PutRequest{
		Key: key, Body: bytes.NewReader(data), Size: int64(len(data)),
		Checksum: objectstore.ChecksumOf(objectstore.CRC32C, data),
	}
}

func put(t testing.TB, s objectstore.Store, key string, data []byte) objectstore.Info {
	t.Helper()
	info, err := s.Put(t.Context(), request(key, data))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// get reads a range whole.
func get(t testing.TB, s objectstore.Store, key string, offset, length int64) ([]byte, error) {
	t.Helper()
	body, _, err := s.Get(t.Context(), key, offset, length)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

// want reads an object and compares it.
func want(t testing.TB, s objectstore.Store, key string, data []byte) {
	t.Helper()
	got, err := get(t, s, key, 0, objectstore.ToEnd)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("%q holds %d bytes %.20q…, want %d bytes %.20q…", key, len(got), got, len(data), data)
	}
}

// wantErr checks the kind of an error and that it names the call.
func wantErr(t testing.TB, err error, op objectstore.Op, kind error) {
	t.Helper()
	var e *objectstore.Error
	if !errors.Is(err, kind) || !errors.As(err, &e) || e.Op != op {
		t.Fatalf("error of %s: %v, want one of kind %q", op, err, kind)
	}
}

func wantMissing(t testing.TB, s objectstore.Store, key string) {
	t.Helper()
	_, err := s.Head(t.Context(), key)
	wantErr(t, err, objectstore.OpHead, objectstore.ErrNotFound)
}

// list returns all keys with a prefix.
func list(t testing.TB, s objectstore.Store, prefix string, pageSize int) []string {
	t.Helper()
	var keys []string
	for info, err := range objectstore.All(t.Context(), s, prefix, pageSize) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// pattern makes n bytes that differ from place to place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	return b
}
