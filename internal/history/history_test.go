package history

import "testing"

func acked(n uint64, offset, began, ended int64) Send {
	return Send{Number: n, Offset: offset, Outcome: Acked, Began: began, Ended: ended}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		sends []Send
		reads []Read
		want  Report
	}{
		{
			name:  "correct, with an unknown that was written and one that was not",
			sends: []Send{acked(1, 0, 1, 2), {Number: 2}, {Number: 3}, {Number: 4, Outcome: NotWritten}, acked(5, 2, 3, 4)},
			reads: []Read{{Offset: 0, Number: 1}, {Offset: 1, Number: 3}, {Offset: 2, Number: 5}},
			want:  Report{Sent: 5, Acked: 2, Read: 3},
		},
		{
			name:  "the same number in two partitions is two records",
			sends: []Send{acked(1, 0, 1, 2), {Partition: 1, Number: 1, Outcome: Acked, Began: 3, Ended: 4}},
			reads: []Read{{Offset: 0, Number: 1}, {Partition: 1, Offset: 0, Number: 1}},
			want:  Report{Sent: 2, Acked: 2, Read: 2},
		},
		{
			name:  "lost",
			sends: []Send{acked(1, 0, 1, 2), acked(2, 1, 1, 2)},
			reads: []Read{{Offset: 0, Number: 1}},
			want:  Report{Sent: 2, Acked: 2, Read: 1, Lost: 1},
		},
		{
			name:  "duplicated",
			sends: []Send{acked(1, 0, 1, 2)},
			reads: []Read{{Offset: 0, Number: 1}, {Offset: 1, Number: 1}},
			want:  Report{Sent: 1, Acked: 1, Read: 2, Duplicated: 1},
		},
		{
			name:  "reordered",
			sends: []Send{acked(1, 1, 1, 9), acked(2, 0, 2, 9)},
			reads: []Read{{Offset: 0, Number: 2}, {Offset: 1, Number: 1}},
			want:  Report{Sent: 2, Acked: 2, Read: 2, Reordered: 1},
		},
		{
			name:  "acked below an offset that was acked before it was sent",
			sends: []Send{acked(2, 1, 1, 2), acked(3, 0, 3, 4)},
			reads: nil,
			want:  Report{Sent: 2, Acked: 2, Lost: 2, Reordered: 1},
		},
		{
			name:  "phantoms: told not written, and never sent",
			sends: []Send{{Number: 1, Outcome: NotWritten}},
			reads: []Read{{Offset: 0, Number: 1}, {Offset: 1, Number: 7}},
			want:  Report{Sent: 1, Read: 2, Phantom: 2},
		},
		{
			name:  "moved",
			sends: []Send{acked(1, 5, 1, 2)},
			reads: []Read{{Offset: 0, Number: 1}},
			want:  Report{Sent: 1, Acked: 1, Read: 1, Moved: 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Check(c.sends, c.reads)
			if got.OK() != (got.First == "") {
				t.Errorf("OK %v, first %q", got.OK(), got.First)
			}
			got.First = ""
			if got != c.want {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}
