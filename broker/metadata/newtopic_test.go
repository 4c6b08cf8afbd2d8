package metadata

import (
	"errors"
	"testing"
)

// TestATopicWithoutLiveBrokersIsRefusedForNow: while the only broker registered anew, clients were told that 1 replica is not
// between 1 and 0, and gave up.
func TestATopicWithoutLiveBrokersIsRefusedForNow(t *testing.T) {
	for replicas, want := range map[int32]error{0: ErrNotRegistered, 1: ErrNotRegistered, 2: ErrInvalidArgument, -1: ErrInvalidArgument} {
		err := ValidateNewTopic(NewTopic{Name: "t", Partitions: 1, Replicas: replicas}, 0)
		if !errors.Is(err, want) || errors.Is(err, ErrNotRegistered) != errors.Is(want, ErrNotRegistered) {
			t.Errorf("%d replicas: %v", replicas, err)
		}
	}
	if err := ValidateNewTopic(NewTopic{Name: "t", Partitions: 1}, 1); err != nil {
		t.Error(err)
	}
}
