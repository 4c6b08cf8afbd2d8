package metadata

import (
	"fmt"
	"strconv"
	"strings"

	"runnel.dev/runnel/internal/ids"
)

// MaxNameLength is the longest topic name, bytes.
const MaxNameLength = 249

// MaxPartitions is the largest number of partitions of a topic.
const MaxPartitions = 100_000

const nameRule = "[a-zA-Z0-9._-]{1,249}, not \".\" or \"..\", not beginning with \"__\""

// ValidateTopicName checks a topic's name: [a-zA-Z0-9._-]{1,249}, not "." or "..", not beginning with "__". No such name can reach
// another key. The error is an *ArgumentError that wraps ErrInvalidName.
func ValidateTopicName(name string) error {
	shown := name
	if len(shown) > 64 {
		shown = shown[:64] + "…"
	}
	fault := func(limit string) error {
		return &ArgumentError{Field: "topic name", Value: fmt.Sprintf("%q (%d bytes)", shown, len(name)), Limit: limit, Err: ErrInvalidName}
	}
	if name == "" || len(name) > MaxNameLength || name == "." || name == ".." || strings.HasPrefix(name, "__") {
		return fault(nameRule)
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return fault(fmt.Sprintf("%s (%q at position %d)", nameRule, name[i], i))
		}
	}
	return nil
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// keyspace builds and reads the keys of one cluster. The prefix ends in '/'.
type keyspace struct{ prefix string }

func newKeyspace(cluster string) keyspace { return keyspace{prefix: "/runnel/" + cluster + "/"} }

func (k keyspace) cluster() string         { return k.prefix + "cluster" }
func (k keyspace) controller() string      { return k.prefix + "controller" }
func (k keyspace) producers() string       { return k.prefix + "producers/next" }
func (k keyspace) broker(id int32) string  { return k.prefix + "brokers/" + itoa(id) }
func (k keyspace) storage(id int32) string { return k.prefix + "storage/" + itoa(id) }
func (k keyspace) storages() string        { return k.prefix + "storage/" }
func (k keyspace) topic(name string) string {
	return k.prefix + "topics/" + name
}

func (k keyspace) partition(id ids.TopicID, p int32) string {
	return k.prefix + "partitions/" + id.String() + "/" + itoa(p)
}

func itoa(n int32) string { return strconv.FormatInt(int64(n), 10) }

// The two ranges that brokers list and watch. In key order the prefix holds: acl, [brokers, cluster, controller, coord], groups,
// offsets, [partitions, producers, quota, storage, tier, topics]. Offsets and groups, which change all the time, lie between.
func (k keyspace) ranges() [2][2]string {
	return [2][2]string{
		{k.prefix + "brokers/", k.prefix + "coord0"},
		{k.prefix + "partitions/", k.prefix + "topics0"},
	}
}

// kind says what a key holds.
type kind int

const (
	kindOther kind = iota
	kindCluster
	kindController
	kindBroker
	kindStorage
	kindTopic
	kindPartition
)

// parsed is a key taken apart.
type parsed struct {
	kind      kind
	id        int32 // broker id
	name      string
	topic     ids.TopicID
	partition int32
}

// parse takes a key apart. Keys that it does not know, or that are not spelled the way they are written, are kindOther.
func (k keyspace) parse(key string) parsed {
	rest, ok := strings.CutPrefix(key, k.prefix)
	if !ok {
		return parsed{}
	}
	switch rest {
	case "cluster":
		return parsed{kind: kindCluster}
	case "controller":
		return parsed{kind: kindController}
	}
	folder, rest, _ := strings.Cut(rest, "/")
	switch folder {
	case "brokers", "storage":
		id, ok := parseNumber(rest)
		if !ok {
			return parsed{}
		}
		if folder == "brokers" {
			return parsed{kind: kindBroker, id: id}
		}
		return parsed{kind: kindStorage, id: id}
	case "topics":
		if ValidateTopicName(rest) != nil {
			return parsed{}
		}
		return parsed{kind: kindTopic, name: rest}
	case "partitions":
		text, number, _ := strings.Cut(rest, "/")
		topic, err := ids.ParseTopicID(text)
		p, ok := parseNumber(number)
		if err != nil || !ok || p >= MaxPartitions {
			return parsed{}
		}
		return parsed{kind: kindPartition, topic: topic, partition: p}
	}
	return parsed{}
}

// parseNumber accepts exactly what itoa prints for numbers that are not negative.
func parseNumber(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, false
	}
	return int32(n), true
}
