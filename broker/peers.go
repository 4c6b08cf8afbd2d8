package broker

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/server"
)

// directory implements peer.Directory over the metadata. A broker whose lease lapsed stays known until a newer registration of its id is
// seen: a lapsed lease alone ends nothing, and its followers have to find it.
type directory struct {
	cluster string
	// listener is the name of the listener that brokers use among themselves.
	listener string
	cache    *metadata.Cache
	reg      *metadata.Registration

	mu struct {
		sync.Mutex
		last map[int32]*metadata.Broker
	}
}

func newDirectory(cluster, listener string, cache *metadata.Cache, reg *metadata.Registration) *directory {
	d := &directory{cluster: cluster, listener: listener, cache: cache, reg: reg}
	d.mu.last = map[int32]*metadata.Broker{}
	return d
}

// Self implements peer.Directory.
func (d *directory) Self() peer.Credentials {
	return peer.Credentials{ClusterID: d.cluster, ID: d.reg.BrokerID(), Epoch: d.reg.Epoch(), BootID: d.reg.BootID()}
}

// Peer implements peer.Directory.
func (d *directory) Peer(id int32) (peer.Peer, bool) {
	b, alive := d.cache.Snapshot().Broker(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.mu.last[id]
	if alive && (last == nil || b.Epoch > last.Epoch) {
		d.mu.last[id], last = b, b
	}
	if last == nil {
		return peer.Peer{}, false
	}
	return d.peer(last), true
}

// Peers implements peer.Directory.
func (d *directory) Peers() []peer.Peer {
	all := d.cache.Snapshot().Brokers()
	out := make([]peer.Peer, 0, len(all))
	for _, b := range all {
		if b.ID != d.reg.BrokerID() {
			out = append(out, d.peer(b))
		}
	}
	return out
}

// note remembers the registrations of a state.
func (d *directory) note(s *metadata.State) {
	for _, b := range s.Brokers() {
		d.Peer(b.ID)
	}
}

func (d *directory) peer(b *metadata.Broker) peer.Peer {
	address := b.Listeners[d.listener]
	return peer.Peer{ID: b.ID, Epoch: b.Epoch, BootID: b.BootID, Address: address}
}

// forwarder implements server.Forwarder.
type forwarder struct {
	conns *peer.Conns
	dir   *directory
}

// Conn implements server.Forwarder.
func (f forwarder) Conn(id int32) (grpc.ClientConnInterface, error) {
	c, err := f.conns.Conn(id, peer.ClassForward)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", server.ErrUnknownBroker, err)
	}
	return c, nil
}

// Outgoing implements server.Forwarder.
func (f forwarder) Outgoing(ctx context.Context) context.Context {
	return peer.Outgoing(ctx, f.dir.Self())
}

// VerifyPeer implements server.Forwarder.
func (f forwarder) VerifyPeer(ctx context.Context) (int32, error) {
	p, err := peer.Verify(ctx, f.dir)
	return p.ID, err
}
