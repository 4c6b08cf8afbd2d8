package fakebroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// Option configures a [Cluster].
type Option func(*config)

type config struct {
	brokers   int
	clusterID string
	clock     clock.Clock
}

// Brokers is how many brokers there are, with the ids 1, 2, … Default 1.
func Brokers(n int) Option { return func(c *config) { c.brokers = n } }

// ClusterID sets the cluster's id. Default "fake".
func ClusterID(id string) Option { return func(c *config) { c.clusterID = id } }

// Cluster is some brokers with one state. Safe for concurrent use.
type Cluster struct {
	cfg config

	mu struct {
		sync.Mutex
		brokers    map[int32]*broker
		topics     map[string]*topic
		revision   int64
		nextID     int64         // of producers
		changed    chan struct{} // closed with each change
		onCall     func(Call) Action
		autoCreate bool
		validator  record.Validator
		states     map[int32]runnelv1.BrokerState // absent: active
		held       bool                           // reassignments stay under way
		throttle   int64
	}
}

// broker is one gRPC server.
type broker struct {
	runnelv1.UnimplementedProducerServer
	runnelv1.UnimplementedConsumerServer
	runnelv1.UnimplementedMetadataServer
	runnelv1.UnimplementedAdminServer

	c        *Cluster
	id       int32
	address  string
	codec    *codec.Codec
	listener *bufconn.Listener // nil while stopped
	server   *grpc.Server
	done     chan struct{}
	lapsed   bool // it runs, and metadata does not list it
	gate     gate
}

// Start makes a cluster and starts its brokers; Close stops them.
func Start(opts ...Option) *Cluster {
	c := &Cluster{cfg: config{brokers: 1, clusterID: "fake", clock: clock.System()}}
	for _, o := range opts {
		o(&c.cfg)
	}
	c.mu.brokers, c.mu.topics = make(map[int32]*broker), make(map[string]*topic)
	c.mu.changed, c.mu.revision, c.mu.nextID = make(chan struct{}), 1, 1000
	c.mu.states = make(map[int32]runnelv1.BrokerState)
	for i := range c.cfg.brokers {
		id := int32(i + 1)
		c.mu.brokers[id] = &broker{c: c, id: id, address: fmt.Sprintf("broker-%d:7650", id), codec: codec.New()}
		c.StartBroker(id)
	}
	return c
}

// Close stops all brokers and waits for their goroutines.
func (c *Cluster) Close() {
	for _, id := range c.brokerIDs() {
		c.StopBroker(id)
	}
}

func (c *Cluster) brokerIDs() []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.mu.brokers))
}

// URL names all brokers as seeds for client.Open.
func (c *Cluster) URL() string {
	brokers := c.brokerIDs()
	seeds := make([]string, 0, len(brokers))
	for _, id := range brokers {
		seeds = append(seeds, fmt.Sprintf("broker-%d:7650", id))
	}
	return "runnel://" + strings.Join(seeds, ",")
}

// Dial connects to a broker by its address; it is a dialer for the client.
func (c *Cluster) Dial(ctx context.Context, address string) (net.Conn, error) {
	c.mu.Lock()
	var l *bufconn.Listener
	for _, b := range c.mu.brokers {
		if b.address == address {
			l = b.listener
		}
	}
	c.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "fake", Err: fmt.Errorf("%s: connection refused", address)}
	}
	return l.DialContext(ctx)
}

// StopBroker ends a broker's connections and refuses new ones. Its partitions keep their leader until MoveLeader.
func (c *Cluster) StopBroker(id int32) {
	c.mu.Lock()
	b := c.mu.brokers[id]
	server, done := b.server, b.done
	b.listener, b.server = nil, nil
	c.changeLocked()
	c.mu.Unlock()
	b.gate.set(false)
	if server != nil {
		server.Stop()
		<-done
	}
}

// StartBroker starts a stopped broker.
func (c *Cluster) StartBroker(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.mu.brokers[id]
	if b.server != nil {
		return
	}
	l := bufconn.Listen(256 << 10)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(b.codec), grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20),
		grpc.InitialWindowSize(16<<20), grpc.InitialConnWindowSize(32<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	runnelv1.RegisterProducerServer(srv, b)
	runnelv1.RegisterConsumerServer(srv, b)
	runnelv1.RegisterMetadataServer(srv, b)
	runnelv1.RegisterAdminServer(srv, b)
	done := make(chan struct{})
	b.listener, b.server, b.done = l, srv, done
	go func() {
		defer close(done)
		_ = srv.Serve(gatedListener{l, &b.gate}) // ends with the listener
	}()
	c.changeLocked()
}

// LapseLease takes a broker that runs out of the list of brokers, as when its lease has lapsed; it goes on leading what it leads.
// RenewLease brings it back.
func (c *Cluster) LapseLease(id int32) { c.setLapsed(id, true) }

// RenewLease ends what LapseLease began.
func (c *Cluster) RenewLease(id int32) { c.setLapsed(id, false) }

func (c *Cluster) setLapsed(id int32, lapsed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.brokers[id].lapsed = lapsed
	c.changeLocked()
}

// changeLocked wakes everybody who waits for something.
func (c *Cluster) changeLocked() {
	c.mu.revision++
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// CreateTopic creates a topic whose leaders are spread over the brokers; an existing one is replaced by a namesake with a new id.
func (c *Cluster) CreateTopic(name string, partitions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.createLocked(name, partitions, 1, nil, "")
}

// CreateReplicated is CreateTopic with so many replicas of each partition, all in sync. They share one log: a fake replica is never behind.
func (c *Cluster) CreateReplicated(name string, partitions, replicas int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.createLocked(name, partitions, replicas, nil, "")
}

func (c *Cluster) createLocked(name string, partitions, replicas int, cfg *runnelv1.TopicConfig, owner string) *topic {
	t := &topic{name: name, id: ids.NewTopicID(), generation: 1, config: withDefaults(cfg), owner: owner, replicas: replicas}
	c.mu.topics[name] = t
	c.growLocked(t, partitions)
	return t
}

func (c *Cluster) growLocked(t *topic, partitions int) {
	brokers := slices.Sorted(maps.Keys(c.mu.brokers))
	for i := len(t.partitions); i < partitions; i++ {
		p := &partition{topic: t, index: int32(i), leader: brokers[i%len(brokers)], epoch: 1, producers: make(map[int64]*producer)}
		for k := range min(t.replicas, len(brokers)) {
			p.replicas = append(p.replicas, brokers[(i+k)%len(brokers)])
		}
		p.isr = slices.Clone(p.replicas)
		t.partitions = append(t.partitions, p)
	}
	c.changeLocked()
}

// AddPartitions lets a topic have so many partitions.
func (c *Cluster) AddPartitions(name string, partitions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.growLocked(c.mu.topics[name], partitions)
}

// Configure changes a topic's settings.
func (c *Cluster) Configure(name string, change func(*runnelv1.TopicConfig)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.mu.topics[name].config)
	c.changeLocked()
}

// DeleteTopic deletes a topic.
func (c *Cluster) DeleteTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.topics, name)
	c.changeLocked()
}

// MoveLeader makes another broker a partition's leader, in a new epoch; -1: nobody.
func (c *Cluster) MoveLeader(name string, partition, to int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.mu.topics[name].partitions[partition]
	p.lead(to)
	c.changeLocked()
}

// lead begins a new epoch. A broker that was no replica replaces the one that led.
func (p *partition) lead(to int32) {
	if to >= 0 && !slices.Contains(p.replicas, to) {
		i := max(slices.Index(p.replicas, p.leader), 0)
		p.replicas = slices.Clone(p.replicas)
		p.replicas[i] = to
		p.isr = slices.Clone(p.replicas)
	}
	p.leader = to
	p.epoch++
}

// SetISR says which replicas of a partition are in sync.
func (c *Cluster) SetISR(name string, partition int32, isr ...int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.topics[name].partitions[partition].isr = isr
	c.changeLocked()
}

// LoseTail cuts what a partition holds at offset end, as when a leader dies before others have what it appended. Whole batches are lost.
func (c *Cluster) LoseTail(name string, partition int32, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.topics[name].partitions[partition].cut(end)
	c.changeLocked()
}

// Leader is a partition's leader, -1 for none.
func (c *Cluster) Leader(name string, partition int32) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.topics[name].partitions[partition].leader
}

// DeleteRecords moves a partition's start; -1: to its end.
func (c *Cluster) DeleteRecords(name string, partition int32, before int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.mu.topics[name].partitions[partition].trim(before)
	c.changeLocked()
	if err != nil {
		return err
	}
	return nil
}

// ForgetProducers makes a partition forget all producers, as after their state has expired.
func (c *Cluster) ForgetProducers(name string, partition int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.mu.topics[name].partitions[partition].producers)
}

// AutoCreate lets clients that ask for it create topics by watching them.
func (c *Cluster) AutoCreate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.autoCreate = true
}

// Records returns what a partition holds.
func (c *Cluster) Records(name string, partition int32) []Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.mu.topics[name].partitions[partition]
	var out []Record
	p.each(func(r Record) bool {
		if r.Offset >= p.start {
			out = append(out, r)
		}
		return true
	})
	return out
}

// Append writes values to a partition, as one batch, without any client.
func (c *Cluster) Append(name string, partition int32, values ...string) {
	b := record.NewBuilder(record.CodecNone)
	for _, v := range values {
		b.Append(c.cfg.clock.Now().UnixMilli(), nil, []byte(v), nil)
	}
	batch, err := b.Build(nil)
	if err != nil {
		panic(err) // values that no batch can hold
	}
	c.AppendBatch(name, partition, batch)
}

// AppendBatch writes one record batch to a partition, as a producer would.
func (c *Cluster) AppendBatch(name string, partition int32, batch []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, _, err := c.mu.topics[name].partitions[partition].append(&c.mu.validator, batch, -1); err != nil {
		panic(err)
	}
	c.changeLocked()
}

// Damage flips bytes of the batch that holds an offset: f may change it in place.
func (c *Cluster) Damage(name string, partition int32, offset int64, f func(batch []byte)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.mu.topics[name].partitions[partition].batches {
		if h, err := record.ParseHeader(b); err == nil && h.BaseOffset <= offset && offset < h.NextOffset() {
			f(b)
		}
	}
}

// direct reports whether a client goes to leaders itself; for others, a broker acts on behalf of the leader.
func direct(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, "runnel-route")
	return len(v) == 1 && v[0] == "direct"
}

// find returns the partition if this broker leads it or, unless the client is direct, can reach the one that does.
func (b *broker) findLocked(direct bool, id []byte, n, epoch int32) (*partition, *Error) {
	for _, t := range b.c.mu.topics {
		if !bytes.Equal(t.id[:], id) {
			continue
		}
		if n < 0 || int(n) >= len(t.partitions) {
			return nil, unknownPartition(t.name, n, len(t.partitions))
		}
		p := t.partitions[n]
		if leader := b.c.mu.brokers[p.leader]; !direct && p.leader != b.id && leader != nil {
			if leader.server == nil {
				return nil, refuse(unavailable, "BROKER_UNREACHABLE", true, "broker %d cannot be reached", p.leader)
			}
		} else if p.leader != b.id {
			e := refuse(failedPrecondition, "NOT_LEADER", true, "broker %d leads in epoch %d", p.leader, p.epoch)
			if leader := b.c.mu.brokers[p.leader]; leader != nil {
				e.hint = &runnelv1.LeaderHint{BrokerId: p.leader, LeaderEpoch: p.epoch, Address: leader.address}
			}
			return nil, e
		}
		if epoch > p.epoch {
			return nil, refuse(unavailable, "UNKNOWN_LEADER_EPOCH", true, "epoch %d, known is %d", epoch, p.epoch)
		}
		return p, nil
	}
	return nil, refuse(notFound, "UNKNOWN_TOPIC_ID", true, "topic id %x", id)
}

func unknownPartition(name string, n int32, have int) *Error {
	return refuse(notFound, "UNKNOWN_PARTITION", false, "partition %d of %s, which has %d", n, name, have)
}

func isA(err, target error) bool { return errors.Is(err, target) }
