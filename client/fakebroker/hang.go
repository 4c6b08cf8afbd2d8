package fakebroker

import (
	"net"
	"sync"
)

// gate lets the bytes of a broker's connections through, or holds them.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open; closed when it opens
}

func (g *gate) wait() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// gatedListener gates the connections that it accepts.
type gatedListener struct {
	net.Listener
	gate *gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return gatedConn{c, l.gate}, nil
}

type gatedConn struct {
	net.Conn
	gate *gate
}

func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate.wait()
	return n, err
}

func (c gatedConn) Write(b []byte) (int, error) {
	c.gate.wait()
	return c.Conn.Write(b)
}

// HangBroker makes a broker silent without ending anything, as a process that is stopped or a cable that is cut: connections stay open, new ones
// are accepted, and nothing is answered until WakeBroker. Its partitions keep their leader until MoveLeader.
func (c *Cluster) HangBroker(id int32) { c.gateOf(id).set(true) }

// WakeBroker ends what HangBroker began.
func (c *Cluster) WakeBroker(id int32) { c.gateOf(id).set(false) }

func (c *Cluster) gateOf(id int32) *gate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &c.mu.brokers[id].gate
}
