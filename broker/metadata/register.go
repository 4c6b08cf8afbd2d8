package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	etcdserverpb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/internal/clock"
)

// Registration is this process's live entry under its broker id. It is safe for concurrent use.
//
// A lapsed lease alone ends nothing: when nobody took the id over, Run registers anew, under a new broker epoch, and the controller
// then elects anew for every partition this broker led. A take-over ends the process: Lost is closed and Run returns ErrSuperseded.
type Registration struct {
	client *Client
	info   BrokerInfo
	bootID BootID
	lost   chan struct{}

	mu struct {
		sync.Mutex
		epoch int64
		lease int64
		// taken is the broker epoch that took over, 0 while nobody did.
		taken int64
	}
}

// Register announces the broker. A live registration of another storage under the same id is refused (*BrokerConflictError); one of
// the same storage is an earlier process on the same data directory, whose lock this process holds now, and is taken over at once.
// Run has to be called soon: nothing else keeps the lease (Config.LeaseTTL) alive.
func (c *Client) Register(ctx context.Context, info BrokerInfo) (*Registration, error) {
	if info.ID < 0 {
		return nil, invalid("broker id", info.ID, "0 or more")
	}
	if info.StorageID.IsZero() {
		return nil, invalid("storage id", info.StorageID, "a UUID")
	}
	r := &Registration{client: c, info: info, bootID: BootID(uuid.New()), lost: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	return r, r.register(ctx)
}

// BrokerID is the broker's id.
func (r *Registration) BrokerID() int32 { return r.info.ID }

// Epoch is the current broker epoch. It changes when Run had to register anew; the Cache then shows the new registration.
func (r *Registration) Epoch() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.epoch
}

// LeaseID is the lease of the current registration.
func (r *Registration) LeaseID() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.lease
}

// BootID tells this process from every other one. It is never shown to clients.
func (r *Registration) BootID() BootID { return r.bootID }

// Ref names the current registration.
func (r *Registration) Ref() RegRef {
	return RegRef{BrokerID: r.info.ID, StorageID: r.info.StorageID, Epoch: r.Epoch()}
}

// Info is what was registered.
func (r *Registration) Info() BrokerInfo { return r.info }

// Lost is closed once another process has taken the broker id over. This process must stop then.
func (r *Registration) Lost() <-chan struct{} { return r.lost }

// Err is nil until Lost is closed, then a *SupersededError.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.taken == 0 {
		return nil
	}
	return &SupersededError{BrokerID: r.info.ID, Epoch: r.mu.epoch, New: r.mu.taken}
}

// register writes the key under a new lease, at the first time and after a lapse.
//
// Crash windows: a lease without a key expires by itself; so does a key whose writer died before it learned of it.
func (r *Registration) register(ctx context.Context) error {
	c := r.client
	for {
		cluster, err := r.cluster(ctx)
		if err != nil {
			return err
		}
		live, err := r.look(ctx)
		if err != nil {
			return err
		}
		if err := r.ownStorage(ctx); err != nil {
			return err
		}
		if live != nil && live.BootID == r.bootID {
			// An attempt of this process that stayed unanswered. It is visible, so it is settled.
			r.adopt(live.Epoch, live.leaseID)
			return nil
		}
		if live != nil && r.Epoch() > 0 {
			return r.supersede(live.Epoch)
		}
		if live != nil && live.StorageID != r.info.StorageID {
			return &BrokerConflictError{BrokerID: r.info.ID, Live: live.StorageID, Own: r.info.StorageID, Epoch: live.Epoch}
		}
		lease, err := c.grant(ctx)
		if err != nil {
			return err
		}
		var revision int64
		if live != nil {
			revision = live.Epoch
		}
		tx, err := c.build.Register(revision, r.info, r.bootID, lease, c.build.ClusterUnchanged(cluster))
		if err != nil {
			return err
		}
		out, err := c.commit(ctx, tx)
		if err != nil {
			return err
		}
		if out.Applied {
			r.adopt(out.Revision, lease)
			return nil
		}
	}
}

// cluster returns the revision of the cluster's record, which a registration compares: nobody registers while a recovery replaces the
// metadata, nor with what it remembers from before one.
func (r *Registration) cluster(ctx context.Context) (int64, error) {
	c := r.client
	resp, err := c.get(ctx, "register_look", c.keys.cluster())
	if err != nil {
		return 0, err
	}
	known := c.Position()
	if len(resp.Kvs) == 0 {
		return 0, &OlderEtcdError{Want: known, Got: Position{EtcdClusterID: resp.Header.ClusterId, Revision: resp.Header.Revision}}
	}
	cluster, err := decodeCluster(resp.Kvs[0])
	switch {
	case err != nil:
		return 0, err
	case cluster.ID != known.ClusterID:
		return 0, &ForeignEtcdError{What: "cluster id", Want: known.ClusterID, Got: cluster.ID}
	case cluster.Recovery != nil:
		return 0, &UnavailableError{Op: "register", Err: ErrRecovering}
	case cluster.Era != known.Era:
		return 0, &ForeignEtcdError{What: "era", Want: fmt.Sprint(known.Era), Got: fmt.Sprint(cluster.Era)}
	}
	return cluster.Revision, nil
}

// ownStorage refuses a storage that another broker id has: a volume in the wrong place. Its replicas are none of this id's, so they would be
// removed. One whose broker was decommissioned holds nothing that anybody counts on.
func (r *Registration) ownStorage(ctx context.Context) error {
	if r.Epoch() > 0 {
		return nil
	}
	c := r.client
	resp, err := c.get(ctx, "register_look", c.keys.storages(), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		key := c.keys.parse(string(kv.Key))
		if key.kind != kindStorage || key.id == r.info.ID {
			continue
		}
		s, err := decodeStorage(kv, key.id)
		if err != nil {
			return err
		}
		if s.StorageID == r.info.StorageID && s.State != StorageDecommissioned {
			return &ForeignStorageError{BrokerID: r.info.ID, Owner: key.id, StorageID: s.StorageID}
		}
	}
	return nil
}

// look returns the live registration of the id, or nil. When an earlier epoch of this process is older than the one that the
// registry calls eligible, somebody took over and has lapsed since: that is a loss as well.
func (r *Registration) look(ctx context.Context) (*Broker, error) {
	c := r.client
	resp, err := c.get(ctx, "register_look", c.keys.storage(r.info.ID))
	if err != nil {
		return nil, err
	}
	if epoch := r.Epoch(); epoch > 0 && len(resp.Kvs) == 1 {
		s, err := decodeStorage(resp.Kvs[0], r.info.ID)
		if err != nil {
			return nil, err
		}
		if s.EligibleEpoch > epoch {
			return nil, r.supersede(s.EligibleEpoch)
		}
	}
	resp, err = c.get(ctx, "register_look", c.keys.broker(r.info.ID))
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return decodeBroker(resp.Kvs[0], r.info.ID)
}

func (r *Registration) adopt(epoch, lease int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.epoch, r.mu.lease = epoch, lease
	r.client.metrics.registration.Set(float64(epoch))
	r.client.lg.Info("registered", "broker_id", r.info.ID, "broker_epoch", epoch, "lease", hex(uint64(lease)))
}

func (r *Registration) supersede(epoch int64) error {
	r.mu.Lock()
	first := r.mu.taken == 0
	if first {
		r.mu.taken = epoch
	}
	r.mu.Unlock()
	if first {
		r.client.metrics.registration.Set(0)
		r.client.lg.Error("another process has taken the broker id over", "broker_id", r.info.ID, "broker_epoch", epoch)
		close(r.lost)
	}
	return r.Err()
}

// Run keeps the registration alive until ctx ends, and then revokes the lease, so that the others learn of it at once; a broker hands
// its leaderships over before it ends ctx. It returns nil after ctx, ErrSuperseded after a take-over, and an error that will not go
// away by itself (ErrForeignEtcd, ErrOlderEtcd). An etcd that does not answer ends nothing: Run goes on trying.
func (r *Registration) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan sighting)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.follow(ctx, seen)
	}()
	err := r.keep(ctx, seen)
	cancel()
	<-done
	if err == nil {
		r.revoke(ctx)
	}
	return err
}

// keep renews the lease three times per TTL, and registers anew when the key is gone.
func (r *Registration) keep(ctx context.Context, seen <-chan sighting) error {
	c := r.client
	ticker := c.clk.NewTicker(c.cfg.LeaseTTL / 3)
	defer ticker.Stop()
	for {
		var lapsed bool
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-seen:
			if s.revision < r.Epoch() {
				continue // from before the current registration
			}
			if s.broker != nil && s.broker.BootID != r.bootID {
				return r.supersede(s.broker.Epoch)
			}
			lapsed = s.broker == nil
		case <-ticker.C():
			// The lease can outlive a take-over, which moves the key to another lease; and a watch can hang. So the key is read too.
			lapsed, err = r.beat(ctx)
			if err != nil {
				return err
			}
		}
		if !lapsed {
			continue
		}
		c.lg.Warn("registration lapsed, registering anew", "broker_id", r.info.ID, "broker_epoch", r.Epoch())
		switch err := r.register(ctx); {
		case errors.Is(err, ErrSuperseded), errors.Is(err, ErrForeignEtcd), errors.Is(err, ErrOlderEtcd):
			return err
		case errors.Is(err, ErrBrokerConflict):
			return err
		case err != nil && ctx.Err() == nil:
			c.lg.Warn("registering anew failed, will try again", "broker_id", r.info.ID, "error", err)
		}
	}
}

// beat renews the lease and reads the key. It fails only for reasons that will not go away.
func (r *Registration) beat(ctx context.Context) (lapsed bool, err error) {
	c := r.client
	if errors.Is(c.keepAlive(ctx, r.LeaseID()), rpctypes.ErrLeaseNotFound) {
		return true, nil
	}
	resp, err := c.get(ctx, "register_check", c.keys.broker(r.info.ID))
	switch {
	case errors.Is(err, ErrForeignEtcd), errors.Is(err, ErrOlderEtcd):
		return false, err
	case err != nil:
		return false, nil //nolint:nilerr // etcd does not answer, which ends nothing
	case len(resp.Kvs) == 0:
		return true, nil
	}
	b, err := decodeBroker(resp.Kvs[0], r.info.ID)
	if err == nil && b.BootID != r.bootID {
		return false, r.supersede(b.Epoch)
	}
	return false, err
}

// sighting is what the key looked like at a revision; broker is nil when it was absent.
type sighting struct {
	broker   *Broker
	revision int64
}

// follow reports every change of the registration's key: it reads the key, then watches it from there, and starts over when the
// watch breaks, so that neither compaction nor a lost connection hides a take-over.
func (r *Registration) follow(ctx context.Context, seen chan<- sighting) {
	c, key := r.client, r.client.keys.broker(r.info.ID)
	var wait backOff
	report := func(s sighting) bool {
		select {
		case seen <- s:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		resp, err := c.get(ctx, "register_follow", key)
		if err == nil {
			s := sighting{revision: resp.Header.Revision}
			if len(resp.Kvs) == 1 {
				s.broker, err = decodeBroker(resp.Kvs[0], r.info.ID)
			}
			if err == nil && report(s) {
				// Not from behind it: see Cache.watch, which shares the stream.
				r.watch(ctx, key, resp.Header.Revision, report)
			}
		}
		if err == nil {
			wait = backOff{}
		}
		if clock.Sleep(ctx, c.clk, wait.next()) != nil {
			return
		}
	}
}

func (r *Registration) watch(ctx context.Context, key string, revision int64, report func(sighting) bool) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for resp := range r.client.etcd.Watch(ctx, key, clientv3.WithRev(revision)) {
		if resp.Err() != nil {
			return
		}
		for _, e := range resp.Events {
			s := sighting{revision: e.Kv.ModRevision}
			if e.Type == clientv3.EventTypePut {
				b, err := decodeBroker(e.Kv, r.info.ID)
				if err != nil {
					r.client.lg.Error("unreadable registration", "error", err)
					return
				}
				s.broker = b
			}
			if !report(s) {
				return
			}
		}
	}
}

// revoke ends the lease, and with it the key, within a second. Failing that, it expires.
func (r *Registration) revoke(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	lease := r.LeaseID()
	_, err := r.client.attempt(ctx, "revoke", func(ctx context.Context) error {
		_, err := r.client.etcd.Revoke(ctx, clientv3.LeaseID(lease))
		return err
	})
	r.client.metrics.registration.Set(0)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.client.lg.Warn("revoking the lease failed, it will expire", "broker_id", r.info.ID, "error", err)
	}
}

// grant makes a lease. A grant whose answer is lost expires unused.
func (c *Client) grant(ctx context.Context) (int64, error) {
	var wait backOff
	for {
		var resp *clientv3.LeaseGrantResponse
		_, err := c.attempt(ctx, "grant", func(ctx context.Context) (err error) {
			resp, err = c.etcd.Grant(ctx, int64(c.cfg.LeaseTTL/time.Second))
			return err
		})
		if err == nil {
			return int64(resp.ID), nil
		}
		if final(err) {
			return 0, fmt.Errorf("grant: %w", err)
		}
		if clock.Sleep(ctx, c.clk, wait.next()) != nil {
			return 0, &UnavailableError{Op: "grant", Err: err}
		}
	}
}

// keepAlive renews a lease once; ErrLeaseNotFound means that it has lapsed. The library's own KeepAliveOnce repeats without a pause
// while there is no connection, so the stream is opened here.
func (c *Client) keepAlive(ctx context.Context, lease int64) error {
	_, err := c.attempt(ctx, "keep_alive", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := etcdserverpb.NewLeaseClient(c.etcd.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: lease}); err != nil {
			return err
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if before := c.Position(); resp.GetHeader().GetClusterId() != before.EtcdClusterID {
			return &ForeignEtcdError{What: "etcd cluster id", Want: hex(before.EtcdClusterID), Got: hex(resp.GetHeader().GetClusterId())}
		}
		if resp.GetTTL() <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		return nil
	})
	if err != nil && status.Code(err) != codes.Canceled {
		c.lg.Debug("lease keep-alive failed", "error", err)
	}
	return err
}
