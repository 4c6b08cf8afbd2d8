package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

// pollInterval is the pause between two looks at what others do.
const pollInterval = 500 * time.Millisecond

// Config says what to recover, and from what.
type Config struct {
	Etcd *metadata.Client
	// Brokers are the addresses of all brokers, host:port.
	Brokers []string
	// Connect opens a connection to one of them; the function ends it.
	Connect func(address string) (grpc.ClientConnInterface, func() error, error)
	// Without are brokers whose data directories do not count, there or not.
	Without []int32
	// Snapshots are cluster snapshots beside those that brokers have.
	Snapshots [][]byte
	// Discard is the id of a cluster in etcd that may be replaced; ClusterID then is that of the brokers, which have ended and cannot be asked.
	Discard, ClusterID string
	// AskTimeout bounds one broker's answer.
	AskTimeout time.Duration
	Clock      clock.Clock
}

// Situation is what a look has found. Nothing was changed.
type Situation struct {
	// Etcd is what the etcd has.
	Etcd *metadata.Snapshot
	// Registered are the brokers that it knows as alive. After it was restored, those that were alive when the backup was taken are among
	// them until their leases have expired.
	Registered []*metadata.Broker
	// Brokers are in the order of the configuration.
	Brokers []Broker
	// Plan is nil when nobody has said what it has; Without and those that are silent are not in it.
	Plan *metadata.Recovery
	// Leading are brokers that use this etcd and lead partitions in it of which those that refuse it have logs: what they have acknowledged
	// since it went back cannot be put together with what was acknowledged before.
	Leading []int32
}

// ClusterID is the cluster that the brokers belong to, empty when none has said.
func (s *Situation) ClusterID() string {
	for _, b := range s.Brokers {
		if b.Standing == Refuses {
			return b.Inventory.Position.ClusterID
		}
	}
	return ""
}

// Count is how many brokers stand so.
func (s *Situation) Count(standing Standing) (n int) {
	for _, b := range s.Brokers {
		if b.Standing == standing {
			n++
		}
	}
	return n
}

// Known is the furthest that any broker has seen the metadata.
func (s *Situation) Known() (at metadata.Position) {
	for _, b := range s.Brokers {
		if b.Standing == Refuses && at.Before(b.Inventory.Position) {
			at = b.Inventory.Position
		}
	}
	return at
}

// Look asks etcd and the brokers, and plans. The error is of etcd, or of inputs that do not belong together (metadata.PlanRecovery); the
// Situation is there with the latter, without a plan.
func Look(ctx context.Context, c Config) (*Situation, error) {
	s := &Situation{Brokers: make([]Broker, len(c.Brokers))}
	var err error
	if s.Etcd, err = c.Etcd.ReadPrefix(ctx); err != nil {
		return nil, err
	}
	if s.Registered, err = c.Etcd.Registered(ctx); err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i, address := range c.Brokers {
		g.Go(func() error {
			s.Brokers[i] = c.ask(ctx, address)
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, b := range s.Brokers {
		if b.Standing == Refuses && b.Cluster != s.Etcd.Cluster {
			return nil, &ClusterNameError{Broker: b.ID, Address: b.Address, Cluster: b.Cluster, Asked: s.Etcd.Cluster}
		}
	}
	in := metadata.RecoveryInput{Etcd: c.source(s.Etcd), Now: c.Clock.Now(), Snapshots: slices.Clone(c.Snapshots)}
	for _, b := range s.Brokers {
		if b.Standing == Refuses && !slices.Contains(c.Without, b.ID) {
			in.Inventories = append(in.Inventories, b.Inventory)
			if len(b.Snapshot) > 0 {
				in.Snapshots = append(in.Snapshots, b.Snapshot)
			}
		}
	}
	if len(in.Inventories) == 0 {
		return s, nil
	}
	if err := s.findLeading(c.Without); err != nil {
		return s, err
	}
	s.Plan, err = metadata.PlanRecovery(in)
	return s, err
}

func (c Config) ask(ctx context.Context, address string) Broker {
	conn, end, err := c.Connect(address)
	if err != nil {
		return Broker{Address: address, Standing: Silent, ID: -1, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	b := ask(ctx, address, conn)
	b.Err = errors.Join(b.Err, end())
	return b
}

// source is what a plan may take from etcd: nothing of a cluster that is to be replaced, and nothing of a mark alone.
func (c Config) source(etcd *metadata.Snapshot) *metadata.Snapshot {
	if etcd.Position.ClusterID == c.Discard || etcd.Recovering && len(etcd.Keys) <= 1 {
		return nil
	}
	return etcd
}

// findLeading looks for brokers that went on with an etcd that others refuse.
func (s *Situation) findLeading(without []int32) error {
	contents, err := s.Etcd.Contents()
	if err != nil && len(contents.Partitions) == 0 {
		return err
	}
	refusing, elsewhere := map[int32]bool{}, map[metadata.PartitionRef]bool{}
	for _, b := range s.Brokers {
		refusing[b.ID] = b.Standing == Refuses
		for _, l := range b.Inventory.Logs {
			elsewhere[metadata.PartitionRef{TopicID: l.TopicID, Partition: l.Partition}] = true
		}
	}
	for _, b := range s.Registered {
		leads := slices.ContainsFunc(contents.Partitions, func(p *metadata.Partition) bool {
			return p.Leader == b.ID && p.LeaderBrokerEpoch == b.Epoch && elsewhere[p.PartitionRef]
		})
		if leads && !refusing[b.ID] && !slices.Contains(without, b.ID) && s.Count(Uses) > 0 {
			s.Leading = append(s.Leading, b.ID)
		}
	}
	return nil
}

// Begin stops the brokers that use this etcd, and returns what there is once nobody is registered any more and everybody that answered
// before, or is registered, refuses; with Discard, once all do, or wait is over. s is the last look. waiting is told what is waited for, whenever it changes. After wait, the error
// says who did not stop.
func Begin(ctx context.Context, c Config, s *Situation, wait time.Duration, waiting func(string)) (*Situation, error) {
	id := s.ClusterID()
	if id == "" {
		id = c.ClusterID
	}
	if err := c.Etcd.BeginRecovery(ctx, id, c.Discard); err != nil {
		return nil, err
	}
	deadline, told := c.Clock.Now().Add(wait), ""
	for {
		now, err := Look(ctx, c)
		if err != nil {
			return nil, err
		}
		var left []string
		for _, b := range now.Registered {
			left = append(left, fmt.Sprintf("broker %d to leave (its lease expires when it is gone)", b.ID))
		}
		for i, b := range now.Brokers {
			if b.Standing == Uses || b.Standing == Silent && (s.Brokers[i].Standing != Silent || c.Discard != "") {
				left = append(left, fmt.Sprintf("%s to stop and to say what it has", b.Address))
			}
		}
		if len(left) == 0 {
			return now, nil
		}
		if text := fmt.Sprint(left); text != told {
			told = text
			for _, l := range left {
				waiting(l)
			}
		}
		switch over := c.Clock.Now().After(deadline); {
		case over && c.Discard != "" && len(now.Registered) == 0:
			return now, nil
		case over:
			return nil, fmt.Errorf("%w: after %v still waiting for %s", ErrNotStopped, wait, left[0])
		}
		if err := clock.Sleep(ctx, c.Clock, pollInterval); err != nil {
			return nil, err
		}
	}
}

// ClusterNameError is a broker that looks for its cluster under another name: what would be written, it would not find.
type ClusterNameError struct {
	Broker         int32
	Address        string
	Cluster, Asked string
}

func (e *ClusterNameError) Error() string {
	return fmt.Sprintf("broker %d at %s belongs to the cluster %q, not to %q", e.Broker, e.Address, e.Cluster, e.Asked)
}

// ErrNotStopped says that brokers go on although the recovery has begun.
var ErrNotStopped = errors.New("not all brokers have stopped")
