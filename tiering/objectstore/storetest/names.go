package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/tiering/objectstore"
)

func testDelete(t *testing.T, s objectstore.Store) {
	for _, key := range []string{"a/1", "a/2", "b", "kept"} {
		put(t, s, key, []byte(key))
	}
	keys := []string{"a/1", "missing/key", "b", "a/1"}
	results, err := s.Delete(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	checkResults(t, results, keys)
	if got := list(t, s, "", 0); !slices.Equal(got, []string{"a/2", "kept"}) {
		t.Fatalf("left are %q", got)
	}

	// One bad key does not spare the others, and cannot be overlooked.
	keys = []string{"a/2", "../escape", "kept"}
	results, err = s.Delete(t.Context(), keys)
	wantErr(t, err, objectstore.OpDelete, objectstore.ErrInvalidKey)
	checkResults(t, results, keys, "../escape")
	if got := list(t, s, "", 0); len(got) != 0 {
		t.Fatalf("left are %q", got)
	}
	if results, err := s.Delete(t.Context(), nil); err != nil || len(results) != 0 {
		t.Fatalf("delete of nothing: %v, %v", results, err)
	}
}

func checkResults(t *testing.T, results []objectstore.DeleteResult, keys []string, failed ...string) {
	t.Helper()
	if len(results) != len(keys) {
		t.Fatalf("%d results for %d keys", len(results), len(keys))
	}
	for i, key := range keys {
		if r := results[i]; r.Key != key || (r.Err != nil) != slices.Contains(failed, key) {
			t.Fatalf("result %d is %+v, the key was %q", i, r, key)
		}
	}
}

func testDeleteLimit(t *testing.T, s objectstore.Store) {
	keys := make([]string, objectstore.MaxDeleteKeys+1)
	for i := range keys {
		keys[i] = fmt.Sprintf("key/%d", i)
	}
	put(t, s, "key/0", []byte("data"))
	results, err := s.Delete(t.Context(), keys)
	wantErr(t, err, objectstore.OpDelete, objectstore.ErrInvalidArgument)
	if results != nil {
		t.Fatalf("%d results of a refused batch", len(results))
	}
	want(t, s, "key/0", []byte("data"))
	results, err = s.Delete(t.Context(), keys[:objectstore.MaxDeleteKeys])
	if err != nil || len(results) != objectstore.MaxDeleteKeys {
		t.Fatalf("largest batch: %d results, %v", len(results), err)
	}
	wantMissing(t, s, "key/0")
}

// keysOfAllKinds are valid keys in byte order that are easily taken for each
// other, or for something else.
func keysOfAllKinds() []string {
	segment := strings.Repeat("s", objectstore.MaxSegmentSize)
	longest := strings.Repeat(segment+"/", 4)
	longest += strings.Repeat("e", objectstore.MaxKeySize-len(longest))
	keys := []string{
		"a", "a!", "a/b", "a/b/c", "a/b!", "a0", "a ", "A2", "aa",
		".hidden", "...", "a/..b", "+a", "=a", "+a/=b", "==a", "a%2Fb", "%2e%2e/x", "~", "*", "a?b", "a:b", "c'\"<>|", "ü/日本/\U0001F600", "#a&b=c+d",
		segment, segment + "/" + segment, longest, "lost+found", "tmp", "objects/=x",
	}
	slices.Sort(keys)
	return keys
}

func testKeys(t *testing.T, s objectstore.Store) {
	keys := keysOfAllKinds()
	for _, key := range keys {
		put(t, s, key, []byte(key))
	}
	for _, key := range keys {
		want(t, s, key, []byte(key))
	}
	if got := list(t, s, "", 7); !slices.Equal(got, keys) {
		t.Fatalf("listed\n%q, want\n%q", got, keys)
	}
	if _, err := s.Delete(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s, "", 0); len(got) != 0 {
		t.Fatalf("left are %q", got)
	}
}

func testInvalidKeys(t *testing.T, s objectstore.Store) {
	for name, key := range map[string]string{
		"empty":             "",
		"too long":          strings.Repeat("long/", 205),
		"10 kB":             strings.Repeat("x", 10_000),
		"segment":           strings.Repeat("x", objectstore.MaxSegmentSize+1),
		"absolute":          "/etc/passwd",
		"parent":            "../x",
		"inner parent":      "a/../../x",
		"last parent":       "a/..",
		"current":           "./a",
		"inner current":     "a/./b",
		"empty segment":     "a//b",
		"slash at the end":  "a/",
		"NUL":               "a\x00b",
		"line feed":         "a\nb",
		"carriage return":   "a\rb",
		"escape":            "a\x1b[31mb",
		"DEL":               "a\x7fb",
		"C1":                "a\u0085b",
		"backslash":         `a\..\b`,
		"broken UTF-8":      "a\xffb",
		"overlong encoding": "a/\xc0\xae\xc0\xae/b",
	} {
		_, err := s.Put(t.Context(), request(key, []byte("data")))
		wantErr(t, err, objectstore.OpPut, objectstore.ErrInvalidKey)
		_, err = get(t, s, key, 0, objectstore.ToEnd)
		wantErr(t, err, objectstore.OpGet, objectstore.ErrInvalidKey)
		_, err = s.Head(t.Context(), key)
		wantErr(t, err, objectstore.OpHead, objectstore.ErrInvalidKey)
		results, err := s.Delete(t.Context(), []string{key})
		wantErr(t, err, objectstore.OpDelete, objectstore.ErrInvalidKey)
		checkResults(t, results, []string{key}, key)
		var e *objectstore.KeyError
		if !errors.As(err, &e) || e.Key != key || e.Limit == "" {
			t.Errorf("%s: error %v does not hold key and limit", name, err)
		}
		if msg := err.Error(); len(msg) > 2000 || strings.ContainsAny(msg, "\x00\r\x1b\x7f") {
			t.Errorf("%s: message of %d bytes passes control characters on or is endless: %.100q", name, len(msg), msg)
		}
	}
	if got := list(t, s, "", 0); len(got) != 0 {
		t.Fatalf("invalid keys were stored: %q", got)
	}
}

func testListPages(t *testing.T, s objectstore.Store) {
	keys := make([]string, 25)
	for i := range keys {
		keys[i] = fmt.Sprintf("dir%d/%02d", i/10, i)
		put(t, s, keys[i], pattern(i, 0))
	}
	for _, limit := range []int{1, 2, 5, 24, 25, 26, 0} {
		if got := list(t, s, "", limit); !slices.Equal(got, keys) {
			t.Fatalf("in pages of %d: %q", limit, got)
		}
	}
	page, err := s.List(t.Context(), objectstore.ListRequest{Prefix: "dir", After: "dir0/09", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Objects) != 10 || !page.More {
		t.Fatalf("page has %d objects, more: %v", len(page.Objects), page.More)
	}
	for i, key := range keys[10:20] {
		if info := page.Objects[i]; info.Key != key || info.Size != int64(10+i) || info.Modified.IsZero() || !info.Checksum.IsZero() {
			t.Fatalf("object %d of the page is %+v", i, info)
		}
	}
	page, err = s.List(t.Context(), objectstore.ListRequest{After: keys[24]})
	if err != nil || len(page.Objects) != 0 || page.More {
		t.Fatalf("page behind the last key: %+v, %v", page, err)
	}
}

func testListPrefixes(t *testing.T, s objectstore.Store) {
	keys := keysOfAllKinds()
	for _, key := range keys {
		put(t, s, key, nil)
	}
	prefixes := append([]string{"", "a/", "a/b", "a/b/", "a/.", "a/..", ".", "..", "none", "none/at/all", "ü/日"}, keys...)
	for _, prefix := range prefixes {
		var matching []string
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				matching = append(matching, key)
			}
		}
		if got := list(t, s, prefix, 3); !slices.Equal(got, matching) {
			t.Fatalf("prefix %q: listed %q, want %q", prefix, got, matching)
		}
		for i, after := range keys { // any key, with the prefix or not
			page, err := s.List(t.Context(), objectstore.ListRequest{Prefix: prefix, After: after, Limit: 1})
			if err != nil {
				t.Fatal(err)
			}
			next := slices.IndexFunc(keys[i+1:], func(k string) bool { return strings.HasPrefix(k, prefix) })
			if next < 0 != (len(page.Objects) == 0) || next >= 0 && page.Objects[0].Key != keys[i+1+next] {
				t.Fatalf("prefix %q after %q: %+v", prefix, after, page)
			}
		}
	}
}

// A listing goes on although the object where a page ended is gone.
func testListWhileDeleting(t *testing.T, s objectstore.Store) {
	for i := range 10 {
		put(t, s, fmt.Sprintf("key/%d", i), nil)
	}
	var seen []string
	for info, err := range objectstore.All(t.Context(), s, "key/", 2) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, info.Key)
		if _, err := s.Delete(t.Context(), []string{info.Key}); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 10 {
		t.Fatalf("seen %q", seen)
	}
}

func testListInvalid(t *testing.T, s objectstore.Store) {
	for _, prefix := range []string{"/", "/a", "a//", "../", "a/../b", "./", "a\x00", "\xff", strings.Repeat("x", 251), strings.Repeat("x/", 513)} {
		_, err := s.List(t.Context(), objectstore.ListRequest{Prefix: prefix})
		wantErr(t, err, objectstore.OpList, objectstore.ErrInvalidKey)
	}
	_, err := s.List(t.Context(), objectstore.ListRequest{After: "a//"})
	wantErr(t, err, objectstore.OpList, objectstore.ErrInvalidKey)
	for _, limit := range []int{-1, objectstore.MaxListLimit + 1} {
		_, err := s.List(t.Context(), objectstore.ListRequest{Limit: limit})
		wantErr(t, err, objectstore.OpList, objectstore.ErrInvalidArgument)
	}
}
