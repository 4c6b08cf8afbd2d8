// Package history judges what a log did to the records that were sent to it: which were lost, doubled, put out of order, or
// appeared although their sender was told that they had not been written.
//
// Senders number their records per partition, 1, 2, 3, …, in the order in which they send them, and put the number into the value.
// Check then needs only what each send came to and what a full read found.
package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Outcome is what a sender was told.
type Outcome uint8

// The outcomes of a send. Unknown is also right for a send that was never answered.
const (
	Unknown Outcome = iota
	Acked
	NotWritten
)

// Send is one record that was handed to a producer.
type Send struct {
	Partition int32
	// Number of the record, unique in its partition, ascending in the order of sending.
	Number uint64
	// Offset that the ack named; ignored unless Acked.
	Offset  int64
	Outcome Outcome
	// Began and Ended order the sends over all partitions by any clock that never goes back; Ended is that of the ack. Both 0: unknown.
	Began, Ended int64
}

// Read is one record found by reading a partition from its start to its end.
type Read struct {
	Partition int32
	Offset    int64
	Number    uint64
}

// Report counts violations; all counts but Sent, Acked and Read are 0 for a correct log.
type Report struct {
	Sent, Acked, Read int
	// Lost: acked and not read.
	Lost int
	// Duplicated: read at more than one offset.
	Duplicated int
	// Reordered: read behind a record that was sent later, or acked at an offset not above one that was acked before its send began.
	Reordered int
	// Phantom: read although never sent, or although its sender was told NotWritten.
	Phantom int
	// Moved: acked with one offset, read at another.
	Moved int
	// First describes one violation, to start looking from.
	First string
}

// OK is true without violations.
func (r Report) OK() bool {
	return r.Lost == 0 && r.Duplicated == 0 && r.Reordered == 0 && r.Phantom == 0 && r.Moved == 0
}

// String is one line of key=value pairs.
func (r Report) String() string {
	return fmt.Sprintf("sent=%d acked=%d read=%d lost=%d duplicated=%d reordered=%d phantom=%d moved=%d",
		r.Sent, r.Acked, r.Read, r.Lost, r.Duplicated, r.Reordered, r.Phantom, r.Moved)
}

func (r *Report) violate(count *int, format string, args ...any) {
	*count++
	if r.First == "" {
		r.First = fmt.Sprintf(format, args...)
	}
}

type key struct {
	partition int32
	number    uint64
}

// Check compares sends with reads, given in the order in which each partition was read.
func Check(sends []Send, reads []Read) Report {
	r := Report{Sent: len(sends), Read: len(reads)}
	sent := make(map[key]Send, len(sends))
	for _, s := range sends {
		sent[key{s.Partition, s.Number}] = s
	}
	found := r.checkReads(sent, reads)
	for _, s := range sends {
		if s.Outcome != Acked {
			continue
		}
		r.Acked++
		at, ok := found[key{s.Partition, s.Number}]
		switch {
		case !ok:
			r.violate(&r.Lost, "lost: record %d of partition %d, acked at offset %d", s.Number, s.Partition, s.Offset)
		case at != s.Offset:
			r.violate(&r.Moved, "moved: record %d of partition %d, acked at offset %d, read at %d", s.Number, s.Partition, s.Offset, at)
		}
	}
	r.checkRealTime(sends)
	return r
}

// checkReads looks at what was read in itself, and returns each record's first offset.
func (r *Report) checkReads(sent map[key]Send, reads []Read) map[key]int64 {
	found := make(map[key]int64, len(reads))
	last := map[int32]Read{}
	for _, rd := range reads {
		k := key{rd.Partition, rd.Number}
		s, known := sent[k]
		before, seen := found[k]
		switch prev, follows := last[rd.Partition]; {
		case !known || s.Outcome == NotWritten:
			r.violate(&r.Phantom, "phantom: record %d of partition %d at offset %d (sent: %v)", rd.Number, rd.Partition, rd.Offset, known)
		case seen:
			r.violate(&r.Duplicated, "duplicated: record %d of partition %d at offsets %d and %d", rd.Number, rd.Partition, before, rd.Offset)
		case follows && (rd.Number < prev.Number || rd.Offset <= prev.Offset):
			r.violate(&r.Reordered, "reordered: partition %d: record %d at offset %d is read behind record %d at offset %d",
				rd.Partition, rd.Number, rd.Offset, prev.Number, prev.Offset)
		}
		if !seen {
			found[k] = rd.Offset
		}
		last[rd.Partition] = rd
	}
	return found
}

// checkRealTime wants, per partition, every offset to be above all offsets acked before its send began.
func (r *Report) checkRealTime(sends []Send) {
	acked := slices.DeleteFunc(slices.Clone(sends), func(s Send) bool { return s.Outcome != Acked || s.Ended == 0 })
	byEnd := slices.Clone(acked)
	slices.SortFunc(acked, func(a, b Send) int { return cmp.Compare(a.Began, b.Began) })
	slices.SortFunc(byEnd, func(a, b Send) int { return cmp.Compare(a.Ended, b.Ended) })
	highest := map[int32]int64{}
	next := 0
	for _, s := range acked {
		for ; next < len(byEnd) && byEnd[next].Ended < s.Began; next++ {
			p := byEnd[next].Partition
			if h, ok := highest[p]; !ok || byEnd[next].Offset > h {
				highest[p] = byEnd[next].Offset
			}
		}
		if h, ok := highest[s.Partition]; ok && s.Offset <= h {
			r.violate(&r.Reordered, "reordered: record %d of partition %d acked at offset %d, after offset %d was acked before it was sent",
				s.Number, s.Partition, s.Offset, h)
		}
	}
}
