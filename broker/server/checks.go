package server

import (
	"errors"
	"fmt"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// maxItems bounds the items of one bulk request: queries, targets, names, partitions.
const maxItems = 10_000

type lengthOf int

func (n lengthOf) String() string { return fmt.Sprintf("%d bytes long", int(n)) }

// topicID checks an id from outside.
func topicID(b []byte) (ids.TopicID, error) {
	if len(b) != len(ids.TopicID{}) {
		return ids.TopicID{}, invalid("topic_id", lengthOf(len(b)), "16 bytes")
	}
	return ids.TopicID(b), nil
}

// count checks a repeated field's length.
func count(field string, n int) error {
	if n > maxItems {
		return invalid(field, fmt.Sprintf("%d items long", n), fmt.Sprintf("at most %d items", maxItems))
	}
	return nil
}

// partitionFault names the partition when the topic exists and the partition does not.
func partitionFault(err error) error {
	var u *partition.UnknownError
	if errors.As(err, &u) && u.Partitions > 0 {
		return noSuchPartition(u.Partition, u.Partitions)
	}
	return err
}

func noSuchPartition(n, partitions int32) error {
	return &argumentError{field: "partition", value: fmt.Sprint(n), limit: fmt.Sprintf("0 to %d", partitions-1), kind: errPartitionNotFound}
}

// topic finds a topic by name, and checks its id when one is given.
func (s *Snapshot) topic(name string, id []byte) (*Topic, error) {
	if err := metadata.ValidateTopicName(name); err != nil {
		return nil, err
	}
	t, ok := s.active(name)
	if !ok && s.ClusterID == "" {
		return nil, errStarting
	}
	if !ok {
		return nil, fmt.Errorf("%w: %s", errTopicNotFound, name)
	}
	if len(id) > 0 {
		want, err := topicID(id)
		if err != nil {
			return nil, err
		}
		if want != t.ID {
			return nil, fmt.Errorf("%w: %s is %s, the request names %s", errTopicRecreated, name, t.ID, want)
		}
	}
	return t, nil
}

// partition returns where a partition of t is.
func (t *Topic) partition(n int32) (*Partition, error) {
	if n < 0 || int(n) >= len(t.Partitions) {
		return nil, noSuchPartition(n, int32(len(t.Partitions)))
	}
	return &t.Partitions[n], nil
}
