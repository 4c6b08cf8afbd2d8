package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A client that has asked for more topics than a watch can name goes on: it watches all topics.
func TestMoreTopicsThanAWatchCanName(t *testing.T) {
	for _, create := range []bool{false, true} {
		t.Run(fmt.Sprintf("autoCreate=%t", create), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				opts := []Option{TopicWait(2 * time.Second)}
				if create {
					opts = append(opts, AutoCreateTopics())
				}
				cl := start(t, 1, opts...)
				cl.CreateTopic("t", 1)
				p := cl.producer(t)
				if err := p.ProduceSync(ctx, rec("t", "before")); err != nil {
					t.Fatal(err)
				}
				cl.c.meta.watch(numbers("never-", 0, 2*maxNamed+1)...)
				cl.CreateTopic("new", 1)
				for _, topic := range []string{"t", "new"} {
					if err := p.ProduceSync(ctx, rec(topic, "after")); err != nil {
						t.Fatal(err)
					}
				}
				if create {
					cl.AutoCreate()
					if err := p.ProduceSync(ctx, rec("on-demand", "v")); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				err := p.ProduceSync(ctx, rec("missing", "v"))
				if !create && (!errors.Is(err, ErrUnknownTopic) || time.Since(began) < 2*time.Second) || create && err != nil {
					t.Fatalf("%v after %v", err, time.Since(began))
				}
				cs := cl.consumer(t, Topics("t"))
				sleep(time.Second)
				cl.DeleteTopic("t")
				seen := false
				for _, err := range cs.Records(ctx) {
					if seen = errors.Is(err, ErrUnknownTopic); seen {
						break
					}
				}
				if err := p.ProduceSync(ctx, rec("t", "deleted")); !create && !errors.Is(err, ErrUnknownTopic) || !seen {
					t.Fatalf("%v, seen by the consumer: %t", err, seen)
				}
				go func() { sleep(time.Second); cl.CreateTopic("t", 1) }()
				if err := cl.producer(t).ProduceSync(ctx, rec("t", "again")); err != nil {
					t.Fatal(err)
				}
				cl.stop()
			})
		})
	}
}
