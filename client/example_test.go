package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/client/fakebroker"
)

// Examples run against a cluster in memory; with real brokers, leave the Dialer option out.
func open(topics ...string) (*fakebroker.Cluster, *client.Client) {
	cluster := fakebroker.Start()
	for _, t := range topics {
		cluster.CreateTopic(t, 1)
	}
	c, err := client.Open(context.Background(), cluster.URL(), client.Dialer(cluster.Dial))
	if err != nil {
		panic(err)
	}
	return cluster, c
}

func Example() {
	cluster, c := open("greetings")
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	p, err := c.NewProducer()
	if err != nil {
		panic(err)
	}
	if err := p.ProduceSync(ctx,
		&client.Record{Topic: "greetings", Key: []byte("en"), Value: []byte("hello")},
		&client.Record{Topic: "greetings", Key: []byte("fr"), Value: []byte("bonjour")},
	); err != nil {
		panic(err)
	}

	cs, err := c.NewConsumer(client.Topics("greetings"), client.UntilEnd())
	if err != nil {
		panic(err)
	}
	for r, err := range cs.Records(ctx) {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d %s=%s\n", r.Offset, r.Key, r.Value)
	}
	if err := c.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// 0 en=hello
	// 1 fr=bonjour
}

func ExampleProducer_Produce() {
	cluster, c := open("orders")
	defer cluster.Close()
	ctx := context.Background()

	p, err := c.NewProducer(client.Compress(client.CompressionZstd))
	if err != nil {
		panic(err)
	}
	for _, v := range []string{"first", "second"} {
		// done runs in order, on a goroutine of the client: it must not block.
		p.Produce(ctx, &client.Record{Topic: "orders", Value: []byte(v)}, func(r *client.Record, err error) {
			switch {
			case err == nil:
				fmt.Printf("%s is at offset %d\n", r.Value, r.Offset)
			case errors.Is(err, client.ErrNotWritten):
				fmt.Printf("%s may be sent again: %v\n", r.Value, err)
			case errors.Is(err, client.ErrOutcomeUnknown):
				fmt.Printf("%s may be in the log: %v\n", r.Value, err)
			}
		})
	}
	if err := p.Flush(ctx); err != nil { // nil: everything is acknowledged
		panic(err)
	}
	if err := c.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// first is at offset 0
	// second is at offset 1
}

func ExampleConsumer_Records_errors() {
	cluster, c := open("events")
	defer cluster.Close()
	cluster.Append("events", 0, "a", "b")
	cluster.Append("events", 0, "c")
	if err := cluster.DeleteRecords("events", 0, 2); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	cs, err := c.NewConsumer(client.Topics("events"), client.From(client.At(0)))
	if err != nil {
		panic(err)
	}
	for r, err := range cs.Records(ctx) {
		var lost *client.OffsetOutOfRangeError
		switch {
		case errors.As(err, &lost):
			fmt.Printf("%d records are gone\n", lost.Earliest-lost.Asked)
			if err := cs.Seek(client.Earliest, lost.TopicPartition); err != nil {
				panic(err)
			}
		case err != nil:
			panic(err)
		default:
			fmt.Printf("%s\n", r.Value)
			cancel() // ends the iteration
		}
	}
	if err := c.Close(context.Background()); err != nil {
		panic(err)
	}
	// Output:
	// 2 records are gone
	// c
}

func ExampleConsumer_Poll() {
	cluster, c := open("events")
	defer cluster.Close()
	cluster.Append("events", 0, "a", "b")
	ctx := context.Background()

	cs, err := c.NewConsumer(client.Topics("events"))
	if err != nil {
		panic(err)
	}
	b, err := cs.Poll(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%v up to %d of %d\n", b.TopicPartition, b.NextOffset, b.HighWatermark)
	for r, err := range b.Records() {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", r.Value) // r.Clone() keeps it
	}
	if err := c.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// events/0 up to 2 of 2
	// a
	// b
}

func ExampleAdmin() {
	cluster, c := open()
	defer cluster.Close()
	ctx := context.Background()

	admin := c.Admin()
	day := 24 * time.Hour
	topic, err := admin.CreateTopic(ctx, client.TopicSpec{Name: "audit", Partitions: 3, Config: client.TopicConfig{Retention: &day}})
	if err != nil {
		panic(err)
	}
	// A change that names the generation fails with ErrConflict when somebody else was faster.
	grown, err := admin.UpdateTopic(ctx, "audit", client.TopicChange{Generation: topic.Generation, Partitions: 6})
	if err != nil {
		panic(err)
	}
	fmt.Println(topic.Partitions, *topic.Config.Retention, "->", grown.Partitions)
	_, err = admin.UpdateTopic(ctx, "audit", client.TopicChange{Generation: topic.Generation, Partitions: 9})
	fmt.Println("conflict:", errors.Is(err, client.ErrConflict))
	fmt.Println("deleted:", admin.DeleteTopic(ctx, "audit", topic.ID) == nil)
	if err := c.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// 3 24h0m0s -> 6
	// conflict: true
	// deleted: true
}
