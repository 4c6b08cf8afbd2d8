package peer

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Header is the metadata key that carries credentials.
const Header = "runnel-peer-bin"

// BootIDLen is the length of a boot id, bytes.
const BootIDLen = 16

// maxHeader is more than credentials ever take, bytes.
const maxHeader = 256

// Errors to test for with errors.Is.
var (
	// ErrRequired: the call is for brokers only, and carries no credentials.
	ErrRequired = errors.New("peer credentials are required")
	// ErrRefused: the credentials are not those of a broker of this cluster.
	ErrRefused = errors.New("peer credentials are refused")
	// ErrUnknown: the registration is not known here, at least not yet. Trying again helps once the metadata has arrived.
	ErrUnknown = errors.New("peer's registration is not known yet")
)

// Credentials say who calls. The boot id is a secret: it is never logged.
type Credentials struct {
	ClusterID string
	ID        int32
	// Epoch is the broker epoch of the registration.
	Epoch  int64
	BootID [BootIDLen]byte
}

// Peer is a registered broker.
type Peer struct {
	ID int32
	// Epoch is the broker epoch of the registration.
	Epoch  int64
	BootID [BootIDLen]byte
	// Address is where brokers reach it, host:port.
	Address string
}

// Directory knows the brokers of the cluster. Its methods do not block; safe for concurrent use.
type Directory interface {
	// Self returns this broker's own credentials. The epoch is 0 while it is not registered.
	Self() Credentials
	// Peer returns the newest registration of a broker that is known here, also when its lease has lapsed since: a lapsed lease alone ends
	// nothing.
	Peer(id int32) (Peer, bool)
	// Peers returns the live registrations of all other brokers.
	Peers() []Peer
}

// Outgoing puts credentials into the header of calls made with the context.
func Outgoing(ctx context.Context, c Credentials) context.Context {
	b, err := proto.Marshal(&runnelv1.PeerCredentials{ClusterId: c.ClusterID, BrokerId: c.ID, BrokerEpoch: c.Epoch, BootId: c.BootID[:]})
	if err != nil {
		b = nil // a cluster id that is not UTF-8: the receiver refuses it
	}
	return metadata.AppendToOutgoingContext(ctx, Header, string(b))
}

func hasOutgoing(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(Header)) > 0
}

// Claimed reports whether a call carries credentials, whatever they are worth.
func Claimed(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, Header)) > 0
}

// Verify returns the broker that makes a call. ErrRequired, ErrRefused or ErrUnknown, which say what is wrong but never a secret.
func Verify(ctx context.Context, dir Directory) (Peer, error) {
	values := metadata.ValueFromIncomingContext(ctx, Header)
	if len(values) == 0 {
		return Peer{}, ErrRequired
	}
	var c runnelv1.PeerCredentials
	if len(values) > 1 || len(values[0]) > maxHeader || proto.Unmarshal([]byte(values[0]), &c) != nil || len(c.GetBootId()) != BootIDLen {
		return Peer{}, fmt.Errorf("%w: the header is malformed", ErrRefused)
	}
	self := dir.Self()
	if self.ClusterID == "" {
		return Peer{}, fmt.Errorf("%w: this broker does not know its cluster yet", ErrUnknown)
	}
	if c.GetClusterId() != self.ClusterID {
		return Peer{}, fmt.Errorf("%w: broker %d belongs to another cluster than %s", ErrRefused, c.GetBrokerId(), self.ClusterID)
	}
	p, ok := dir.Peer(c.GetBrokerId())
	switch {
	case !ok || p.Epoch < c.GetBrokerEpoch():
		return Peer{}, fmt.Errorf("%w: broker %d, epoch %d", ErrUnknown, c.GetBrokerId(), c.GetBrokerEpoch())
	case p.Epoch > c.GetBrokerEpoch():
		return Peer{}, fmt.Errorf("%w: broker %d, epoch %d, was registered anew under epoch %d", ErrRefused, p.ID, c.GetBrokerEpoch(), p.Epoch)
	case subtle.ConstantTimeCompare(c.GetBootId(), p.BootID[:]) != 1:
		return Peer{}, fmt.Errorf("%w: not the process that registered as broker %d", ErrRefused, p.ID)
	}
	return p, nil
}
