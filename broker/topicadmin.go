package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// topicAdmin implements server.TopicAdmin over etcd, and waits until its changes are visible here.
type topicAdmin struct {
	client   *metadata.Client
	cache    *metadata.Cache
	view     *view
	defaults *runnelv1.TopicConfig
	// partitions is the number of a topic that does not say, most the largest allowed.
	partitions, most int32
}

func (a *topicAdmin) checkPartitions(n int32) error {
	if n <= a.most {
		return nil
	}
	return &metadata.ArgumentError{
		Field: "partitions", Value: strconv.Itoa(int(n)), Limit: fmt.Sprintf("at most %d", a.most), Err: metadata.ErrInvalidArgument,
	}
}

// room is the number of live brokers that may be given replicas. A topic with more replicas than that would wait for somebody to undrain one.
func room(s *metadata.State) int {
	n := 0
	for _, b := range s.Brokers() {
		st, known := s.Storage(b.ID)
		if !known || st.State == metadata.StorageActive || st.State != metadata.StorageDraining && st.StorageID != b.StorageID {
			n++ // (whoever comes back with another disk is active again in a moment)
		}
	}
	return n
}

// away are the brokers that would have room and are down.
func away(s *metadata.State) []int32 {
	var out []int32
	for _, st := range s.Storages() {
		if _, here := s.Broker(st.BrokerID); !here && st.State == metadata.StorageActive {
			out = append(out, st.BrokerID)
		}
	}
	return out
}

// checkDefaultReplicas refuses to make do with less than usual because brokers are down: nobody would notice what the topic lacks. Who wants that says
// so with a number.
func checkDefaultReplicas(asked int32, s *metadata.State) error {
	live, down := room(s), away(s)
	usual := metadata.DefaultReplicas(0, live+len(down))
	if asked != 0 || live == 0 || int(usual) <= live {
		return nil
	}
	return &metadata.ArgumentError{
		Field: "replicas", Value: fmt.Sprintf("0, the default, which is %d", usual), Err: metadata.ErrInvalidArgument,
		Limit: fmt.Sprintf("a number up to %d as long as brokers are down: %v", live, down),
	}
}

// CreateTopic returns once every partition has a leader.
func (a *topicAdmin) CreateTopic(ctx context.Context, r *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	now := a.cache.Snapshot()
	live := room(now)
	t := metadata.NewTopic{
		Name: r.GetName(), Partitions: r.GetPartitions(), Replicas: metadata.DefaultReplicas(r.GetReplicas(), live),
		Config: r.GetConfig(), Defaults: a.defaults, Owner: r.GetOwner(),
	}
	if t.Partitions == 0 {
		t.Partitions = a.partitions
	}
	tooMany := a.checkPartitions(t.Partitions)
	rest := t
	if tooMany != nil {
		rest.Partitions = a.most // one limit is enough
	}
	if err := errors.Join(tooMany, metadata.ValidateNewTopic(rest, live)); err != nil {
		return nil, err
	}
	if _, exists := now.Topic(t.Name); !exists {
		if err := checkDefaultReplicas(r.GetReplicas(), now); err != nil {
			return nil, err
		}
	}
	if r.GetValidateOnly() {
		return a.wouldCreate(t)
	}
	made, err := a.client.CreateTopic(ctx, t)
	if err != nil {
		return nil, err
	}
	s, err := a.view.wait(ctx, func(s *metadata.State) bool {
		_, ok := s.TopicByID(made.ID)
		return s.Usable(made.ID) || s.Revision() > made.Revision && !ok
	})
	if err != nil {
		return nil, fmt.Errorf("topic %s was created and is not usable yet: %w", t.Name, err)
	}
	if now, ok := s.TopicByID(made.ID); ok {
		made = now
	}
	return a.message(made), nil
}

func (a *topicAdmin) wouldCreate(t metadata.NewTopic) (*runnelv1.Topic, error) {
	if have, ok := a.cache.Snapshot().Topic(t.Name); ok {
		return nil, &metadata.TopicError{Name: have.Name, ID: have.ID, State: have.State, Err: metadata.ErrTopicExists}
	}
	return a.message(&metadata.Topic{
		Name: t.Name, Partitions: t.Partitions, ReadyPartitions: t.Partitions, Replicas: t.Replicas, Config: t.Config, Owner: t.Owner,
	}), nil
}

// UpdateTopic returns once the change is visible here, and added partitions can be used.
func (a *topicAdmin) UpdateTopic(ctx context.Context, r *runnelv1.UpdateTopicRequest) (*runnelv1.Topic, []*runnelv1.ConfigChange, error) {
	if err := a.checkPartitions(r.GetPartitions()); err != nil {
		return nil, nil, err
	}
	if id := r.GetTopicId(); len(id) > 0 && topicID(id).IsZero() { // zero means "whichever" further down, and nobody asked for that
		return nil, nil, &metadata.TopicError{Name: r.GetName(), Err: metadata.ErrTopicNotFound}
	}
	u := metadata.TopicUpdate{
		Name: r.GetName(), ID: topicID(r.GetTopicId()), Generation: r.GetGeneration(), Partitions: r.GetPartitions(),
		Replicas: r.GetReplicas(), LiveBrokers: len(a.cache.Snapshot().Brokers()),
		Config: r.GetConfig(), Reset: r.GetResetFields(), Defaults: a.defaults, Force: r.GetForce(),
	}
	if r.GetValidateOnly() {
		have, ok := a.cache.Snapshot().Topic(u.Name)
		if !ok {
			return nil, nil, &metadata.TopicError{Name: u.Name, Err: metadata.ErrTopicNotFound}
		}
		t, changes, err := u.Apply(have)
		if err != nil {
			return nil, nil, err
		}
		return a.message(t), changes, nil
	}
	t, changes, err := a.client.UpdateTopic(ctx, u)
	if err != nil {
		return nil, nil, err
	}
	grown := slices.ContainsFunc(changes, func(c *runnelv1.ConfigChange) bool { return c.GetField() == "partitions" })
	_, err = a.view.wait(ctx, func(s *metadata.State) bool { return inEffect(s, t, grown) })
	if err != nil {
		return nil, nil, fmt.Errorf("topic %s was changed and the change is not in effect yet: %w", t.Name, err)
	}
	return a.message(t), changes, nil
}

// inEffect reports whether a State shows a change of a topic. A partition that happens to be without a leader delays added partitions only:
// settings apply to it all the same.
func inEffect(s *metadata.State, t *metadata.Topic, grown bool) bool {
	now, ok := s.TopicByID(t.ID)
	switch {
	case s.Revision() < t.Revision:
		return false
	case !ok || now.State == metadata.TopicDeleting || !grown:
		return true
	}
	return now.ReadyPartitions >= t.Partitions && s.Usable(t.ID)
}

// DeleteTopic returns once the topic is gone and its name is free.
func (a *topicAdmin) DeleteTopic(ctx context.Context, r *runnelv1.DeleteTopicRequest) error {
	t, err := a.client.DeleteTopic(ctx, r.GetName(), topicID(r.GetTopicId()), "", r.GetForce())
	if err != nil {
		return err
	}
	patience, cancel := answerable(ctx)
	defer cancel()
	_, err = a.view.wait(patience, func(s *metadata.State) bool {
		_, ok := s.TopicByID(t.ID)
		return !ok && s.Revision() >= t.Revision
	})
	if err != nil {
		return fmt.Errorf("topic %s is marked as deleted and its data is not removed yet: %w", t.Name, err)
	}
	return nil
}

// answerable returns a context that ends a little before ctx does: in time to say what was done, and what is waited for.
func answerable(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(deadline.Sub(clock.System().Now())/10, time.Second)))
}

func (a *topicAdmin) message(t *metadata.Topic) *runnelv1.Topic {
	m := &runnelv1.Topic{
		Name: t.Name, TopicId: t.ID[:], Partitions: t.Partitions, Replicas: t.Replicas, Generation: t.Generation, Owner: t.Owner,
		Config: topicconfig.Effective(t.Config, a.defaults, t.Replicas), State: topicState(t.State),
	}
	if !t.Created.IsZero() {
		m.Created = timestamppb.New(t.Created)
	}
	return m
}

// topicID reads an id whose length was checked; anything but 16 bytes is none.
func topicID(b []byte) (id ids.TopicID) {
	if len(b) == len(id) {
		copy(id[:], b)
	}
	return id
}

// producerIDs implements server.ProducerIDs. Epochs are 0: a client that has to start over takes a new id.
type producerIDs struct{ *metadata.ProducerIDs }

func (p producerIDs) NextProducerID(ctx context.Context) (int64, int16, error) {
	id, err := p.Next(ctx)
	return id, 0, err
}
