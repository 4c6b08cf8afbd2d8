package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/record"
)

// subscribe reads until the stream ends.
func subscribe(t *testing.T, address string, r *runnelv1.SubscribeRequest) (records []*runnelv1.SubscribedRecord, err error) {
	t.Helper()
	s, err := runnelv1.NewConsumerClient(dial(t, address)).Subscribe(bounded(t), r)
	if err != nil {
		return nil, err
	}
	for {
		resp, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		if resp.GetError() != nil {
			t.Errorf("%v: %v", resp.GetFailed(), resp.GetError())
		}
		records = append(records, resp.GetRecords()...)
	}
}

// wantStatus checks an error of a plain stub, and returns its details.
func wantStatus(t *testing.T, err error, code codes.Code, reason string) map[string]string {
	t.Helper()
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && st.Code() == code && info.GetReason() == reason && info.GetDomain() == "runnel.dev" {
			return info.GetMetadata()
		}
	}
	t.Errorf("error %v %v, want %v %s", err, st.Details(), code, reason)
	return nil
}

func texted(text, key string) *runnelv1.PublishRecord {
	r := &runnelv1.PublishRecord{ValueKind: &runnelv1.PublishRecord_Text{Text: text}}
	if key != "" {
		r.KeyKind = &runnelv1.PublishRecord_KeyText{KeyText: key}
	}
	return r
}

// Publish and Subscribe are all that a program in any language needs.
func TestPlainStubs(t *testing.T) {
	t.Parallel()
	c := start(t)
	create(t, c.Client(), "t", 4, client.TopicConfig{})
	address := c.Broker(1).Address()
	api := runnelv1.NewProducerClient(dial(t, address))
	req := &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{
		texted("grüße", "alice"), texted("again", "alice"), texted("other", "bob"), texted("no key", ""),
		{
			ValueKind: &runnelv1.PublishRecord_Value{Value: []byte{0, 255}}, KeyKind: &runnelv1.PublishRecord_Key{Key: []byte{}},
			Headers: []*runnelv1.Header{{Key: "h", Value: []byte("v")}}, TimestampMs: proto.Int64(1_700_000_000_000),
		},
		{Partition: proto.Int32(3)}, // null key, null value
	}}
	resp, err := api.Publish(bounded(t), req)
	if err != nil {
		t.Fatal(err)
	}
	results := resp.GetResults()
	if len(results) != len(req.GetRecords()) {
		t.Fatalf("%d results for %d records", len(results), len(req.GetRecords()))
	}
	byPlace := map[string]int{}
	for i, r := range results {
		if r.GetError() != nil {
			t.Fatalf("record %d: %v", i, r.GetError())
		}
		byPlace[fmt.Sprint(r.GetPartition(), "/", r.GetOffset())] = i
	}
	alice := record.PartitionForKey([]byte("alice"), 4)
	if results[0].GetPartition() != alice || results[1].GetPartition() != alice || results[1].GetOffset() <= results[0].GetOffset() {
		t.Errorf("alice's records went to %v and %v, want partition %d in order", results[0], results[1], alice)
	}
	if results[4].GetPartition() != record.PartitionForKey([]byte{}, 4) || results[4].GetTimestampMs() != 1_700_000_000_000 || results[5].GetPartition() != 3 {
		t.Errorf("results %v, %v", results[4], results[5])
	}

	got, err := subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true})
	if err != nil || len(got) != len(results) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	for _, r := range got {
		i, ok := byPlace[fmt.Sprint(r.GetPartition(), "/", r.GetOffset())]
		if !ok {
			t.Errorf("nothing was published to %v", r)
			continue
		}
		sent := req.GetRecords()[i]
		value, key := sent.GetValue(), sent.GetKey()
		if text, ok := sent.GetValueKind().(*runnelv1.PublishRecord_Text); ok {
			value = []byte(text.Text)
		}
		if text, ok := sent.GetKeyKind().(*runnelv1.PublishRecord_KeyText); ok {
			key = []byte(text.KeyText)
		}
		if !bytes.Equal(r.GetValue(), value) || (r.Value == nil) != (sent.GetValueKind() == nil) ||
			!bytes.Equal(r.GetKey(), key) || (r.Key == nil) != (sent.GetKeyKind() == nil) || len(r.GetHeaders()) != len(sent.GetHeaders()) {
			t.Errorf("record %d: read %v, published %v", i, r, sent)
		}
	}
}

func TestPublishRetriesAreRecognised(t *testing.T) {
	t.Parallel()
	c := start(t)
	create(t, c.Client(), "t", 2, client.TopicConfig{})
	address := c.Broker(1).Address()
	api := runnelv1.NewProducerClient(dial(t, address))
	id, err := api.InitProducer(bounded(t), &runnelv1.InitProducerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	request := func(sequence int32, records ...*runnelv1.PublishRecord) *runnelv1.PublishRequest {
		return &runnelv1.PublishRequest{
			Topic: "t", Records: records, ProducerId: proto.Int64(id.GetProducerId()), ProducerEpoch: proto.Int32(id.GetProducerEpoch()), Sequence: proto.Int32(sequence),
		}
	}
	first := request(0, texted("a", "k"), texted("b", "k"))
	var offsets []int64
	for range 3 {
		resp, err := api.Publish(bounded(t), first)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.GetResults() {
			if r.GetError() != nil {
				t.Fatal(r.GetError())
			}
			offsets = append(offsets, r.GetOffset())
		}
	}
	if !slices.Equal(offsets, []int64{0, 1, 0, 1, 0, 1}) {
		t.Errorf("three attempts were answered with %v", offsets)
	}
	// A restart forgets nothing of it.
	c.Broker(1).Restart()
	resp, err := api.Publish(bounded(t), first, grpc.WaitForReady(true))
	if err != nil || resp.GetResults()[0].GetError() != nil || resp.GetResults()[0].GetOffset() != 0 {
		t.Errorf("the attempt after a restart: %v, %v", resp, err)
	}
	resp, err = api.Publish(bounded(t), request(5, texted("gap", "k")))
	if err != nil || resp.GetResults()[0].GetError().GetReason() != "OUT_OF_ORDER_SEQUENCE" || resp.GetResults()[0].GetError().GetMetadata()["expected"] != "2" {
		t.Errorf("a gap: %v, %v", resp, err)
	}
	if resp, err = api.Publish(bounded(t), request(2, texted("c", "k"))); err != nil || resp.GetResults()[0].GetOffset() != 2 {
		t.Errorf("the next in sequence: %v, %v", resp, err)
	}
	got, err := subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true})
	if err != nil || len(got) != 3 {
		t.Errorf("%d records, %v", len(got), err)
	}
}

func TestSubscribePositionsAndRefusals(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	p := producer(t, cl, client.Compress(client.CompressionZstd), client.Linger(1e6))
	for i := range 10 {
		p.Produce(bounded(t), &client.Record{Topic: "t", Value: fmt.Append(nil, i)}, nil)
	}
	if err := p.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	address := c.Broker(1).Address()
	got, err := subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: 7}}})
	if err != nil || len(got) != 3 || got[0].GetOffset() != 7 || string(got[2].GetValue()) != "9" {
		t.Errorf("from an offset within a compressed batch: %v, %v", got, err)
	}
	got, err = subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, MaxRecords: 4})
	if err != nil || len(got) != 4 {
		t.Errorf("four records: %v, %v", got, err)
	}
	got, err = subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true, From: &runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}})
	if err != nil || len(got) != 0 {
		t.Errorf("from the end to the end: %v, %v", got, err)
	}

	_, err = subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, Group: "g"})
	wantStatus(t, err, codes.Unimplemented, "NOT_YET_AVAILABLE")
	_, err = subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"none"}})
	wantStatus(t, err, codes.NotFound, "TOPIC_NOT_FOUND")
	_, err = subscribe(t, address, &runnelv1.SubscribeRequest{})
	wantStatus(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	api := runnelv1.NewProducerClient(dial(t, address))
	_, err = api.Publish(bounded(t), &runnelv1.PublishRequest{Topic: "none", Records: []*runnelv1.PublishRecord{texted("x", "")}})
	wantStatus(t, err, codes.NotFound, "TOPIC_NOT_FOUND")
	resp, err := api.Publish(bounded(t), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{
		{Partition: proto.Int32(1), ValueKind: &runnelv1.PublishRecord_Text{Text: "nowhere"}}, texted("fine", ""),
	}})
	if err != nil || resp.GetResults()[0].GetError().GetReason() != "UNKNOWN_PARTITION" || resp.GetResults()[1].GetError() != nil {
		t.Errorf("one good record, one for a partition that is not there: %v, %v", resp, err)
	}
	if got, err = subscribe(t, address, &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true}); err != nil || len(got) != 11 {
		t.Errorf("%d records in the end, %v", len(got), err)
	}
}

// Batches that are not what they claim to be leave no trace.
func TestHostileBatches(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	s := rawProduce(t, c.Broker(1).Address())
	good := batch(t, "a", "b", "c")
	edit := func(f func(b []byte) []byte) []byte { return f(slices.Clone(good)) }
	for name, tt := range map[string]struct {
		batch  []byte
		reason string
	}{
		"empty":             {nil, "CORRUPT_BATCH"},
		"cut off":           {good[:len(good)-1], "CORRUPT_BATCH"},
		"header alone":      {good[:61], "CORRUPT_BATCH"},
		"a byte too many":   {append(slices.Clone(good), 0), "CORRUPT_BATCH"},
		"two batches":       {append(slices.Clone(good), good...), "CORRUPT_BATCH"},
		"wrong checksum":    {edit(func(b []byte) []byte { b[17] ^= 1; return b }), "CORRUPT_BATCH"},
		"flipped record":    {edit(func(b []byte) []byte { b[len(b)-2] ^= 1; return b }), "CORRUPT_BATCH"},
		"magic of Kafka v1": {edit(func(b []byte) []byte { b[16] = 1; return b }), "INVALID_BATCH"},
		"huge length":       {edit(func(b []byte) []byte { b[8] = 0x7f; return b }), "BATCH_TOO_LARGE"},
		"negative length":   {edit(func(b []byte) []byte { b[8] = 0xff; return b }), "CORRUPT_BATCH"},
	} {
		resp := s.do(topic.ID, 0, tt.batch)
		if e := resp.GetError(); e.GetReason() != tt.reason || resp.GetBaseOffset() != -1 || e.GetMetadata()["check"] == "" {
			t.Errorf("%s: %v", name, resp)
		}
	}
	if resp := s.do(topic.ID, 7, good); resp.GetError().GetReason() != "UNKNOWN_PARTITION" {
		t.Errorf("unknown partition: %v", resp)
	}
	if resp := s.do(client.TopicID{9}, 0, good); resp.GetError().GetReason() != "UNKNOWN_TOPIC_ID" {
		t.Errorf("unknown topic: %v", resp)
	}
	if resp := s.do(topic.ID, 0, good); resp.GetError() != nil || resp.GetBaseOffset() != 0 {
		t.Errorf("the good batch afterwards: %v", resp)
	}
}
