package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	metadatav1 "runnel.dev/runnel/api/runnel/metadata/v1"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

const (
	// MaxReplicas is the largest number of replicas of a partition.
	MaxReplicas = 32
	// MaxOwnerLength bounds a topic's owner, bytes.
	MaxOwnerLength = 1024
	// rebases is how often a change without a generation is applied again on top of a concurrent one.
	rebases = 16
)

// NewTopic is what CreateTopic needs.
type NewTopic struct {
	Name string
	// Partitions is 1 to MaxPartitions.
	Partitions int32
	// Replicas is 1 to the number of live brokers; 0: min(3, live brokers).
	Replicas int32
	// Config holds the settings that differ from the default; nil: none.
	Config *runnelv1.TopicConfig
	// Defaults are the cluster-wide settings that Config is validated together with; nil: the built-in ones.
	Defaults *runnelv1.TopicConfig
	Owner    string
}

// ValidateNewTopic checks everything about a new topic but the existence of its name. It returns all faults (errors.Join): wrapping
// ErrInvalidName, ErrInvalidArgument, and *topicconfig.InvalidError. With Replicas 0, liveBrokers decides the number. Without live
// brokers, as while the only one registers anew, what would be right otherwise is ErrNotRegistered, which is retriable.
func ValidateNewTopic(t NewTopic, liveBrokers int) error {
	errs := []error{ValidateTopicName(t.Name)}
	if t.Partitions < 1 || t.Partitions > MaxPartitions {
		errs = append(errs, invalid("partitions", t.Partitions, fmt.Sprintf("1 to %d", MaxPartitions)))
	}
	if most := min(max(liveBrokers, 1), MaxReplicas); t.Replicas < 0 || int(t.Replicas) > most {
		errs = append(errs, invalid("replicas", t.Replicas, fmt.Sprintf("1 to %d (live brokers), or 0 for the default", most)))
	}
	errs = append(errs,
		validateOwner(t.Owner),
		topicconfig.Validate(t.Config, t.Defaults, DefaultReplicas(t.Replicas, liveBrokers)))
	if err := errors.Join(errs...); err != nil || liveBrokers > 0 {
		return err
	}
	return fmt.Errorf("%w: no broker is there to hold topic %s", ErrNotRegistered, t.Name)
}

func validateOwner(owner string) error {
	if len(owner) > MaxOwnerLength || !utf8.ValidString(owner) {
		return invalid("owner", fmt.Sprintf("%d bytes", len(owner)), fmt.Sprintf("at most %d bytes of UTF-8", MaxOwnerLength))
	}
	return nil
}

// DefaultReplicas returns asked, or min(3, liveBrokers) and at least 1 when asked is 0.
func DefaultReplicas(asked int32, liveBrokers int) int32 {
	if asked > 0 {
		return asked
	}
	return int32(max(min(liveBrokers, 3), 1))
}

// CreateTopic writes a new topic in state creating; the controller then creates its partitions and makes it active. The answer says
// what was written; State.Usable tells when it can be used. A topic of that name, in whatever state, is ErrTopicExists.
func (c *Client) CreateTopic(ctx context.Context, t NewTopic) (*Topic, error) {
	brokers, err := c.countBrokers(ctx)
	if err != nil {
		return nil, err
	}
	if err := ValidateNewTopic(t, brokers); err != nil {
		return nil, err
	}
	topic := &Topic{
		Name: t.Name, ID: ids.NewTopicID(), State: TopicCreating, Partitions: t.Partitions,
		Replicas: DefaultReplicas(t.Replicas, brokers), Config: &runnelv1.TopicConfig{}, Generation: 1, Owner: t.Owner,
		Created: c.clk.Now(),
	}
	if t.Config != nil {
		topic.Config = proto.CloneOf(t.Config)
	}
	tx, err := c.build.CreateTopic(topic)
	if err != nil {
		return nil, err
	}
	out, err := c.commit(ctx, tx)
	if err != nil {
		return nil, err
	}
	if !out.Applied {
		existing, err := readTopic(out.Answer.Reads[0], t.Name)
		if err != nil {
			return nil, err
		}
		e := &TopicError{Name: t.Name, Err: ErrTopicExists}
		if existing != nil {
			e.ID, e.State, e.Owner = existing.ID, existing.State, ""
		}
		return nil, e
	}
	topic.Revision = out.Revision
	return topic, nil
}

// countBrokers returns the number of live registrations.
func (c *Client) countBrokers(ctx context.Context) (int, error) {
	resp, err := c.get(ctx, "count_brokers", c.keys.prefix+"brokers/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(resp.Count), nil
}

// readTopic decodes what a read of a topic's key showed; nil when it is absent.
func readTopic(kv KV, name string) (*Topic, error) {
	if kv.Revision == 0 {
		return nil, nil //nolint:nilnil // absence is an answer, not an error
	}
	return decodeTopic(&mvccpb.KeyValue{Key: []byte(kv.Key), Value: []byte(kv.Value), ModRevision: kv.Revision}, name)
}

// sameTopic reports whether two values are states of one topic. The controller may have moved a topic on that was just created.
func sameTopic(a, b string) bool {
	var x, y metadatav1.Topic
	return proto.Unmarshal([]byte(a), &x) == nil && proto.Unmarshal([]byte(b), &y) == nil && bytes.Equal(x.GetTopicId(), y.GetTopicId())
}

// GetTopic is a linearizable read of one topic. A zero id accepts whichever topic has the name.
func (c *Client) GetTopic(ctx context.Context, name string, id ids.TopicID) (*Topic, error) {
	if err := ValidateTopicName(name); err != nil {
		return nil, err
	}
	resp, err := c.get(ctx, "get_topic", c.keys.topic(name))
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, &TopicError{Name: name, ID: id, Err: ErrTopicNotFound}
	}
	t, err := decodeTopic(resp.Kvs[0], name)
	if err != nil {
		return nil, err
	}
	if !id.IsZero() && t.ID != id {
		return nil, &TopicError{Name: name, ID: id, Err: ErrTopicNotFound}
	}
	return t, nil
}

// TopicUpdate is a change of a topic.
type TopicUpdate struct {
	Name string
	// ID is the topic that is meant; zero: whichever has the name.
	ID ids.TopicID
	// Generation that the change is based on; 0: whatever it is now.
	Generation int64
	// Partitions is the new number, at least the current one; 0: unchanged.
	Partitions int32
	// Replicas is the new number per partition; 0: unchanged. The controller then reassigns the partitions.
	Replicas int32
	// LiveBrokers bounds Replicas. UpdateTopic counts them itself.
	LiveBrokers int
	// Config holds the settings to set, Reset the names of settings to take back.
	Config *runnelv1.TopicConfig
	Reset  []string
	// Defaults as in NewTopic.
	Defaults *runnelv1.TopicConfig
	// Force changes a topic that has an owner. By and owner being equal needs no force.
	Force bool
	By    string
}

// Apply returns the topic after a change, and what differs in effect, without writing anything. The error is as of UpdateTopic.
func (u TopicUpdate) Apply(t *Topic) (*Topic, []*runnelv1.ConfigChange, error) {
	if t.State == TopicDeleting {
		return nil, nil, &TopicError{Name: t.Name, ID: t.ID, State: t.State, Err: ErrTopicNotFound}
	}
	if u.Generation != 0 && u.Generation != t.Generation {
		return nil, nil, &ConflictError{Name: t.Name, Want: u.Generation, Got: t.Generation}
	}
	if t.Owner != "" && t.Owner != u.By && !u.Force {
		return nil, nil, &TopicError{Name: t.Name, ID: t.ID, Owner: t.Owner, Err: ErrOwned}
	}
	var errs []error
	next := *t
	if u.Partitions != 0 {
		if u.Partitions < t.Partitions || u.Partitions > MaxPartitions {
			errs = append(errs, invalid("partitions", u.Partitions, fmt.Sprintf("%d (now) to %d: they can only grow", t.Partitions, MaxPartitions)))
		}
		next.Partitions = u.Partitions
	}
	if u.Replicas != 0 {
		if most := min(max(u.LiveBrokers, 1), MaxReplicas); u.Replicas < 1 || int(u.Replicas) > most && u.Replicas > t.Replicas {
			errs = append(errs, invalid("replicas", u.Replicas, fmt.Sprintf("1 to %d (live brokers)", most)))
		}
		next.Replicas = u.Replicas
	}
	config, err := topicconfig.Apply(t.Config, u.Config, u.Reset)
	if err != nil {
		return nil, nil, errors.Join(append(errs, err)...)
	}
	if err := errors.Join(append(errs, topicconfig.Validate(config, u.Defaults, next.Replicas))...); err != nil {
		return nil, nil, err
	}
	next.Config = config
	changes := topicconfig.Diff(topicconfig.Effective(t.Config, u.Defaults, t.Replicas), topicconfig.Effective(config, u.Defaults, next.Replicas))
	if next.Partitions != t.Partitions {
		changes = append(changes, &runnelv1.ConfigChange{Field: "partitions", Before: itoa(t.Partitions), After: itoa(next.Partitions)})
	}
	if next.Replicas != t.Replicas {
		changes = append(changes, &runnelv1.ConfigChange{Field: "replicas", Before: itoa(t.Replicas), After: itoa(next.Replicas)})
	}
	if !proto.Equal(config, t.Config) || next.Partitions != t.Partitions || next.Replicas != t.Replicas {
		next.Generation++
	}
	return &next, changes, nil
}

// UpdateTopic changes settings, the number of replicas, and adds partitions, in one compare-and-set. Without a Generation it is applied on top of whatever
// concurrent changes came first. A change that changes nothing writes nothing. Errors: ErrTopicNotFound, *ConflictError, ErrOwned,
// ErrInvalidArgument, *topicconfig.InvalidError, ErrUnavailable.
func (c *Client) UpdateTopic(ctx context.Context, u TopicUpdate) (*Topic, []*runnelv1.ConfigChange, error) {
	var changes []*runnelv1.ConfigChange
	if u.Replicas != 0 {
		brokers, err := c.countBrokers(ctx)
		if err != nil {
			return nil, nil, err
		}
		u.LiveBrokers = brokers
	}
	t, err := c.changeTopic(ctx, "update_topic", u.Name, u.ID, func(t *Topic) (*Topic, error) {
		next, diff, err := u.Apply(t)
		changes = diff
		if err != nil || next.Generation == t.Generation {
			return nil, err
		}
		return next, nil
	})
	return t, changes, err
}

// DeleteTopic marks a topic as being deleted. It stays in that state until every replica has removed its directory, and then goes
// away; the name is taken until then. id is required. Deleting a topic that is being deleted succeeds. Errors: ErrTopicNotFound, ErrOwned
// (unless forced, or by is the owner), ErrInvalidArgument, ErrUnavailable.
func (c *Client) DeleteTopic(ctx context.Context, name string, id ids.TopicID, by string, force bool) (*Topic, error) {
	if id.IsZero() {
		return nil, invalid("topic id", id, "the ID of the topic to delete")
	}
	return c.changeTopic(ctx, "delete_topic", name, id, func(t *Topic) (*Topic, error) {
		if t.Owner != "" && t.Owner != by && !force {
			return nil, &TopicError{Name: t.Name, ID: t.ID, Owner: t.Owner, Err: ErrOwned}
		}
		if t.State == TopicDeleting {
			return nil, nil //nolint:nilnil // nothing to change
		}
		next := *t
		next.State = TopicDeleting
		next.Generation++
		return &next, nil
	})
}

// changeTopic reads a topic, lets change compute the next one, and writes it if the topic is still the same, else starts over.
func (c *Client) changeTopic(ctx context.Context, op, name string, id ids.TopicID, change func(*Topic) (*Topic, error)) (*Topic, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	for range rebases {
		t, err := c.GetTopic(ctx, name, id)
		if err != nil {
			return nil, err
		}
		next, err := change(t)
		if err != nil || next == nil {
			return t, err
		}
		out, err := c.putTopic(ctx, op, next)
		if err != nil {
			return nil, err
		}
		if out.Applied {
			next.Revision = out.Revision
			return next, nil
		}
	}
	return nil, fmt.Errorf("%s: topic %q: %w: it keeps changing", op, name, ErrConflict)
}

// putTopic writes a topic if its key still has the revision that t was read at, and the guards hold.
func (c *Client) putTopic(ctx context.Context, op string, t *Topic, guards ...Compare) (Outcome, error) {
	tx, err := c.build.putTopic(op, t, guards...)
	if err != nil {
		return Outcome{}, err
	}
	return c.commit(ctx, tx)
}
