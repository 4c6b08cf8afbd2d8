package metadata

// Attempt is what became of one attempt to carry out a Tx.
type Attempt uint8

// What becomes of attempts.
const (
	// Answered: etcd said whether the compares held.
	Answered Attempt = iota + 1
	// Unanswered: the request has left, and no answer came, or none that settles it. It may take effect at any later time.
	Unanswered
	// Refused: etcd has refused the request for good. It was not, and will not be, applied, and would be refused again.
	Refused
	// Unsent: the request found no connection.
	Unsent
)

// Verdict is what to do after an attempt.
type Verdict uint8

// Verdicts.
const (
	// Repeat the very same transaction. Reading instead proves nothing: the read may miss an attempt that commits a moment later.
	Repeat Verdict = iota + 1
	// Settled: the outcome is known, for all attempts.
	Settled
	// Failed: no attempt took effect, and none ever will.
	Failed
)

// Settlement is the rule by which the outcome of a Tx becomes known although attempts stay unanswered: the same compare-and-set is
// repeated until it is answered. If the repetition takes effect, the earlier attempts never can any more, since the key that they compare
// has another mod revision; if it does not, the answer shows who won. It is a value without I/O; not safe for concurrent use.
type Settlement struct {
	tx   *Tx
	open bool
}

// Settle begins the settlement of a transaction, which must not change meanwhile.
func Settle(tx *Tx) Settlement { return Settlement{tx: tx} }

// Open reports whether an attempt may still take effect: to give up now leaves the outcome unknown, and the cautious state in force until a
// later transaction on the same key has been answered.
func (s *Settlement) Open() bool { return s.open }

// Step takes the result of an attempt in, with its answer when it was Answered. The Outcome counts when the verdict is Settled.
func (s *Settlement) Step(result Attempt, answer Answer) (Verdict, Outcome) {
	switch result {
	case Answered:
		out := s.tx.outcome(answer, s.open)
		s.open = false
		return Settled, out
	case Refused:
		if !s.open {
			return Failed, Outcome{}
		}
	case Unanswered:
		s.open = true
	case Unsent:
	}
	return Repeat, Outcome{}
}

// Outcome is a settled transaction.
type Outcome struct {
	// Applied is true when the transaction took effect, in this attempt or in an earlier one.
	Applied bool
	// Revision is the mod revision of what it wrote; 0 when it did not take effect.
	Revision int64
	// Answer is the last answer. When an earlier attempt took effect, it is the failed repetition's, with its Reads.
	Answer Answer
	// Nested has an entry per Tx.Nested, when the transaction took effect.
	Nested []Outcome
}

// outcome reads an answer. With earlier, attempts before it may have taken effect.
func (tx *Tx) outcome(a Answer, earlier bool) Outcome {
	out := Outcome{Answer: a}
	switch {
	case a.Succeeded:
		out.Applied, out.Revision = true, a.Revision
		for i := range tx.Nested {
			// A repetition succeeds as a whole although an earlier attempt did so as well, and finds that one's nested transactions done. They
			// are told by the value, which names leader, epochs and identities and is therefore the same only when the wish was.
			out.Nested = append(out.Nested, tx.Nested[i].outcome(a.Nested[i], true))
		}
	case earlier && tx.recognises(a):
		out.Applied, out.Revision = true, a.Reads[0].Revision
	}
	return out
}

// recognises reports whether what the reads show was written by this transaction.
func (tx *Tx) recognises(a Answer) bool {
	if len(a.Reads) == 0 || tx.Recognise == ByNothing {
		return false
	}
	own, read := tx.Then[0], a.Reads[0]
	if own.Delete || read.Revision == 0 {
		return own.Delete && read.Revision == 0
	}
	if tx.Recognise == ByTopicID {
		return sameTopic(own.Value, read.Value)
	}
	return own.Value == read.Value
}
