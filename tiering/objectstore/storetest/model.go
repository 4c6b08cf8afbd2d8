package storetest

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/tiering/objectstore"
)

// RunModel compares stores with a map over many random histories, each on a new
// store. It is not part of Run because it takes thousands of calls.
func RunModel(t *testing.T, newStore func(t testing.TB) objectstore.Store) {
	rapid.Check(t, func(rt *rapid.T) {
		m := model{t: t, store: newStore(t), objects: make(map[string][]byte)}
		rt.Repeat(map[string]func(*rapid.T){
			"put":    m.put,
			"delete": m.remove,
			"get":    m.get,
			"":       func(*rapid.T) {},
		})
		for key, data := range m.objects {
			want(t, m.store, key, data)
		}
		if got := list(t, m.store, "", 4); !slices.Equal(got, slices.Sorted(maps.Keys(m.objects))) {
			rt.Fatalf("listed %q, want %q", got, slices.Sorted(maps.Keys(m.objects)))
		}
	})
}

type model struct {
	t       *testing.T
	store   objectstore.Store
	objects map[string][]byte
}

var modelKeys = rapid.StringMatching(`[ab](/[ab+=]){0,2}`)

func (m *model) put(rt *rapid.T) {
	req := request(modelKeys.Draw(rt, "key"), rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(rt, "data"))
	if rapid.Bool().Draw(rt, "if none match") {
		req.Precondition = objectstore.IfNoneMatch
	}
	_, exists := m.objects[req.Key]
	refused := exists && req.Precondition == objectstore.IfNoneMatch
	_, err := m.store.Put(m.t.Context(), req)
	if refused != errors.Is(err, objectstore.ErrPreconditionFailed) || !refused && err != nil {
		rt.Fatalf("put of %q (%v), which exists: %v: %v", req.Key, req.Precondition, exists, err)
	}
	if err == nil {
		data := make([]byte, req.Size)
		_, _ = req.Body.ReadAt(data, 0)
		m.objects[req.Key] = data
	}
}

func (m *model) remove(rt *rapid.T) {
	keys := rapid.SliceOfN(modelKeys, 0, 3).Draw(rt, "keys")
	if _, err := m.store.Delete(m.t.Context(), keys); err != nil {
		rt.Fatal(err)
	}
	for _, key := range keys {
		delete(m.objects, key)
	}
}

func (m *model) get(rt *rapid.T) {
	key := modelKeys.Draw(rt, "key")
	data, exists := m.objects[key]
	offset := rapid.Int64Range(0, 50).Draw(rt, "offset")
	length := rapid.Int64Range(1, 50).Draw(rt, "length")
	got, err := get(m.t, m.store, key, offset, length)
	switch {
	case !exists:
		if !errors.Is(err, objectstore.ErrNotFound) {
			rt.Fatalf("get of missing %q: %v", key, err)
		}
	case offset >= int64(len(data)):
		if !errors.Is(err, objectstore.ErrInvalidRange) {
			rt.Fatalf("get of %q from %d of %d: %v", key, offset, len(data), err)
		}
	case err != nil || !bytes.Equal(got, data[offset:min(offset+length, int64(len(data)))]):
		rt.Fatalf("get of %q, %d+%d: %q, %v", key, offset, length, got, err)
	}
}
