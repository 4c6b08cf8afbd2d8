package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"runnel.dev/runnel/record"
)

// producerTopic is a topic as a producer sees it.
type producerTopic struct {
	p    *Producer
	name string
	// partitions only grows; a slice is replaced, never changed.
	partitions atomic.Pointer[[]*producerPartition]
	// sticky is where records without a key go until a batch there is sealed.
	sticky atomic.Int32

	mu struct {
		sync.Mutex
		meta *topicMeta // nil: the topic is gone
		seen bool       // meta was set before
		cut  []*producerPartition
	}
}

func (t *producerTopic) list() []*producerPartition {
	if l := t.partitions.Load(); l != nil {
		return *l
	}
	return nil
}

// everyPartition is list plus what a namesake with fewer partitions has cut off.
func (t *producerTopic) everyPartition() []*producerPartition {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(slices.Clone(t.list()), t.mu.cut...)
}

// choose returns the partition for r.
func (t *producerTopic) choose(r *Record) (*producerPartition, error) {
	list := t.list()
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("%w: topic %q has no partitions", ErrUnknownTopic, t.name)
	case t.p.cfg.manual:
		if r.Partition < 0 || int(r.Partition) >= len(list) {
			return nil, fmt.Errorf("%w: partition %d of topic %q, which has %d", ErrUnknownPartition, r.Partition, t.name, len(list))
		}
		return list[r.Partition], nil
	case r.Key != nil:
		return list[record.PartitionForKey(r.Key, int32(len(list)))], nil
	}
	if i := int(t.sticky.Load()); i < len(list) {
		return list[i], nil
	}
	return list[0], nil
}

// moveSticky leaves partition from for another one, one with a leader if there is one.
func (t *producerTopic) moveSticky(from int32) {
	list := t.list()
	if len(list) < 2 || t.sticky.Load() != from {
		return
	}
	next := rand.IntN(len(list) - 1)
	if next >= int(from) {
		next++
	}
	for i := range list {
		cand := list[(next+i)%len(list)]
		if cand.index != from && cand.hasLeader.Load() {
			next = int(cand.index)
			break
		}
	}
	t.sticky.CompareAndSwap(from, int32(next))
}

// update applies what metadata says. Called in order, from the metadata's goroutine.
func (t *producerTopic) update(s *snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	meta := s.topics[t.name]
	if meta == nil {
		if s.isMissing(t.name) && t.mu.meta != nil {
			t.mu.meta = nil
			t.fail(fmt.Errorf("topic %q was deleted: %w", t.name, ErrUnknownTopic))
		}
		return
	}
	if t.mu.meta != nil && t.mu.meta.id != meta.id {
		t.fail(fmt.Errorf("topic %q: %w", t.name, ErrTopicRecreated))
	}
	first := !t.mu.seen
	t.mu.meta, t.mu.seen = meta, true
	list := t.list()
	if n := len(meta.partitions); n > len(list) {
		grown := make([]*producerPartition, n)
		copy(grown, list)
		for i := len(list); i < n; i++ {
			grown[i] = newProducerPartition(t, int32(i))
		}
		t.partitions.Store(&grown)
		list = grown
	}
	if first && len(list) > 0 {
		t.sticky.Store(rand.Int32N(int32(len(list))))
	}
	if n := len(meta.partitions); n < len(list) { // a namesake with fewer partitions
		t.mu.cut = append(t.mu.cut, list[n:]...)
		short := list[:n:n]
		t.partitions.Store(&short)
		if n > 0 {
			t.sticky.Store(0)
		}
	}
	for i := range meta.partitions {
		list[i].setLeader(meta, meta.partitions[i])
	}
}

// fail ends everything that is queued or in flight: the topic that it was meant for is gone.
func (t *producerTopic) fail(cause error) {
	for _, pt := range t.list() {
		pt.topicGone(cause)
	}
}
