package ids

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestTextRoundTrip(t *testing.T) {
	topic, storage, log := NewTopicID(), NewStorageID(), NewLogID()
	if got, err := ParseTopicID(topic.String()); err != nil || got != topic {
		t.Errorf("ParseTopicID(%s) = %s, %v", topic, got, err)
	}
	if got, err := ParseStorageID(storage.String()); err != nil || got != storage {
		t.Errorf("ParseStorageID(%s) = %s, %v", storage, got, err)
	}
	if got, err := ParseLogID(log.String()); err != nil || got != log {
		t.Errorf("ParseLogID(%s) = %s, %v", log, got, err)
	}

	type all struct {
		T TopicID
		S StorageID
		L LogID
	}
	want := all{topic, storage, log}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got all
	if err := json.Unmarshal(b, &got); err != nil || got != want {
		t.Errorf("JSON of %+v reads back as %+v, %v", want, got, err)
	}
}

func TestNewIsRandomVersion4AndNeverZero(t *testing.T) {
	seen := map[TopicID]bool{}
	for range 1000 {
		id := NewTopicID()
		if id.IsZero() || seen[id] {
			t.Fatalf("id %s is zero or repeated", id)
		}
		if s := id.String(); s[14] != '4' || !strings.ContainsRune("89ab", rune(s[19])) {
			t.Fatalf("id %s is not a version 4 UUID", s)
		}
		seen[id] = true
	}
	if !(TopicID{}).IsZero() || !(StorageID{}).IsZero() || !(LogID{}).IsZero() {
		t.Error("the zero value has to be zero")
	}
	if NewStorageID().IsZero() || NewLogID().IsZero() {
		t.Error("a new id is zero")
	}
}

func TestOnlyTheCanonicalFormIsAccepted(t *testing.T) {
	good := "0191e0f2-5c1e-4d0a-9f52-0123456789ab"
	if id, err := ParseTopicID(good); err != nil || id.String() != good {
		t.Fatalf("ParseTopicID(%s) = %s, %v", good, id, err)
	}
	for name, bad := range map[string]string{
		"empty":      "",
		"upper case": strings.ToUpper(good),
		"braces":     "{" + good + "}",
		"urn":        "urn:uuid:" + good,
		"no hyphens": strings.ReplaceAll(good, "-", ""),
		"hyphen off": "0191e0f25-c1e-4d0a-9f52-0123456789ab",
		"not hex":    "g191e0f2-5c1e-4d0a-9f52-0123456789ab",
		"path":       "../../../../../../../../../../etc/pw",
		"NUL":        good[:35] + "\x00",
		"non-ASCII":  good[:34] + "é",
		"long":       strings.Repeat("a", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			id := NewLogID()
			before := id
			if err := id.UnmarshalText([]byte(bad)); !errors.Is(err, ErrInvalid) {
				t.Errorf("error = %v, want ErrInvalid", err)
			} else if len(err.Error()) > 300 {
				t.Errorf("the error repeats %d bytes of hostile input", len(err.Error()))
			}
			if id != before {
				t.Error("a refused text changed the id")
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0191e0f2-5c1e-4d0a-9f52-0123456789ab")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseStorageID(s)
		if err == nil && id.String() != s {
			t.Errorf("%q is accepted but prints as %q", s, id)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v does not wrap ErrInvalid", err)
		}
	})
}
