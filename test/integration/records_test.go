package integration

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

func TestRoundTripWithEveryCodec(t *testing.T) {
	t.Parallel()
	cl := start(t).Client()
	at := time.UnixMilli(1_700_000_000_123)
	for _, codec := range []client.Compression{
		client.CompressionTopic, client.CompressionNone, client.CompressionGzip, client.CompressionSnappy, client.CompressionLZ4, client.CompressionZstd,
	} {
		t.Run(codec.String(), func(t *testing.T) {
			topic := "codec-" + codec.String()
			create(t, cl, topic, 2, client.TopicConfig{})
			var want []*client.Record
			for p := range int32(2) {
				want = append(want,
					&client.Record{Topic: topic, Partition: p, Key: nil, Value: []byte("null key"), Timestamp: at},
					&client.Record{Topic: topic, Partition: p, Key: []byte{}, Value: []byte{}, Timestamp: at.Add(time.Second)},
					&client.Record{Topic: topic, Partition: p, Key: []byte("tombstone"), Value: nil, Timestamp: at.Add(-time.Hour)},
					&client.Record{
						Topic: topic, Partition: p, Key: []byte("k"), Value: bytes.Repeat([]byte("compressible "), 10_000), Timestamp: at,
						Headers: []client.Header{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}, {Key: "", Value: []byte{0}}},
					},
				)
			}
			sent := make([]*client.Record, len(want))
			for i, r := range want {
				sent[i] = r.Clone()
			}
			p := producer(t, cl, client.Compress(codec))
			if err := p.ProduceSync(bounded(t), sent...); err != nil {
				t.Fatal(err)
			}
			got := read(t, cl, client.Earliest, tp(topic, 0), tp(topic, 1))
			slices.SortStableFunc(got, func(a, b *client.Record) int { return int(a.Partition - b.Partition) })
			for i, r := range want {
				r.Offset = int64(i % 4)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("read is not what was produced (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsumerPositions(t *testing.T) {
	t.Parallel()
	cl := start(t).Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	base := time.UnixMilli(1_700_000_000_000)
	p := producer(t, cl)
	for i := range 6 {
		r := &client.Record{Topic: "t", Value: fmt.Appendf(nil, "%d", i), Timestamp: base.Add(time.Duration(i) * time.Second)}
		if err := p.ProduceSync(bounded(t), r); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		from client.Position
		want []string
	}{
		"earliest":                {client.Earliest, []string{"0", "1", "2", "3", "4", "5"}},
		"latest":                  {client.Latest, []string{}},
		"offset":                  {client.At(4), []string{"4", "5"}},
		"offset at the end":       {client.At(6), []string{}},
		"time of a record":        {client.Since(base.Add(2 * time.Second)), []string{"2", "3", "4", "5"}},
		"time between records":    {client.Since(base.Add(2*time.Second + 1*time.Millisecond)), []string{"3", "4", "5"}},
		"time before all records": {client.Since(base.Add(-time.Hour)), []string{"0", "1", "2", "3", "4", "5"}},
		"time behind all records": {client.Since(base.Add(time.Hour)), []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, texts(read(t, cl, tt.from, tp("t", 0)))); diff != "" {
				t.Errorf("from %v (-want +got):\n%s", tt.from, diff)
			}
		})
	}
}

// A consumer at the end is told of records that arrive later.
func TestLatestSeesWhatComes(t *testing.T) {
	t.Parallel()
	cl := start(t).Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, "before")
	cs, err := cl.NewConsumer(client.Topics("t"), client.From(client.Latest))
	if err != nil {
		t.Fatal(err)
	}
	testcluster.Eventually(t, func() error {
		if at, ok := cs.Positions()[tp("t", 0)]; !ok || at != 1 {
			return fmt.Errorf("position %d, %v", at, ok)
		}
		return nil
	})
	produce(t, cl, "t", 0, "after")
	for r, err := range cs.Records(bounded(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Value) != "after" || r.Offset != 1 {
			t.Errorf("read %q at %d", r.Value, r.Offset)
		}
		break
	}
}

func wantOutOfRange(t *testing.T, err error, asked, earliest, latest int64) {
	t.Helper()
	var oor *client.OffsetOutOfRangeError
	if !errors.As(err, &oor) {
		t.Fatalf("error %v, want an *OffsetOutOfRangeError", err)
	}
	if oor.Asked != asked || oor.Earliest != earliest || oor.Latest != latest || oor.TopicPartition != tp("t", 0) {
		t.Errorf("%+v, want asked %d, earliest %d, latest %d", oor, asked, earliest, latest)
	}
}

func TestOutOfRangeAfterDeleteRecords(t *testing.T) {
	t.Parallel()
	cl := start(t).Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, values(10)...)
	deleted, err := cl.Admin().DeleteRecords(bounded(t), "t", map[int32]int64{0: 4})
	if err != nil || len(deleted) != 1 || deleted[0].LogStart != 4 {
		t.Fatalf("DeleteRecords: %+v, %v", deleted, err)
	}
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != 6 || got[0].Offset != 4 {
		t.Errorf("earliest begins at %d of %d records", got[0].Offset, len(got))
	}
	for _, asked := range []int64{3, 11} {
		cs, err := cl.NewConsumer(client.Partitions(tp("t", 0)), client.From(client.At(asked)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = cs.Poll(bounded(t))
		wantOutOfRange(t, err, asked, 4, 10)
	}
	_, err = cl.Admin().DeleteRecords(bounded(t), "t", map[int32]int64{0: 11})
	if err == nil {
		t.Error("records beyond the high watermark were deleted")
	}
	if info := partitions(t, cl, "t")[0]; info.LogStart != 4 || info.HighWatermark != 10 {
		t.Errorf("after a refused DeleteRecords: %+v", info)
	}
}

func TestOutOfRangeAfterRetention(t *testing.T) {
	t.Parallel()
	cl := start(t, func(c *config.Config) { c.Storage.RetentionInterval = config.Duration(100 * time.Millisecond) }).Client()
	create(t, cl, "t", 1, client.TopicConfig{SegmentBytes: new(int64(1 << 20)), RetentionBytes: new(int64(1 << 20))})
	big := string(make([]byte, 700<<10))
	produce(t, cl, "t", 0, big, big, big, big)
	var info client.PartitionInfo
	testcluster.Eventually(t, func() error {
		if info = partitions(t, cl, "t")[0]; info.LogStart == 0 || info.SizeBytes > 2<<20 {
			return fmt.Errorf("retention has not come by: %+v", info)
		}
		return nil
	})
	_, err := tryRead(t, cl, client.At(0), tp("t", 0))
	wantOutOfRange(t, err, 0, info.LogStart, 4)
	if got := read(t, cl, client.Earliest, tp("t", 0)); len(got) != int(4-info.LogStart) {
		t.Errorf("%d records from log start %d", len(got), info.LogStart)
	}
}
