package server_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/record"
)

func text(key, value string) *runnelv1.PublishRecord {
	r := &runnelv1.PublishRecord{ValueKind: &runnelv1.PublishRecord_Text{Text: value}}
	if key != "" {
		r.KeyKind = &runnelv1.PublishRecord_KeyText{KeyText: key}
	}
	return r
}

func TestPublishPartitionsByKeyAndAnswersPerRecord(t *testing.T) {
	f := setup(t)
	f.syncing()
	f.topic("t", 4)
	at := int64(1234)
	explicit := text("", "explicit")
	explicit.Partition, explicit.TimestampMs = proto.Int32(3), &at
	bad := text("", "bad")
	bad.Partition = proto.Int32(4)
	late := text("", "late")
	late.TimestampMs = proto.Int64(time.Now().Add(48 * time.Hour).UnixMilli())
	resp, err := f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{
		text("k1", "a"), explicit, text("k1", "b"), bad, late, text("k2", "c"), text("", "d"), text("", "e"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := resp.GetResults()
	k1, k2 := record.PartitionForKey([]byte("k1"), 4), record.PartitionForKey([]byte("k2"), 4)
	if r[0].GetPartition() != k1 || r[2].GetPartition() != k1 || r[5].GetPartition() != k2 || r[2].GetOffset() != r[0].GetOffset()+1 {
		t.Fatalf("%v", resp)
	}
	if r[1].GetPartition() != 3 || r[1].GetTimestampMs() != at || r[6].GetPartition() != r[7].GetPartition() {
		t.Fatalf("%v", resp)
	}
	if e := r[3].GetError(); e.GetReason() != "UNKNOWN_PARTITION" || e.GetMetadata()["limit"] != "0 to 3" || r[3].GetOffset() != -1 {
		t.Fatalf("%v", r[3])
	}
	if e := r[4].GetError(); e.GetReason() != "INVALID_ARGUMENT" || e.GetMetadata()["field"] != "timestamp_ms" {
		t.Fatalf("%v", r[4])
	}
}

func TestPublishSplitsIntoBatchesAndRefusesWhatFitsNone(t *testing.T) {
	f := setup(t)
	f.syncing()
	f.cluster.create("t", 1, &runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(1024)})
	var recs []*runnelv1.PublishRecord
	for i := range 10 {
		recs = append(recs, text("", strings.Repeat(fmt.Sprint(i), 400)))
	}
	recs = append(recs, text("", strings.Repeat("x", 2000)))
	resp, err := f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: recs})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.GetResults()[:10] {
		if r.GetError() != nil || r.GetOffset() != int64(i) {
			t.Fatalf("%d: %v", i, r)
		}
	}
	if e := resp.GetResults()[10].GetError(); e.GetReason() != "BATCH_TOO_LARGE" || e.GetMetadata()["limit"] != "1024" {
		t.Fatalf("%v", e)
	}
}

func TestPublishRetryIsRecognised(t *testing.T) {
	f := setup(t)
	f.syncing()
	topic := f.topic("t", 2)
	id, err := f.producer.InitProducer(f.ctx(), &runnelv1.InitProducerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := &runnelv1.PublishRequest{
		Topic: "t", Records: []*runnelv1.PublishRecord{text("k", "a"), text("k", "b")},
		ProducerId: &id.ProducerId, ProducerEpoch: &id.ProducerEpoch, Sequence: proto.Int32(0),
	}
	var offsets []int64
	for range 3 {
		resp, err := f.producer.Publish(f.ctx(), req)
		if err != nil || resp.GetResults()[1].GetError() != nil {
			t.Fatal(err, resp)
		}
		offsets = append(offsets, resp.GetResults()[1].GetOffset())
	}
	p := f.cluster.parts[topic.ID][record.PartitionForKey([]byte("k"), 2)]
	if end := p.Status().Offsets.End; end != 2 || !slices.Equal(offsets, []int64{1, 1, 1}) {
		t.Fatalf("log end %d, offsets %v", end, offsets)
	}
	again, err := f.producer.InitProducer(f.ctx(), &runnelv1.InitProducerRequest{})
	if err != nil || again.GetProducerId() == id.GetProducerId() {
		t.Fatalf("the same id twice: %v %v", again, err)
	}
}

func TestPublishRefusesBadRequests(t *testing.T) {
	f := setup(t)
	f.topic("t", 2)
	ok := []*runnelv1.PublishRecord{text("k", "v")}
	for name, tc := range map[string]struct {
		req    *runnelv1.PublishRequest
		code   codes.Code
		reason string
	}{
		"unknown topic":                {&runnelv1.PublishRequest{Topic: "nope", Records: ok}, codes.NotFound, "TOPIC_NOT_FOUND"},
		"name with ..":                 {&runnelv1.PublishRequest{Topic: "..", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"name with NUL":                {&runnelv1.PublishRequest{Topic: "a\x00b", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"name that escapes":            {&runnelv1.PublishRequest{Topic: "../brokers/1", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"name with ANSI":               {&runnelv1.PublishRequest{Topic: "\x1b[31mred", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"look-alike name":              {&runnelv1.PublishRequest{Topic: "оrders", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"name of 250 characters":       {&runnelv1.PublishRequest{Topic: strings.Repeat("a", 250), Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"name of 10 kB":                {&runnelv1.PublishRequest{Topic: strings.Repeat("a", 10_000), Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"reserved name":                {&runnelv1.PublishRequest{Topic: "__internal", Records: ok}, codes.InvalidArgument, "INVALID_NAME"},
		"no records":                   {&runnelv1.PublishRequest{Topic: "t"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"too many records":             {&runnelv1.PublishRequest{Topic: "t", Records: slices.Repeat(ok, 10_001)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"unknown acks":                 {&runnelv1.PublishRequest{Topic: "t", Records: ok, Acks: 7}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"producer id alone":            {&runnelv1.PublishRequest{Topic: "t", Records: ok, ProducerId: proto.Int64(1)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"negative producer id":         {&runnelv1.PublishRequest{Topic: "t", Records: ok, ProducerId: proto.Int64(-1), ProducerEpoch: proto.Int32(0), Sequence: proto.Int32(0)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"producer epoch over 16 bits":  {&runnelv1.PublishRequest{Topic: "t", Records: ok, ProducerId: proto.Int64(1), ProducerEpoch: proto.Int32(40000), Sequence: proto.Int32(0)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"idempotent over partitions":   {&runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{text("a", "v"), text("b", "v"), text("c", "v"), text("d", "v")}, ProducerId: proto.Int64(1), ProducerEpoch: proto.Int32(0), Sequence: proto.Int32(0)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"idempotent without partition": {&runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{text("", "v")}, ProducerId: proto.Int64(1), ProducerEpoch: proto.Int32(0), Sequence: proto.Int32(0)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.producer.Publish(f.ctx(), tc.req)
			m := wantReason(t, err, tc.code, tc.reason)
			if tc.code == codes.InvalidArgument && (m["value"] == "" || m["limit"] == "") {
				t.Fatalf("no value or limit: %v", m)
			}
			if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x00\x1b") {
				t.Fatalf("message repeats hostile input: %q", err.Error())
			}
		})
	}
}

func records(t *testing.T, st grpc.ServerStreamingClient[runnelv1.SubscribeResponse], n int) []*runnelv1.SubscribedRecord {
	t.Helper()
	var got []*runnelv1.SubscribedRecord
	for len(got) < n {
		r, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetError() != nil {
			t.Fatal(r.GetError())
		}
		got = append(got, r.GetRecords()...)
	}
	if len(got) != n {
		t.Fatalf("%d records, want %d", len(got), n)
	}
	return got
}

func TestSubscribeUntilEndThenTail(t *testing.T) {
	f := setup(t)
	f.syncing()
	f.topic("t", 2)
	pub := func(vals ...string) {
		for i, v := range vals {
			r := text("key", v)
			r.Partition = proto.Int32(int32(i % 2))
			r.Headers = []*runnelv1.Header{{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}}
			resp, err := f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{r}})
			if err != nil || resp.GetResults()[0].GetError() != nil {
				t.Fatal(err, resp)
			}
		}
	}
	pub("a", "b", "c", "d")
	st, err := f.consumer.Subscribe(f.ctx(), &runnelv1.SubscribeRequest{Topics: []string{"t", "t"}, UntilEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	got := records(t, st, 4)
	next := map[int32]int64{}
	for _, r := range got {
		if r.GetOffset() != next[r.GetPartition()] || string(r.GetKey()) != "key" || r.GetTopic() != "t" || len(r.GetHeaders()) != 2 || string(r.GetHeaders()[1].GetValue()) != "2" {
			t.Fatalf("%v", r)
		}
		next[r.GetPartition()]++
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("until_end did not end: %v", err)
	}
	tail, err := f.consumer.Subscribe(f.ctx(), &runnelv1.SubscribeRequest{
		Topics: []string{"t"}, Partitions: []int32{1}, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: 1}}, MaxRecords: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := records(t, tail, 1); string(got[0].GetValue()) != "d" {
		t.Fatalf("%v", got)
	}
	pub("x", "y", "z", "beyond the limit")
	if got := records(t, tail, 1); string(got[0].GetValue()) != "y" {
		t.Fatalf("%v", got)
	}
	if _, err := tail.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("max_records did not end: %v", err)
	}
}

func TestSubscribeBeginsWithinABatchAndKeepsNullApartFromEmpty(t *testing.T) {
	f := setup(t)
	f.syncing()
	f.topic("t", 1)
	_, err := f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{
		text("", "skipped"), {}, {ValueKind: &runnelv1.PublishRecord_Value{}, KeyKind: &runnelv1.PublishRecord_Key{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.consumer.Subscribe(f.ctx(), &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	got := records(t, st, 2)
	if got[0].Key != nil || got[0].Value != nil || got[1].Key == nil || got[1].Value == nil || got[0].GetOffset() != 1 {
		t.Fatalf("%v", got)
	}
}

func TestSubscribeReportsOnePartitionAndGoesOn(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	f.put(topic, 1, "v")
	f.cluster.mu.Lock()
	f.cluster.parts[topic.ID][0] = nil
	f.cluster.mu.Unlock()
	st, err := f.consumer.Subscribe(f.ctx(), &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := st.Recv()
	if err != nil || first.GetFailed().GetPartition() != 0 || first.GetError().GetReason() != "NOT_LEADER" {
		t.Fatalf("%v %v", first, err)
	}
	records(t, st, 1)
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestSubscribeRefusesBadRequests(t *testing.T) {
	f := setup(t)
	f.topic("t", 2)
	f.topic("u", 1)
	for name, tc := range map[string]struct {
		req    *runnelv1.SubscribeRequest
		code   codes.Code
		reason string
	}{
		"group":                      {&runnelv1.SubscribeRequest{Topics: []string{"t"}, Group: "g"}, codes.Unimplemented, "NOT_YET_AVAILABLE"},
		"no topic":                   {&runnelv1.SubscribeRequest{}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"unknown topic":              {&runnelv1.SubscribeRequest{Topics: []string{"x"}}, codes.NotFound, "TOPIC_NOT_FOUND"},
		"bad name":                   {&runnelv1.SubscribeRequest{Topics: []string{"a/b"}}, codes.InvalidArgument, "INVALID_NAME"},
		"unknown partition":          {&runnelv1.SubscribeRequest{Topics: []string{"t"}, Partitions: []int32{2}}, codes.NotFound, "UNKNOWN_PARTITION"},
		"partitions with two topics": {&runnelv1.SubscribeRequest{Topics: []string{"t", "u"}, Partitions: []int32{0}}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"negative max_records":       {&runnelv1.SubscribeRequest{Topics: []string{"t"}, MaxRecords: -1}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"negative offset":            {&runnelv1.SubscribeRequest{Topics: []string{"t"}, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: -1}}}, codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		t.Run(name, func(t *testing.T) {
			st, err := f.consumer.Subscribe(f.ctx(), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			_, err = st.Recv()
			wantReason(t, err, tc.code, tc.reason)
		})
	}
}
