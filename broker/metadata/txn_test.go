package metadata

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// put is a compare-and-set of one key for tests.
func (c *Client) put(ctx context.Context, key, value string, revision int64) (Outcome, error) {
	return c.commit(ctx, write("test", key, value, unchanged(key, revision)))
}

func value(t *testing.T, c *Client, key string) (string, int64) {
	t.Helper()
	resp, err := c.get(t.Context(), "test", key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return "", 0
	}
	return string(resp.Kvs[0].Value), resp.Kvs[0].ModRevision
}

// TestLostAnswer: the transaction took effect, and its repetition finds out.
func TestLostAnswer(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	key := c.keys.prefix + "test"
	f.next(lost, lost)
	out, err := c.put(t.Context(), key, "mine", 0)
	if err != nil || !out.Applied {
		t.Fatalf("commit = %+v, %v", out, err)
	}
	if v, revision := value(t, c, key); v != "mine" || revision != out.Revision {
		t.Errorf("etcd has %q at %d, commit said revision %d", v, revision, out.Revision)
	}
}

// TestDelayedRequestIsFenced: the first attempt arrives long after it was given up. Reading back would have seen nothing; the repetition
// kills it.
func TestDelayedRequestIsFenced(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	key := c.keys.prefix + "test"
	first, err := c.put(t.Context(), key, "before", 0)
	if err != nil {
		t.Fatal(err)
	}
	f.next(delayed)
	second, err := c.put(t.Context(), key, "after", first.Revision)
	if err != nil || !second.Applied {
		t.Fatalf("commit = %+v, %v", second, err)
	}
	if n := f.deliver(t); n != 1 {
		t.Fatalf("%d delayed requests, want 1", n)
	}
	if v, revision := value(t, c, key); v != "after" || revision != second.Revision {
		t.Errorf("the late attempt took effect: %q at %d, want revision %d", v, revision, second.Revision)
	}
}

// TestLostAnswerThenOvertaken: somebody else wrote first, and the repetition says so.
func TestLostAnswerThenOvertaken(t *testing.T) {
	f := &faults{}
	c, other := client(t, f), client(t, nil)
	key := c.keys.prefix + "test"
	f.next(delayed)
	if _, err := other.put(t.Context(), key, "theirs", 0); err != nil {
		t.Fatal(err)
	}
	out, err := c.put(t.Context(), key, "mine", 0)
	if err != nil || out.Applied {
		t.Fatalf("commit = %+v, %v, want overtaken", out, err)
	}
	f.deliver(t)
	if v, _ := value(t, c, key); v != "theirs" {
		t.Errorf("etcd has %q", v)
	}
}

// TestGivingUpSaysUnsettled: ctx ends while the outcome is open.
func TestGivingUpSaysUnsettled(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	key := c.keys.prefix + "test"
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	plan := make([]fault, 1000)
	for i := range plan {
		plan[i] = delayed
	}
	f.next(plan...)
	_, err := c.put(ctx, key, "mine", 0)
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || !errors.Is(err, ErrUnavailable) || !unavailable.Unsettled {
		t.Fatalf("err = %v, want unsettled", err)
	}
	// The next writer fences it: either its own write or the late attempt survives, never both.
	f.next()
	out, err := c.put(t.Context(), key, "cautious", 0)
	if err != nil || !out.Applied {
		t.Fatalf("commit = %+v, %v", out, err)
	}
	f.deliver(t)
	if v, _ := value(t, c, key); v != "cautious" {
		t.Errorf("etcd has %q", v)
	}
}

// TestBulkLostAnswer: nested transactions of a chunk that took effect are recognised by the repetition.
func TestBulkLostAnswer(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	items := make([]Tx, 300)
	for i := range items {
		key := c.keys.prefix + "bulk/" + itoa(int32(i))
		items[i] = write("test", key, "v"+key, absent(key))
	}
	stale := 7
	if _, err := c.put(t.Context(), items[stale].Then[0].Key, "other", 0); err != nil {
		t.Fatal(err)
	}
	f.next(lost, fine, delayed, fine, lost)
	result, err := c.bulk(t.Context(), nest("test", nil, items), ErrNotController)
	if err != nil {
		t.Fatal(err)
	}
	f.deliver(t)
	for i, applied := range result.Applied {
		if applied != (i != stale) {
			t.Errorf("item %d: applied = %v", i, applied)
		}
	}
	if result.Count() != len(items)-1 {
		t.Errorf("%d applied", result.Count())
	}
}

// TestBulkFillsATransaction: a full chunk with two compares per item is within etcd's limits, one more would not be.
func TestBulkFillsATransaction(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	other := c.keys.prefix + "other"
	items := make([]Tx, bulkSize)
	for i := range items {
		key := c.keys.prefix + "bulk/" + itoa(int32(i))
		items[i] = write("test", key, "v", absent(key), absent(other))
	}
	before := f.seen.Load()
	result, err := c.bulk(t.Context(), nest("test", nil, items), ErrNotController)
	if err != nil || result.Count() != bulkSize || f.seen.Load() != before+1 {
		t.Errorf("bulk = %d applied in %d transactions, %v", result.Count(), f.seen.Load()-before, err)
	}
}

// TestProducerBlocksAreDisjoint: lost and late answers burn ids, and never hand one out twice.
func TestProducerBlocksAreDisjoint(t *testing.T) {
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 3 {
		f := &faults{}
		c := client(t, f)
		f.next(lost, fine, delayed, lost, lost, fine, delayed)
		wg.Go(func() {
			for range 10 {
				block, err := c.NextProducerBlock(t.Context(), 100)
				if err != nil {
					t.Error(err)
					return
				}
				f.deliver(t)
				mu.Lock()
				for id := block.First; id < block.First+block.Count; id++ {
					if seen[id] || id < 1 {
						t.Errorf("producer id %d was handed out twice, or is not positive", id)
					}
					seen[id] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 3000 {
		t.Errorf("%d ids, want 3000", len(seen))
	}
}

// A broker whose etcd goes away serves new producers from what Run has reserved.
func TestProducerIDsWithoutEtcd(t *testing.T) {
	f := &faults{}
	ids := NewProducerIDs(client(t, f))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- ids.Run(ctx) }()
	// The first id begins a block; Run then reserves the next one beside it.
	if _, err := ids.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ids.refill(t.Context()); err != nil { // waits for the one under way, or makes it
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	before := f.seen.Load()
	for range ProducerBlock {
		if _, err := ids.Next(ctx); err != nil {
			t.Fatalf("Next with an ended context, so without etcd: %v", err)
		}
	}
	if f.seen.Load() != before {
		t.Error("etcd was asked")
	}
}

func TestProducerIDsReserveAhead(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	next := NewProducerIDs(c)
	before := f.seen.Load()
	seen := map[int64]bool{}
	for range 2*ProducerBlock + 1 {
		id, err := next.Next(t.Context())
		if err != nil || seen[id] {
			t.Fatalf("Next = %d, %v (seen before: %v)", id, err, seen[id])
		}
		seen[id] = true
	}
	if n := f.seen.Load() - before; n != 3 {
		t.Errorf("%d transactions for %d ids, want 3", n, len(seen))
	}
	var bad *ArgumentError
	if _, err := c.NextProducerBlock(t.Context(), 0); !errors.As(err, &bad) || bad.Value != "0" {
		t.Errorf("NextProducerBlock(0) = %v", err)
	}
}

// TestFinalErrors: what etcd refuses for good is not repeated, and is not called unavailable.
func TestFinalErrors(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	before := f.seen.Load()
	_, err := c.commit(t.Context(), Tx{Op: "test", Then: []Put{{Value: "v"}}})
	if err == nil || errors.Is(err, ErrUnavailable) || f.seen.Load() != before+1 {
		t.Errorf("an empty key: %v after %d attempts", err, f.seen.Load()-before)
	}
}

func TestNotBootstrapped(t *testing.T) {
	c := open(t, testConfig(t, nil))
	if _, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: ids.NewStorageID()}); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("Register = %v", err)
	}
	if err := NewCache(c).Run(t.Context()); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("Cache.Run = %v", err)
	}
	if _, err := c.NextProducerBlock(t.Context(), 1); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("NextProducerBlock = %v", err)
	}
}
