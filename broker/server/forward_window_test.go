package server

import (
	"testing"

	"google.golang.org/grpc/mem"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func proxies(t *testing.T, n int) []*fetchProxy {
	t.Helper()
	l := &listener{Server: &Server{limits: Limits{InFlightBytes: 16 << 20}.withDefaults()}}
	var out []*fetchProxy
	for range n {
		x, _ := l.newFetchProxy(t.Context(), 2)
		t.Cleanup(x.cancel)
		out = append(out, x)
	}
	return out
}

func batchFrame(sub uint32, n int) *codec.FetchFrame {
	f := &codec.FetchFrame{SubscriptionID: sub}
	f.SetBatch(mem.SliceBuffer(make([]byte, n)))
	return f
}

// TestForwardedReadersThatDoNotReadDoNotAddUp: what waits for slow clients is bounded over all of their streams, not by stream.
func TestForwardedReadersThatDoNotReadDoNotAddUp(t *testing.T) {
	const most = 16 << 20 / peerShare
	var granted int64
	for _, x := range proxies(t, 64) {
		granted += x.pending().GetStreamCreditBytes()
	}
	// The first two have the whole window, the others what is left by the number of streams: a harmonic sum.
	if granted > 6*most {
		t.Fatalf("64 streams may hold %d bytes, want at most %d", granted, 6*most)
	}
	if w := proxies(t, 1)[0].pending().GetStreamCreditBytes(); w != proxyWindow {
		t.Fatalf("a stream alone has a window of %d, want %d", w, proxyWindow)
	}
}

// TestAWindowThatShrinksNeverStalls: whatever was granted before there were many streams, a reader that takes everything is granted more.
func TestAWindowThatShrinksNeverStalls(t *testing.T) {
	x := proxies(t, 1)[0]
	s := x.add(&runnelv1.FetchAdd{}, func() {})
	credit := x.pending().GetStreamCreditBytes()
	x.l.reads.Add(1000)
	for i := range 2000 {
		if credit <= 0 {
			t.Fatalf("stalled after %d frames", i)
		}
		n := 1 + i*37%(300<<10)
		credit -= int64(n)
		x.deliver(batchFrame(s.id, n))
		f, err := s.take()
		if err != nil || f == nil {
			t.Fatal(f, err)
		}
		f.Free()
		credit += x.pending().GetStreamCreditBytes()
	}
	if credit > leastWindow {
		t.Fatalf("the window is %d bytes with a thousand other streams, want at most %d", credit, leastWindow)
	}
}

// TestSubscriptionsThatComeAndGoUnheardLeaveNothing: a client adds and removes partitions faster than a broker that hangs takes note.
func TestSubscriptionsThatComeAndGoUnheardLeaveNothing(t *testing.T) {
	x := proxies(t, 1)[0]
	kept := x.add(&runnelv1.FetchAdd{}, func() {})
	for range 1000 {
		s := x.add(&runnelv1.FetchAdd{}, func() {})
		s.grant(1)
		s.close()
	}
	req := x.pending()
	if len(req.GetAdd()) != 1 || req.GetAdd()[0].GetSubscriptionId() != kept.id || len(req.GetRemove())+len(req.GetCredit()) != 0 {
		t.Fatalf("%d added, %d removed, %d credited; want the one that stayed", len(req.GetAdd()), len(req.GetRemove()), len(req.GetCredit()))
	}
	kept.close()
	if req = x.pending(); len(req.GetRemove()) != 1 || len(req.GetAdd()) != 0 {
		t.Fatalf("one that the broker knows has to be removed: %v", req)
	}
}
