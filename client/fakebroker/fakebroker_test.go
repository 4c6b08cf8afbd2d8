package fakebroker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect opens a plain gRPC connection, as a thin client of any language has it, with the standard protobuf codec.
func connect(t *testing.T, c *fakebroker.Cluster) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///broker-1:7650", grpc.WithContextDialer(c.Dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return cc
}

func inBubble(t *testing.T, f func(t *testing.T, c *fakebroker.Cluster, cc *grpc.ClientConn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := fakebroker.Start(fakebroker.ClusterID("x"))
		cc := connect(t, c)
		f(t, c, cc)
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
		c.Close()
	})
}

func TestPublishAndSubscribeWithPlainStubs(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakebroker.Cluster, cc *grpc.ClientConn) {
		c.CreateTopic("t", 3)
		n := int32(9)
		resp, err := runnelv1.NewProducerClient(cc).Publish(t.Context(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{
			{ValueKind: &runnelv1.PublishRecord_Text{Text: "hi"}, KeyKind: &runnelv1.PublishRecord_KeyText{KeyText: "k"}},
			{ValueKind: &runnelv1.PublishRecord_Value{Value: []byte("x")}, Partition: &n},
		}})
		if err != nil || resp.GetResults()[0].GetError() != nil || resp.GetResults()[1].GetError().GetReason() != "UNKNOWN_PARTITION" {
			t.Fatalf("%v, %v", err, resp)
		}
		stream, err := runnelv1.NewConsumerClient(cc).Subscribe(t.Context(), &runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil || len(got.GetRecords()) != 1 || string(got.GetRecords()[0].GetValue()) != "hi" {
			t.Fatalf("%v, %v", err, got)
		}
		if _, err = stream.Recv(); err == nil {
			t.Fatal("the stream goes on behind the end")
		}
	})
}

func TestFaultsOfAUnaryCall(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakebroker.Cluster, cc *grpc.ClientConn) {
		api := runnelv1.NewAdminClient(cc)
		create := func(name string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := api.CreateTopic(ctx, &runnelv1.CreateTopicRequest{Name: name})
			return err
		}
		for _, tc := range []struct {
			name   string
			action fakebroker.Action
			code   codes.Code
			done   bool
		}{
			{"refused", fakebroker.Action{Error: &fakebroker.Error{Code: codes.ResourceExhausted, Reason: "X"}}, codes.ResourceExhausted, false},
			{"before", fakebroker.Action{Disconnect: true}, codes.Unavailable, false},
			{"after", fakebroker.Action{DisconnectAfter: true}, codes.Unavailable, true},
			{"lost", fakebroker.Action{Lose: true}, codes.DeadlineExceeded, true},
			{"late", fakebroker.Action{Delay: time.Second}, codes.OK, true},
		} {
			c.OnCall(func(fakebroker.Call) fakebroker.Action { return tc.action })
			if err := create(tc.name); status.Code(err) != tc.code {
				t.Errorf("%s: %v", tc.name, err)
			}
			c.OnCall(nil)
			if err := create(tc.name); (status.Code(err) == codes.AlreadyExists) != tc.done {
				t.Errorf("%s: took effect is not %v: %v", tc.name, tc.done, err)
			}
		}
	})
}

func TestWatchPushesChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakebroker.Cluster, cc *grpc.ClientConn) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := runnelv1.NewMetadataClient(cc).Watch(ctx, &runnelv1.WatchRequest{AllTopics: true})
		if err != nil {
			t.Fatal(err)
		}
		next := func() *runnelv1.WatchResponse {
			t.Helper()
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := next(); !r.GetSnapshot() || len(r.GetBrokers()) != 1 || r.GetClusterId() != "x" {
			t.Fatal(r)
		}
		c.CreateTopic("t", 2)
		if r := next(); r.GetSnapshot() || len(r.GetTopics()) != 1 || len(r.GetTopics()[0].GetPartitions()) != 2 {
			t.Fatal(r)
		}
		c.MoveLeader("t", 1, -1)
		if r := next(); r.GetTopics()[0].GetPartitions()[1].GetLeaderId() != -1 || r.GetTopics()[0].GetPartitions()[1].GetLeaderEpoch() != 2 {
			t.Fatal(r)
		}
		c.DeleteTopic("t")
		if r := next(); len(r.GetMissingTopics()) != 1 {
			t.Fatal(r)
		}
	})
}

func TestAutoCreate(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakebroker.Cluster, cc *grpc.ClientConn) {
		c.AutoCreate()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := runnelv1.NewMetadataClient(cc).Watch(ctx, &runnelv1.WatchRequest{Topics: []string{"new"}, AutoCreate: true})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || len(r.GetTopics()) != 1 {
			t.Fatalf("%v, %v", err, r)
		}
	})
}
