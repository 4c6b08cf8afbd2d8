package metadata

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/ids"
)

func drawSnapshot(t *rapid.T) *Snapshot {
	s := &Snapshot{
		Cluster: rapid.StringMatching(`[a-z]{1,9}`).Draw(t, "name"), Taken: time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "taken")),
		Position: Position{
			ClusterID: rapid.StringMatching(`[a-f0-9]{0,36}`).Draw(t, "id"), EtcdClusterID: rapid.Uint64().Draw(t, "etcd"),
			Era: rapid.Int64Range(0, 1<<40).Draw(t, "era"), Revision: rapid.Int64Range(0, 1<<60).Draw(t, "revision"),
		},
	}
	key := ""
	for range rapid.IntRange(0, 20).Draw(t, "keys") {
		key += rapid.StringN(1, 9, 30).Draw(t, "key")
		s.Keys = append(s.Keys, KV{Key: key, Value: string(rapid.SliceOf(rapid.Byte()).Draw(t, "value")), Revision: rapid.Int64Range(1, 1<<60).Draw(t, "mod")})
	}
	return s
}

func TestSnapshotRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		b, err := EncodeSnapshot(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeSnapshot(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, got); d != "" {
			t.Fatal(d)
		}
		// Any single damaged byte is noticed, as is any cut.
		i := rapid.IntRange(0, len(b)-1).Draw(t, "place")
		cut := b[:i]
		if _, err := DecodeSnapshot(cut); !errors.Is(err, ErrCorruptSnapshot) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		var bad *SnapshotError
		if _, err := DecodeSnapshot(b); !errors.As(err, &bad) || bad.Detail == "" {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	})
}

// seal puts the right checksum behind bytes.
func seal(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func TestSnapshotRefusesNonsense(t *testing.T) {
	whole, err := EncodeSnapshot(&Snapshot{Cluster: "c", Taken: time.UnixMilli(1), Keys: []KV{{Key: "a", Value: "v", Revision: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	head := whole[:snapshotFixed]
	body := func(parts ...[]byte) []byte {
		out := append([]byte{}, head...)
		for _, p := range parts {
			out = append(out, p...)
		}
		return seal(out)
	}
	name := []byte{1, 'c', 0}
	key := []byte{1, 'a', 1, 'v', 1}
	future := append([]byte{}, whole...)
	future[8] = 2
	for what, tc := range map[string]struct {
		b    []byte
		want string
		err  error
	}{
		"empty":                     {nil, "magic", ErrCorruptSnapshot},
		"another file":              {[]byte("RNLMETA\x00 and so on, and so on, and so on, and so on"), "magic", ErrCorruptSnapshot},
		"a future version":          {future, "version 2, this version reads 1", ErrSnapshotVersion},
		"too many keys declared":    {body(name, binary.AppendUvarint(nil, 1<<62), key), "cut off", ErrCorruptSnapshot},
		"a huge length in few":      {body(name, []byte{1}, binary.AppendUvarint(nil, 1<<61)), "above 4096", ErrCorruptSnapshot},
		"a length behind the end":   {body(name, []byte{1, 100, 'a'}), "100 bytes declared, 1 are left", ErrCorruptSnapshot},
		"a key twice":               {body(name, []byte{2}, key, key), `"a" is not behind`, ErrCorruptSnapshot},
		"bytes behind the last key": {body(name, []byte{1}, key, key), "5 bytes behind the last key", ErrCorruptSnapshot},
		"an endless number":         {body(name, []byte(strings.Repeat("\xff", 20))), "cut off", ErrCorruptSnapshot},
	} {
		_, err := DecodeSnapshot(tc.b)
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
	if _, err := EncodeSnapshot(&Snapshot{Keys: []KV{{Key: strings.Repeat("k", maxSnapshotKey+1)}}}); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a key that could not be read back: %v", err)
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	whole, err := EncodeSnapshot(&Snapshot{Cluster: "c", Taken: time.UnixMilli(1), Keys: []KV{{Key: "a", Value: "v", Revision: 1}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:len(whole)-snapshotCRC])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSnapshot(seal(b))
		if err != nil {
			return
		}
		again, err := EncodeSnapshot(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeSnapshot(again); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSnapshotPrefix: many pages, at one revision, although things change meanwhile; groups and offsets are in it, registrations are not.
func TestSnapshotPrefix(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	var items []Tx
	for i := range 2300 {
		key := c.keys.prefix + "offsets/" + itoa(int32(i))
		items = append(items, write("test", key, "page", absent(key)))
	}
	if r, err := c.bulk(t.Context(), nest("test", nil, items), ErrConflict); err != nil || r.Count() != len(items) {
		t.Fatal(r.Count(), err)
	}
	topic := create(t, c, "orders", 1)
	b, err := c.SnapshotPrefix(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := DecodeSnapshot(b)
	if err != nil {
		t.Fatal(err)
	}
	if now := c.Position(); s.Position.ClusterID != now.ClusterID || s.Position.EtcdClusterID != now.EtcdClusterID || s.Position.Era != 1 || s.Position.Revision < topic.Revision {
		t.Errorf("position %+v, the client is at %+v", s.Position, now)
	}
	found := map[string]int64{}
	offsets := 0
	for _, kv := range s.Keys {
		found[kv.Key] = kv.Revision
		if strings.HasPrefix(kv.Key, "offsets/") {
			offsets++
		}
	}
	if found["topics/orders"] != topic.Revision || found["cluster"] == 0 || found["brokers/1"] != 0 || offsets != 2300 {
		t.Errorf("topic at %d, cluster at %d, registration at %d, %d offsets", found["topics/orders"], found["cluster"], found["brokers/1"], offsets)
	}
	if _, err := open(t, testConfig(t, nil)).SnapshotPrefix(t.Context()); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("before Bootstrap: %v", err)
	}
}
