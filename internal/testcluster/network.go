package testcluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// network is one broker's way to everything else: what it listens on, and what it dials. It can be cut, as if the cable were pulled and
// the other side noticed at once: connections break, and new ones are refused in both directions.
type network struct {
	mu struct {
		sync.Mutex
		cut    bool
		healed chan struct{} // closed when a cut ends
		// conns are open connections, listeners those that accept.
		conns     map[net.Conn]struct{}
		listeners map[*listener]struct{}
	}
}

func newNetwork() *network {
	n := &network{}
	n.mu.conns, n.mu.listeners = map[net.Conn]struct{}{}, map[*listener]struct{}{}
	return n
}

// listen is broker.Deps.Listen.
func (n *network) listen(kind, address string) (net.Listener, error) {
	inner, err := net.Listen(kind, address)
	if err != nil {
		return nil, err
	}
	l := &listener{n: n, inner: inner, address: inner.Addr(), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.listeners[l] = struct{}{}
	return l, nil
}

// dial is broker.Deps.Dial.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	cut := n.mu.cut
	n.mu.Unlock()
	if cut {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return n.track(c)
}

// track keeps a connection until it is closed. During a cut there is none.
func (n *network) track(c net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.cut {
		return nil, errors.Join(syscall.ECONNRESET, c.Close())
	}
	t := &conn{Conn: c, n: n}
	n.mu.conns[t] = struct{}{}
	return t, nil
}

// setCut begins or ends a cut.
func (n *network) setCut(cut bool) {
	n.mu.Lock()
	if n.mu.cut == cut {
		n.mu.Unlock()
		return
	}
	n.mu.cut = cut
	var conns []net.Conn
	if cut {
		n.mu.healed = make(chan struct{})
		for c := range n.mu.conns {
			conns = append(conns, c)
		}
		for l := range n.mu.listeners {
			_ = l.inner.Close() // the port refuses from here on
		}
	} else {
		close(n.mu.healed)
	}
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // that is the point
	}
}

// listener is one that a cut makes deaf, and that listens again afterwards.
type listener struct {
	n       *network
	address net.Addr
	done    chan struct{}
	once    sync.Once
	inner   net.Listener // guarded by n.mu
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.address }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		l.n.mu.Lock()
		inner, cut, healed := l.inner, l.n.mu.cut, l.n.mu.healed
		l.n.mu.Unlock()
		if !cut {
			c, err := inner.Accept()
			if err == nil {
				if c, err = l.n.track(c); err == nil {
					return c, nil
				}
				continue
			}
			if !l.muted() {
				return nil, err
			}
			continue
		}
		select {
		case <-healed:
		case <-l.done:
			return nil, net.ErrClosed
		}
		again, err := net.Listen("tcp", l.address.String())
		if err != nil {
			return nil, err
		}
		l.n.mu.Lock()
		l.inner = again
		l.n.mu.Unlock()
	}
}

// muted reports whether an error of Accept comes from a cut.
func (l *listener) muted() bool {
	select {
	case <-l.done:
		return false
	default:
	}
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.n.mu.cut
}

// Close implements net.Listener.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.done)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		delete(l.n.mu.listeners, l)
		if err = l.inner.Close(); errors.Is(err, net.ErrClosed) && l.n.mu.cut {
			err = nil
		}
	})
	return err
}

// conn forgets itself when it is closed.
type conn struct {
	net.Conn
	n *network
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.mu.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}
