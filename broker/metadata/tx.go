package metadata

import clientv3 "go.etcd.io/etcd/client/v3"

// Tx is one compare-and-set as plain data: when all Compares hold, Then is done and Nested are tried, each on its own; otherwise Reads show
// who won. Builder makes them; Client carries them out in etcd, a simulation on its own model of it. Whoever does has to settle them by the
// rule of Settlement.
//
// Invariant: a Tx is safe to repeat as it is, because it compares a key that it writes.
type Tx struct {
	// Op names the operation in errors and metrics.
	Op       string
	Compares []Compare
	Then     []Put
	// Nested are single-key transactions: compares, one Put of the key, and a read of that key. They have no Nested of their own, and are
	// recognised by their value.
	Nested []Tx
	// Reads are keys that are read when the compares do not hold.
	Reads []string
	// Recognise says how an earlier attempt of this very transaction is told from somebody else's, by what Reads[0] shows.
	Recognise Recognition
}

// Compare is a condition on a key's mod revision.
type Compare struct {
	Key string
	// Prefix extends the condition to every key that begins with Key. Without such a key it holds for Revision 0.
	Prefix bool
	// Revision is the mod revision that the key has to have; 0: the key is absent.
	Revision int64
	// Not turns the condition round.
	Not bool
}

// Put writes or deletes a key.
type Put struct {
	Key, Value string
	// Lease is the lease to attach the key to; 0: none.
	Lease int64
	// Delete removes the key; Value is empty then.
	Delete bool
}

// Recognition says by what a transaction's earlier, unanswered attempt is recognised when a repetition finds its compares false.
type Recognition uint8

// Recognitions.
const (
	// ByNothing: it cannot be recognised, and counts as somebody else's.
	ByNothing Recognition = iota
	// ByValue: the key has the very value that this transaction writes. The value has to be unique to the wish.
	ByValue
	// ByTopicID: the key holds the topic that this transaction creates, in whatever state it is by now.
	ByTopicID
)

// KV is a key as a read saw it. Revision is its mod revision; 0: the key is absent.
type KV struct {
	Key, Value string
	Revision   int64
}

// Answer is what etcd answered to a Tx.
type Answer struct {
	// Succeeded is true when the compares held.
	Succeeded bool
	// Revision is that of the store after the transaction: the mod revision of everything that it wrote.
	Revision int64
	// Reads has an entry per Tx.Reads when the compares did not hold.
	Reads []KV
	// Nested has an entry per Tx.Nested when they did.
	Nested []Answer
}

func absent(key string) Compare { return Compare{Key: key} }

// unchanged compares a key's mod revision; 0 means that the key is absent.
func unchanged(key string, revision int64) Compare { return Compare{Key: key, Revision: revision} }

// write is a transaction that writes one key, recognised by the value.
func write(op, key, value string, compares ...Compare) Tx {
	return Tx{
		Op: op, Compares: compares, Then: []Put{{Key: key, Value: value}}, Reads: []string{key}, Recognise: ByValue,
	}
}

// cmps, puts and gets translate a transaction for etcd's client.

func (tx *Tx) cmps() []clientv3.Cmp {
	out := make([]clientv3.Cmp, len(tx.Compares))
	for i, c := range tx.Compares {
		op := "="
		if c.Not {
			op = "!="
		}
		cmp := clientv3.Compare(clientv3.ModRevision(c.Key), op, c.Revision)
		if c.Prefix {
			cmp = cmp.WithPrefix()
		}
		out[i] = cmp
	}
	return out
}

func (tx *Tx) puts() []clientv3.Op {
	out := make([]clientv3.Op, 0, len(tx.Then)+len(tx.Nested))
	for _, p := range tx.Then {
		switch {
		case p.Delete:
			out = append(out, clientv3.OpDelete(p.Key))
		case p.Lease != 0:
			out = append(out, clientv3.OpPut(p.Key, p.Value, clientv3.WithLease(clientv3.LeaseID(p.Lease))))
		default:
			out = append(out, clientv3.OpPut(p.Key, p.Value))
		}
	}
	for i := range tx.Nested {
		nested := &tx.Nested[i]
		out = append(out, clientv3.OpTxn(nested.cmps(), nested.puts(), nested.gets()))
	}
	return out
}

func (tx *Tx) gets() []clientv3.Op {
	out := make([]clientv3.Op, len(tx.Reads))
	for i, key := range tx.Reads {
		out[i] = clientv3.OpGet(key)
	}
	return out
}

// answer translates etcd's answer.
func (tx *Tx) answer(resp *clientv3.TxnResponse) Answer {
	a := Answer{Succeeded: resp.Succeeded, Revision: resp.Header.Revision}
	if !a.Succeeded {
		for i, key := range tx.Reads {
			read := KV{Key: key}
			if kvs := resp.Responses[i].GetResponseRange().GetKvs(); len(kvs) == 1 {
				read.Value, read.Revision = string(kvs[0].Value), kvs[0].ModRevision
			}
			a.Reads = append(a.Reads, read)
		}
		return a
	}
	for i := range tx.Nested {
		// Answers to nested transactions have no header of their own.
		inner := (*clientv3.TxnResponse)(resp.Responses[len(tx.Then)+i].GetResponseTxn())
		inner.Header = resp.Header
		a.Nested = append(a.Nested, tx.Nested[i].answer(inner))
	}
	return a
}
