package metadata

import "context"

// CreateTopic writes a topic, unless one has its name.
func (b Builder) CreateTopic(t *Topic) (Tx, error) {
	key := b.keys.topic(t.Name)
	value, err := encodeTopic(t)
	tx := write("create_topic", key, value, absent(key))
	tx.Recognise = ByTopicID
	return tx, err
}

// putTopic writes a topic if its key still has the revision that t was read at, and the guards hold.
func (b Builder) putTopic(op string, t *Topic, guards ...Compare) (Tx, error) {
	key := b.keys.topic(t.Name)
	value, err := encodeTopic(t)
	return write(op, key, value, append([]Compare{unchanged(key, t.Revision)}, guards...)...), err
}

// ChangeTopic writes a topic as TopicUpdate.Apply returned it, if its key is unchanged.
func (b Builder) ChangeTopic(t *Topic) (Tx, error) { return b.putTopic("update_topic", t) }

// FinishTopic records that the keys of all partitions of a topic exist.
func (b Builder) FinishTopic(t Tenure, topic *Topic) (Tx, error) {
	next := *topic
	next.State, next.ReadyPartitions = TopicActive, topic.Partitions
	return b.putTopic("finish_topic", &next, b.guard(t)...)
}

// FinishTopic records that the keys of all partitions of a topic exist: it becomes active, or has finished growing. It does
// nothing when the topic or the tenure had changed. The cache shows the result from revision on.
func (c *Client) FinishTopic(ctx context.Context, t Tenure, topic *Topic) (revision int64, err error) {
	tx, err := c.build.FinishTopic(t, topic)
	return c.commitShown(ctx, tx, err)
}

// ForgetTopic removes the key of a topic that is being deleted, if none of its partitions is left. An attempt that took effect and one that
// was overtaken both leave no such topic, so there is nothing to recognise.
func (b Builder) ForgetTopic(t Tenure, topic *Topic) (Tx, error) {
	if topic.State != TopicDeleting {
		return Tx{}, invalid("topic state", topic.State, "deleting")
	}
	key := b.keys.topic(topic.Name)
	none := Compare{Key: b.keys.prefix + "partitions/" + topic.ID.String() + "/", Prefix: true}
	return Tx{
		Op: "forget_topic", Compares: b.guard(t, unchanged(key, topic.Revision), none), Then: []Put{{Key: key, Delete: true}},
	}, nil
}

// ForgetTopic removes the key of a topic that is being deleted, if none of its partitions is left. It does nothing when something had
// changed. The cache shows the result from revision on.
func (c *Client) ForgetTopic(ctx context.Context, t Tenure, topic *Topic) (revision int64, err error) {
	tx, err := c.build.ForgetTopic(t, topic)
	return c.commitShown(ctx, tx, err)
}
