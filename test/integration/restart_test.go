package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/internal/testcluster"
)

// outstanding is how many records of a partition may wait for their ack.
const outstanding = 200

// load sends numbered records to the partitions of a topic, and reads them all the while. All of it is remembered.
type load struct {
	t        *testing.T
	topic    string
	producer *client.Producer
	consumer *client.Consumer
	began    time.Time

	stopSending, stopReading context.CancelFunc
	sending, reading         sync.WaitGroup
	acks, seen               atomic.Int64

	mu struct {
		sync.Mutex
		sends []history.Send
		reads []history.Read
	}
}

func startLoad(t *testing.T, cl *client.Client, topic string, partitions int32) *load {
	t.Helper()
	l := &load{t: t, topic: topic, producer: producer(t, cl, client.BatchBytes(4<<10)), began: time.Now()}
	var err error
	if l.consumer, err = cl.NewConsumer(client.Topics(topic)); err != nil {
		t.Fatal(err)
	}
	var read context.Context
	read, l.stopReading = context.WithCancel(context.WithoutCancel(t.Context()))
	l.reading.Go(func() { l.read(read) })
	send, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stopSending = cancel
	t.Cleanup(func() { l.stopSending(); l.stopReading(); l.sending.Wait(); l.reading.Wait() })
	for p := range partitions {
		l.sending.Go(func() { l.send(send, p) })
	}
	return l
}

// grow sends to one more partition.
func (l *load) grow(partition int32) {
	ctx, cancel := context.WithCancel(context.Background())
	before := l.stopSending
	l.stopSending = func() { before(); cancel() }
	l.sending.Go(func() { l.send(ctx, partition) })
}

func (l *load) now() int64 { return int64(time.Since(l.began)) + 1 }

func (l *load) send(ctx context.Context, partition int32) {
	slots := make(chan struct{}, outstanding)
	for number := uint64(1); ; number++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		index := len(l.mu.sends)
		l.mu.sends = append(l.mu.sends, history.Send{Partition: partition, Number: number, Began: l.now()})
		l.mu.Unlock()
		r := &client.Record{Topic: l.topic, Partition: partition, Value: binary.BigEndian.AppendUint64(nil, number)}
		// The record is not bound to ctx: once it is in the history its outcome is wanted.
		l.producer.Produce(context.WithoutCancel(ctx), r, func(r *client.Record, err error) {
			l.settle(index, r.Offset, err)
			<-slots
		})
	}
}

func (l *load) settle(index int, offset int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.mu.sends[index]
	s.Ended = l.now()
	switch {
	case err == nil:
		s.Outcome, s.Offset = history.Acked, offset
		l.acks.Add(1)
	case errors.Is(err, client.ErrNotWritten) == errors.Is(err, client.ErrOutcomeUnknown):
		l.t.Errorf("not exactly one of not written and unknown: %v", err)
	case errors.Is(err, client.ErrNotWritten):
		s.Outcome = history.NotWritten
		l.t.Errorf("retries should have hidden this: %v", err)
	default:
		l.t.Errorf("retries should have hidden this: %v", err)
	}
}

func (l *load) read(ctx context.Context) {
	for r, err := range l.consumer.Records(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				l.t.Errorf("the consumer was told of %v", err)
			}
			return
		}
		if len(r.Value) != 8 {
			l.t.Errorf("read %q at %d of partition %d: nobody sent that", r.Value, r.Offset, r.Partition)
			return
		}
		l.mu.Lock()
		l.mu.reads = append(l.mu.reads, history.Read{Partition: r.Partition, Offset: r.Offset, Number: binary.BigEndian.Uint64(r.Value)})
		l.mu.Unlock()
		l.seen.Add(1)
	}
}

// goesOn returns once n more records were acked and n more were read.
func (l *load) goesOn(n int64) {
	l.t.Helper()
	acks, seen := l.acks.Load()+n, l.seen.Load()+n
	testcluster.Eventually(l.t, func() error {
		if l.acks.Load() < acks || l.seen.Load() < seen {
			return fmt.Errorf("%d of %d acked, %d of %d read", l.acks.Load(), acks, l.seen.Load(), seen)
		}
		return nil
	})
}

// check ends the load, and judges what the running consumer saw.
func (l *load) check() history.Report {
	l.t.Helper()
	l.stopSending()
	l.sending.Wait()
	if err := l.producer.Close(bounded(l.t)); err != nil {
		l.t.Error(err)
	}
	testcluster.Eventually(l.t, func() error {
		if l.seen.Load() < l.acks.Load() {
			return fmt.Errorf("%d acked, %d read", l.acks.Load(), l.seen.Load())
		}
		return nil
	})
	l.stopReading()
	l.reading.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	report := history.Check(l.mu.sends, l.mu.reads)
	if !report.OK() || report.Acked == 0 || report.Read != report.Acked {
		l.t.Errorf("%v; first: %s", report, report.First)
	}
	return report
}

func TestRestartUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	create(t, cl, "t", 3, client.TopicConfig{})
	l := startLoad(t, cl, "t", 3)
	epochs := map[int32]int32{}
	for range 3 {
		l.goesOn(500)
		for _, p := range partitions(t, cl, "t") {
			if before, ok := epochs[p.Partition]; ok && p.LeaderEpoch <= before {
				t.Errorf("partition %d is led under epoch %d after a restart, before under %d", p.Partition, p.LeaderEpoch, before)
			}
			epochs[p.Partition] = p.LeaderEpoch
		}
		c.Broker(1).Restart()
	}
	l.goesOn(500)
	l.check()
	// A reader that comes later finds the same.
	got := read(t, cl, client.Earliest, tp("t", 0), tp("t", 1), tp("t", 2))
	if int64(len(got)) != l.acks.Load() {
		t.Errorf("%d records on disk, %d were acked", len(got), l.acks.Load())
	}
}

func TestAddPartitionsUnderLoad(t *testing.T) {
	t.Parallel()
	cl := start(t).Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	l := startLoad(t, cl, "t", 1)
	l.goesOn(100)
	topic, err := cl.Admin().UpdateTopic(bounded(t), "t", client.TopicChange{Partitions: 3})
	if err != nil || topic.Partitions != 3 {
		t.Fatalf("UpdateTopic: %+v, %v", topic, err)
	}
	l.grow(1)
	l.grow(2)
	l.goesOn(500)
	l.check()
	read := map[int32]bool{}
	for _, r := range l.mu.reads {
		read[r.Partition] = true
	}
	if len(read) != 3 {
		t.Errorf("the running consumer read partitions %v", read)
	}
	if _, err := cl.Admin().UpdateTopic(bounded(t), "t", client.TopicChange{Partitions: 2}); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("fewer partitions: %v", err)
	}
}

// What a broker took before it was told to stop is answered; what is still on its way is refused, or meets the end of the stream. Nothing
// is appended without an answer, and what was acked is on disk.
func TestGracefulStopAnswersWhatIsInFlight(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	s := rawProduce(t, c.Broker(1).Address())
	const n = 300
	for i := range uint64(n) {
		s.send(i, topic.ID, 0, batch(t, fmt.Sprint(i)))
	}
	var acked []string
	for i := range uint64(n) {
		resp, err := s.stream.Recv()
		if err != nil {
			wantStatus(t, err, codes.Unavailable, "SHUTTING_DOWN")
			break
		}
		if i == 0 {
			c.Broker(1).Tell() // the first answer proves that the stream is being worked on
		}
		if resp.GetCorrelationId() != i {
			t.Fatalf("answer %d is for request %d", i, resp.GetCorrelationId())
		}
		switch e := resp.GetError(); {
		case e == nil && resp.GetBaseOffset() != int64(len(acked)):
			t.Errorf("request %d was acked at %d, want %d", i, resp.GetBaseOffset(), len(acked))
		case e == nil:
			acked = append(acked, fmt.Sprint(i))
		case e.GetReason() != "SHUTTING_DOWN" || !e.GetRetriable():
			t.Errorf("request %d: %v", i, e)
		}
	}
	if err := c.Broker(1).Wait(); err != nil {
		t.Fatal(err)
	}
	c.Broker(1).Start()
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); len(acked) == 0 || !slices.Equal(got, acked) {
		t.Errorf("%d records were acked, and %d are on disk:\n%q\n%q", len(acked), len(got), acked, got)
	}
}
