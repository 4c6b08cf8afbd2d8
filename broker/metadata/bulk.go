package metadata

import "context"

// etcd allows maxOps operations along the longest path through a transaction: the nested transactions of one, plus the most of compares,
// writes and reads that any of them has. bulkSize is what a change nests whose items have at most two compares.
const (
	maxOps   = 128
	bulkSize = maxOps - 2

	// BulkSize is how many partitions one transaction of UpdatePartitions changes.
	BulkSize = bulkSize
)

// BulkResult says which items of a bulk change took effect.
type BulkResult struct {
	// Applied has an entry per item. An item that did not apply had been overtaken: its key, or what it depends on, had changed.
	Applied []bool
	// Revision is the highest revision that the change wrote or met; Cache.WaitRevision with it shows all of the result.
	Revision int64
	// Written are the values of the items that took effect; from UpdatePartitions only.
	Written []PartitionValue
}

// Count is the number of items that took effect.
func (r BulkResult) Count() int {
	n := 0
	for _, ok := range r.Applied {
		if ok {
			n++
		}
	}
	return n
}

// nest packs single-key transactions into as few as possible, each of which compares guards. A stale item fails alone, and a failed
// guard stops everything. Items keep their order.
func nest(op string, guards []Compare, items []Tx) []Tx {
	var out []Tx
	for first := 0; first < len(items); {
		widest, last := 2, first
		for last < len(items) {
			w := max(widest, len(items[last].Compares))
			if last+1-first+w > maxOps {
				break
			}
			widest, last = w, last+1
		}
		out = append(out, Tx{Op: op, Compares: guards, Nested: items[first:last:last]})
		first = last
	}
	return out
}

// bulk carries out transactions that nest made, one after the other, and stops at the first whose guards fail (errGuard, with the
// result's Revision). What came before stays applied: every bulk change is one that can be resumed by deciding anew.
func (c *Client) bulk(ctx context.Context, txs []Tx, errGuard error) (BulkResult, error) {
	result, _, err := c.bulkOutcomes(ctx, txs, errGuard)
	return result, err
}

// bulkOutcomes is bulk that also returns the outcome of each item that was settled, in order.
func (c *Client) bulkOutcomes(ctx context.Context, txs []Tx, errGuard error) (BulkResult, []Outcome, error) {
	var result BulkResult
	var outcomes []Outcome
	for i := range txs {
		out, err := c.commit(ctx, txs[i])
		if err != nil {
			return result, outcomes, err
		}
		result.Revision = max(result.Revision, out.Answer.Revision)
		if !out.Applied {
			return result, outcomes, errGuard
		}
		for _, nested := range out.Nested {
			result.Applied = append(result.Applied, nested.Applied)
		}
		outcomes = append(outcomes, out.Nested...)
	}
	return result, outcomes, nil
}
