package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

// view is the metadata as the server shows it: what host has brought into effect, so that clients are never sent to a leader which does
// not know yet that it leads. host is its only writer; unchanged topics and brokers keep their pointers from one snapshot to the next.
type view struct {
	defaults *runnelv1.TopicConfig
	current  atomic.Pointer[published]
}

type published struct {
	snapshot *server.Snapshot
	state    *metadata.State // nil before the first
	changed  chan struct{}   // the snapshot's Changed
}

func newView(defaults *runnelv1.TopicConfig) *view {
	v := &view{defaults: defaults}
	changed := make(chan struct{})
	v.current.Store(&published{snapshot: &server.Snapshot{ControllerID: -1, Changed: changed}, changed: changed})
	return v
}

// Snapshot implements server.Metadata.
func (v *view) Snapshot() *server.Snapshot { return v.current.Load().snapshot }

// publish shows a state that is in effect. Readers of the snapshot before are told once they can load the new one.
func (v *view) publish(s *metadata.State) {
	old := v.current.Load()
	if old.state == s {
		return
	}
	changed := make(chan struct{})
	next := &published{state: s, changed: changed, snapshot: v.build(old, s)}
	next.snapshot.Changed = changed
	v.current.Store(next)
	close(old.changed)
}

// wait returns once cond holds.
func (v *view) wait(ctx context.Context, cond func(*metadata.State) bool) (*metadata.State, error) {
	for {
		now := v.current.Load()
		if now.state != nil && cond(now.state) {
			return now.state, nil
		}
		select {
		case <-now.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (v *view) build(old *published, s *metadata.State) *server.Snapshot {
	out := &server.Snapshot{Revision: s.Revision(), ControllerID: -1}
	if c := s.Cluster(); c != nil {
		out.ClusterID = c.ID
	}
	if c := s.Controller(); c != nil {
		out.ControllerID = c.BrokerID
	}
	if old.state == nil {
		out.Brokers = brokers(s, nil)
		out.Topics, out.TopicsByID = map[string]*server.Topic{}, map[ids.TopicID]*server.Topic{}
		for _, t := range s.Topics() {
			v.put(out, s, t)
		}
		return out
	}
	delta := s.Since(old.state)
	out.Brokers = old.snapshot.Brokers
	if delta.Brokers {
		out.Brokers = brokers(s, old.snapshot.Brokers)
	}
	out.Topics, out.TopicsByID = old.snapshot.Topics, old.snapshot.TopicsByID
	if len(delta.Topics) == 0 {
		return out
	}
	out.Topics, out.TopicsByID = maps.Clone(out.Topics), maps.Clone(out.TopicsByID)
	for _, id := range delta.Topics {
		if before, ok := out.TopicsByID[id]; ok {
			delete(out.TopicsByID, id)
			if out.Topics[before.Name] == before {
				delete(out.Topics, before.Name)
			}
		}
	}
	for _, id := range delta.Topics {
		if t, ok := s.TopicByID(id); ok {
			v.put(out, s, t)
		}
	}
	return out
}

func (v *view) put(out *server.Snapshot, s *metadata.State, t *metadata.Topic) {
	topic := v.topic(s, t)
	out.TopicsByID[t.ID] = topic
	if _, taken := out.Topics[t.Name]; !taken || t.State != metadata.TopicDeleting {
		out.Topics[t.Name] = topic
	}
}

func (v *view) topic(s *metadata.State, t *metadata.Topic) *server.Topic {
	out := &server.Topic{
		Name: t.Name, ID: t.ID, Replicas: t.Replicas, Generation: t.Generation, Owner: t.Owner, Created: t.Created,
		Config: topicconfig.Effective(t.Config, v.defaults, t.Replicas),
		State:  topicState(t.State),
	}
	for _, p := range s.Partitions(t.ID) {
		if p == nil || p.Partition >= t.ReadyPartitions {
			break
		}
		isr := make([]int32, 0, len(p.ISR))
		for _, m := range p.ISR {
			isr = append(isr, m.BrokerID)
		}
		out.Partitions = append(out.Partitions, server.Partition{
			LeaderID: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: isr,
		})
	}
	return out
}

func topicState(s metadata.TopicState) runnelv1.TopicState {
	switch s {
	case metadata.TopicCreating:
		return runnelv1.TopicState_TOPIC_STATE_CREATING
	case metadata.TopicActive:
		return runnelv1.TopicState_TOPIC_STATE_ACTIVE
	case metadata.TopicDeleting:
		return runnelv1.TopicState_TOPIC_STATE_DELETING
	default:
		return runnelv1.TopicState_TOPIC_STATE_UNSPECIFIED
	}
}

// brokers keeps the pointer of a registration that is in before.
func brokers(s *metadata.State, before []*server.Broker) []*server.Broker {
	out := make([]*server.Broker, 0, len(s.Brokers()))
	for _, b := range s.Brokers() {
		i := slices.IndexFunc(before, func(x *server.Broker) bool { return x.ID == b.ID && x.Epoch == b.Epoch })
		if i >= 0 {
			out = append(out, before[i])
			continue
		}
		out = append(out, &server.Broker{
			ID: b.ID, Epoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageID: b.StorageID.String(), Listeners: b.Listeners,
		})
	}
	return out
}

// Lookup implements server.Partitions.
func (h *host) Lookup(id ids.TopicID, number int32) (*partition.Partition, error) {
	if p, ok := h.lookup(metadata.PartitionRef{TopicID: id, Partition: number}); ok {
		return p, nil
	}
	if st, ok := h.store.State(id, number); ok && st.Err != nil {
		return nil, st.Err
	}
	s := h.cache.Snapshot()
	t, ok := s.TopicByID(id)
	if !ok {
		return nil, &partition.UnknownError{TopicID: id, Partition: number}
	}
	p, ok := s.Partition(id, number)
	if !ok || number >= t.ReadyPartitions {
		return nil, &partition.UnknownError{TopicID: id, Partition: number, Partitions: t.ReadyPartitions}
	}
	return nil, &partition.NotLeaderError{LeaderID: p.Leader, LeaderEpoch: p.LeaderEpoch}
}

// Recover implements server.Partitions: storage brings back what is intact, then the cluster is told to count on that log.
func (h *host) Recover(ctx context.Context, id ids.TopicID, number int32, accept bool) (server.RecoverPlan, error) {
	plan, err := h.store.Recover(ctx, id, number, accept)
	if errors.Is(err, storage.ErrNotDamaged) && accept {
		// An earlier call may have recovered the log and failed to tell the cluster.
		return server.RecoverPlan{Applied: true, Detail: "the partition's log is not damaged"}, h.acceptLog(ctx, id, number)
	}
	if err != nil {
		return server.RecoverPlan{}, err
	}
	out := server.RecoverPlan{KeptEnd: plan.KeepTo, LostEnd: max(plan.LostTo, plan.KeepTo), Applied: plan.Applied}
	if plan.Damage != nil {
		out.Detail = plan.Damage.Error()
	}
	if !plan.Applied {
		return out, nil
	}
	out.Detail += "; the damaged files are in " + plan.SetAside
	return out, h.acceptLog(ctx, id, number)
}

// acceptLog makes this broker's log the partition's only in-sync replica, if the cluster counts on no other.
func (h *host) acceptLog(ctx context.Context, id ids.TopicID, number int32) error {
	l, ok := h.store.Log(id, number)
	if !ok {
		return storage.ErrLogNotFound
	}
	p, ok := h.cache.Snapshot().Partition(id, number)
	if !ok {
		return &partition.UnknownError{TopicID: id, Partition: number}
	}
	if m, member := p.Member(h.reg.BrokerID()); member && m.LogID == l.LogID() && m.StorageID == h.store.StorageID() {
		return nil
	}
	r, err := h.client.AcceptReplica(ctx, h.reg, p, l.LogID())
	if err == nil && r.Count() == 0 {
		err = fmt.Errorf("partition %d changed meanwhile: %w", number, metadata.ErrConflict)
	}
	return err
}

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

// CreateTopic returns once every partition has a leader.
func (a *topicAdmin) CreateTopic(ctx context.Context, r *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	live := len(a.cache.Snapshot().Brokers())
	t := metadata.NewTopic{
		Name: r.GetName(), Partitions: r.GetPartitions(), Replicas: metadata.DefaultReplicas(r.GetReplicas(), live),
		Config: r.GetConfig(), Defaults: a.defaults, Owner: r.GetOwner(),
	}
	if t.Partitions == 0 {
		t.Partitions = a.partitions
	}
	if err := errors.Join(a.checkPartitions(t.Partitions), metadata.ValidateNewTopic(t, live)); err != nil {
		return nil, err
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

// UpdateTopic returns once the change is visible here.
func (a *topicAdmin) UpdateTopic(ctx context.Context, r *runnelv1.UpdateTopicRequest) (*runnelv1.Topic, []*runnelv1.ConfigChange, error) {
	if err := a.checkPartitions(r.GetPartitions()); err != nil {
		return nil, nil, err
	}
	u := metadata.TopicUpdate{
		Name: r.GetName(), ID: topicID(r.GetTopicId()), Generation: r.GetGeneration(), Partitions: r.GetPartitions(),
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
	_, err = a.view.wait(ctx, func(s *metadata.State) bool {
		now, ok := s.TopicByID(t.ID)
		return s.Revision() >= t.Revision && (!ok || now.ReadyPartitions >= t.Partitions && s.Usable(t.ID) || now.State == metadata.TopicDeleting)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("topic %s was changed and the change is not in effect yet: %w", t.Name, err)
	}
	return a.message(t), changes, nil
}

// DeleteTopic returns once the topic is gone and its name is free.
func (a *topicAdmin) DeleteTopic(ctx context.Context, r *runnelv1.DeleteTopicRequest) error {
	t, err := a.client.DeleteTopic(ctx, r.GetName(), topicID(r.GetTopicId()), "", r.GetForce())
	if err != nil {
		return err
	}
	_, err = a.view.wait(ctx, func(s *metadata.State) bool {
		_, ok := s.TopicByID(t.ID)
		return !ok && s.Revision() >= t.Revision
	})
	if err != nil {
		return fmt.Errorf("topic %s is marked as deleted and its data is not removed yet: %w", t.Name, err)
	}
	return nil
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
