package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func (s *story) oneBrokerDies(ctx context.Context) error {
	if _, err := s.ok(ctx, "", "topic", "create", "orders", "-p", "3", "--replicas", "3"); err != nil {
		return err
	}
	if err := s.inSync(ctx, "orders", brokers); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "1000", "produce", "orders"); err != nil {
		return err
	}
	victim, err := s.leader(ctx, "orders", 0)
	if err != nil {
		return err
	}
	if err := s.kill(ctx, victim); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.ok(ctx, "1000", "produce", "orders"); err != nil {
		return err
	}
	say("a produce that began with the kill took %v", time.Since(began).Round(time.Millisecond))
	if err := s.consumes(ctx, "orders", 2000); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "dev", "start", victim); err != nil {
		return err
	}
	return s.inSync(ctx, "orders", brokers)
}

func (s *story) kill(ctx context.Context, names ...string) error {
	fmt.Println("$ kill -9", strings.Join(names, " "))
	var errs []error
	for _, name := range names {
		errs = append(errs, s.cluster.Kill(ctx, name))
	}
	return errors.Join(errs...)
}

func (s *story) etcdStops(ctx context.Context) error {
	if _, err := s.ok(ctx, "", "dev", "stop", "etcd"); err != nil {
		return err
	}
	// Longer than leases live, were there somebody to let them expire.
	for range 3 {
		if _, err := s.ok(ctx, "1000", "produce", "orders"); err != nil {
			return err
		}
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	if err := s.consumes(ctx, "orders", 5000); err != nil {
		return err
	}
	if err := s.refused(ctx, "METADATA", "", "topic", "create", "late", "-p", "1", "--timeout", "10s"); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "dev", "start", "etcd"); err != nil {
		return err
	}
	if err := await(ctx, "a topic", func(ctx context.Context) error {
		_, err := s.ok(ctx, "", "topic", "create", "late", "-p", "3", "--replicas", "3", "--timeout", "20s")
		return err
	}); err != nil {
		return err
	}
	return errors.Join(s.inSync(ctx, "late", brokers), s.inSync(ctx, "orders", brokers))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// twoBrokersDie leaves one that holds more than was acknowledged.
func (s *story) twoBrokersDie(ctx context.Context) error {
	if _, err := s.ok(ctx, "", "topic", "create", "one", "-p", "1", "--replicas", "3", "--config", "min-in-sync-replicas=2"); err != nil {
		return err
	}
	if err := s.inSync(ctx, "one", brokers); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "100", "produce", "one"); err != nil {
		return err
	}
	last, err := s.leader(ctx, "one", 0)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(s.cluster.Brokers(), func(name string) bool { return name == last })
	if err := errors.Join(s.cluster.Pause(others[0]), s.cluster.Pause(others[1])); err != nil {
		return err
	}
	// The leader writes these down, and nobody else has them.
	if _, err := s.ok(ctx, "5", "produce", "one", "--acks", "leader"); err != nil {
		return err
	}
	if err := s.kill(ctx, others...); err != nil {
		return err
	}
	if err := s.refuses(ctx, last); err != nil {
		return err
	}
	if err := s.refused(ctx, "NOT_ENOUGH_REPLICAS", "1", "produce", "one", "--delivery-timeout", "3s"); err != nil {
		return err
	}
	if err := s.restarted(ctx, last); err != nil {
		return err
	}
	return s.resumes(ctx, last, others)
}

// refuses waits until a produce to the last broker is refused as one that may be repeated.
func (s *story) refuses(ctx context.Context, last string) error {
	conn, err := s.dial(last)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return await(ctx, "a produce that is refused", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		parts, err := s.client.Admin().DescribePartitions(ctx, "one")
		if err != nil {
			return err
		}
		if !strings.Contains(parts[0].Detail, "produce is refused") {
			return fmt.Errorf("partition describe says %q", parts[0].Detail)
		}
		r, err := runnelv1.NewProducerClient(conn).Publish(ctx, &runnelv1.PublishRequest{
			Topic: "one", Records: []*runnelv1.PublishRecord{{ValueKind: &runnelv1.PublishRecord_Text{Text: "refused"}}},
		})
		if err != nil {
			return err
		}
		e := r.GetResults()[0].GetError()
		if e.GetReason() != "NOT_ENOUGH_REPLICAS" || !e.GetRetriable() {
			return fmt.Errorf("publish answers %v, want NOT_ENOUGH_REPLICAS, retriable", e)
		}
		say("publish answers %s, retriable: %s", e.GetReason(), e.GetMessage())
		return nil
	})
}

// restarted starts the last broker anew: it leads again when the leases of the dead have expired, and does not know whether what only it
// has was acknowledged.
func (s *story) restarted(ctx context.Context, last string) error {
	if err := s.kill(ctx, last); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "dev", "start", last); err != nil {
		return err
	}
	conn, err := s.dial(last)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	topics, err := s.client.Admin().Topics(ctx, "one")
	if err != nil {
		return err
	}
	r, err := runnelv1.NewConsumerClient(conn).ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{{
		TopicId: topics[0].ID[:], At: &runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}},
	}}})
	if err != nil {
		return err
	}
	e := r.GetResults()[0].GetError()
	if e == nil || !e.GetRetriable() {
		return fmt.Errorf("latest is answered with %v, want an error that is retriable", r.GetResults()[0])
	}
	say("latest answers %s, retriable: %s", e.GetReason(), e.GetMessage())
	return errors.Join(s.consumes(ctx, "one", 100, "-n", "100"), s.print(ctx, "partition", "describe", "one"))
}

// resumes brings one back: a produce that waits goes through by itself.
func (s *story) resumes(ctx context.Context, last string, others []string) error {
	waiting := make(chan error, 1)
	go func() {
		_, err := s.ok(ctx, "10", "produce", "one")
		waiting <- err
	}()
	if _, err := s.ok(ctx, "", "dev", "start", others[0]); err != nil {
		return errors.Join(err, <-waiting)
	}
	if err := <-waiting; err != nil {
		return err
	}
	if err := s.consumes(ctx, "one", 115); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "dev", "start", others[1]); err != nil {
		return err
	}
	return errors.Join(s.inSync(ctx, "one", brokers), s.inSync(ctx, "orders", brokers))
}

func (s *story) dial(name string) (*grpc.ClientConn, error) {
	for _, p := range s.cluster.Processes {
		if p.Name == name {
			return grpc.NewClient(p.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		}
	}
	return nil, fmt.Errorf("no broker %s", name)
}

func (s *story) diskIsLost(ctx context.Context) error {
	victim, err := s.leader(ctx, "orders", 0)
	if err != nil {
		return err
	}
	if err := s.kill(ctx, victim); err != nil {
		return err
	}
	fmt.Println("$ rm -r", s.cluster.DataDir(victim))
	if err := os.RemoveAll(s.cluster.DataDir(victim)); err != nil {
		return err
	}
	if err := await(ctx, "another leader", func(ctx context.Context) error {
		now, err := s.leader(ctx, "orders", 0)
		if err == nil && now == victim {
			err = fmt.Errorf("broker %s leads", now)
		}
		return err
	}); err != nil {
		return err
	}
	if err := s.print(ctx, "partition", "describe", "orders"); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.ok(ctx, "", "dev", "start", victim); err != nil {
		return err
	}
	if err := s.print(ctx, "partition", "describe", "orders"); err != nil {
		return err
	}
	if err := s.inSync(ctx, "orders", brokers); err != nil {
		return err
	}
	say("broker %s has everything again after %v", victim, time.Since(began).Round(time.Millisecond))
	if err := s.print(ctx, "partition", "describe", "orders"); err != nil {
		return err
	}
	// What it has now is counted on: another goes.
	others := slices.DeleteFunc(s.cluster.Brokers(), func(name string) bool { return name == victim })
	if err := s.kill(ctx, others[0]); err != nil {
		return err
	}
	if err := s.consumes(ctx, "orders", 5000); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "dev", "start", others[0]); err != nil {
		return err
	}
	return s.inSync(ctx, "orders", brokers)
}
