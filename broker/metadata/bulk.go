package metadata

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// bulkSize is how many single-key transactions one transaction nests. etcd allows 128 operations along the longest path: these,
// plus the two compares of each nested one.
const bulkSize = 126

// bulkItem is one compare-and-set of a bulk change: at most two compares, of which one is on key, and one write of key.
type bulkItem struct {
	key      string
	compares []clientv3.Cmp
	// value is what to write; "" deletes the key.
	value string
}

// BulkResult says which items of a bulk change took effect.
type BulkResult struct {
	// Applied has an entry per item. An item that did not apply had been overtaken: its key, or what it depends on, had changed.
	Applied []bool
	// Revision is the highest revision that the change wrote or met; Cache.WaitRevision with it shows all of the result.
	Revision int64
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

// bulk applies items in chunks. Each chunk is one transaction that compares guards and nests a transaction per item, so that a stale item
// fails alone and a failed guard stops everything (errGuard, with the answer's Revision). Chunks before the failing one stay applied:
// every bulk change is one that can be resumed by deciding anew.
func (c *Client) bulk(ctx context.Context, op string, guards []clientv3.Cmp, items []bulkItem, errGuard error) (BulkResult, error) {
	result := BulkResult{Applied: make([]bool, 0, len(items))}
	for len(items) > 0 {
		n := min(len(items), bulkSize)
		out, err := c.commit(ctx, bulkTxn(op, guards, items[:n]))
		if err != nil {
			return result, err
		}
		result.Revision = max(result.Revision, out.resp.Header.Revision)
		if !out.ok {
			return result, errGuard
		}
		for i, r := range out.resp.Responses {
			nested := r.GetResponseTxn()
			result.Applied = append(result.Applied, nested.Succeeded || matches(items[i], nested.Responses[0].GetResponseRange().GetKvs()))
		}
		items = items[n:]
	}
	return result, nil
}

// bulkTxn nests the items. A repetition after an unanswered attempt succeeds as a whole, and finds the nested ones of the attempt
// done: matches tells them by the value, which names leader, epochs and identities and is therefore the same only when the wish was.
func bulkTxn(op string, guards []clientv3.Cmp, items []bulkItem) txn {
	nested := make([]clientv3.Op, len(items))
	for i, item := range items {
		write := clientv3.OpPut(item.key, item.value)
		if item.value == "" {
			write = clientv3.OpDelete(item.key)
		}
		nested[i] = clientv3.OpTxn(item.compares, []clientv3.Op{write}, []clientv3.Op{clientv3.OpGet(item.key)})
	}
	return txn{op: op, compares: guards, then: nested}
}

func matches(item bulkItem, kvs []*mvccpb.KeyValue) bool {
	if item.value == "" {
		return len(kvs) == 0
	}
	return len(kvs) == 1 && string(kvs[0].Value) == item.value
}
