package peer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

const cluster = "8a1f5c1e-4a4f-4f7e-9d6c-2f5a1f2b3c4d"

// directory is a fixed view of the metadata.
type directory struct {
	mu    sync.Mutex
	self  Credentials
	peers map[int32]Peer
}

func (d *directory) Self() Credentials {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.self
}

func (d *directory) Peer(id int32) (Peer, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.peers[id]
	return p, ok
}

func (d *directory) Peers() []Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Peer
	for id, p := range d.peers {
		if id != d.self.ID {
			out = append(out, p)
		}
	}
	return out
}

func (d *directory) set(p Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers[p.ID] = p
}

func newDirectory() *directory {
	return &directory{
		self:  Credentials{ClusterID: cluster, ID: 1, Epoch: 10, BootID: [16]byte{1}},
		peers: map[int32]Peer{1: {ID: 1, Epoch: 10, BootID: [16]byte{1}}, 2: {ID: 2, Epoch: 20, BootID: [16]byte{2}}},
	}
}

// arrives is ctx as the receiver of a call sees it.
func arrives(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

func TestVerify(t *testing.T) {
	good := Credentials{ClusterID: cluster, ID: 2, Epoch: 20, BootID: [16]byte{2}}
	with := func(f func(*Credentials)) context.Context {
		c := good
		f(&c)
		return arrives(Outgoing(t.Context(), c))
	}
	raw := func(values ...string) context.Context {
		md := metadata.MD{}
		md.Append(Header, values...)
		return metadata.NewIncomingContext(t.Context(), md)
	}
	short, err := proto.Marshal(&runnelv1.PeerCredentials{ClusterId: cluster, BrokerId: 2, BrokerEpoch: 20, BootId: []byte{2}})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := proto.Marshal(&runnelv1.PeerCredentials{ClusterId: cluster, BrokerId: 2, BrokerEpoch: 20, BootId: good.BootID[:]})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		ctx  context.Context
		want error
	}{
		"a broker of the cluster":    {with(func(*Credentials) {}), nil},
		"no credentials":             {t.Context(), ErrRequired},
		"another cluster":            {with(func(c *Credentials) { c.ClusterID = strings.ToUpper(cluster) }), ErrRefused},
		"a broker that is not known": {with(func(c *Credentials) { c.ID = 3 }), ErrUnknown},
		"a newer registration":       {with(func(c *Credentials) { c.Epoch = 21 }), ErrUnknown},
		"an older registration":      {with(func(c *Credentials) { c.Epoch = 19 }), ErrRefused},
		"another process":            {with(func(c *Credentials) { c.BootID[15] = 9 }), ErrRefused},
		"a forged zero boot id":      {with(func(c *Credentials) { c.BootID = [16]byte{} }), ErrRefused},
		"a short boot id":            {raw(string(short)), ErrRefused},
		"no protobuf":                {raw("\xff\xff"), ErrRefused},
		"empty":                      {raw(""), ErrRefused},
		"two of them":                {raw(string(whole), string(whole)), ErrRefused},
		"very long":                  {raw(string(whole) + strings.Repeat("\x7a\x01a", 200)), ErrRefused},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Verify(tt.ctx, newDirectory())
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if tt.want == nil && (p.ID != 2 || p.Epoch != 20) {
				t.Fatalf("got %+v", p)
			}
			if err != nil && strings.Contains(err.Error(), string(good.BootID[:])) {
				t.Fatal("the error names the boot id")
			}
		})
	}
	unready := &directory{}
	if _, err := Verify(with(func(*Credentials) {}), unready); !errors.Is(err, ErrUnknown) {
		t.Fatalf("before the cluster is known: %v, want ErrUnknown", err)
	}
	if Claimed(t.Context()) || !Claimed(with(func(*Credentials) {})) {
		t.Fatal("Claimed does not tell credentials from none")
	}
}

func FuzzVerify(f *testing.F) {
	whole, err := proto.Marshal(&runnelv1.PeerCredentials{ClusterId: cluster, BrokerId: 2, BrokerEpoch: 20, BootId: make([]byte, 16)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	dir := newDirectory()
	f.Fuzz(func(t *testing.T, header []byte) {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{Header: {string(header)}})
		if p, err := Verify(ctx, dir); err == nil && (p.ID != 2 || !strings.Contains(string(header), string(p.BootID[:]))) && p.ID != 1 {
			t.Fatalf("accepted %x as %+v", header, p)
		}
	})
}
