package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"runnel.dev/runnel/api/runnel/codec"
	"runnel.dev/runnel/internal/clock"
)

// Client is a connection to a cluster. One per process is enough; every method is safe for concurrent use.
type Client struct {
	cfg   config
	codec *codec.Codec
	conns *conns
	meta  *metadata

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		parts  map[closer]struct{}
	}
}

// closer is a producer or consumer that Close has to close.
type closer interface {
	Close(ctx context.Context) error
}

// Open dials the seeds of url ("runnel://h1:7650,h2:7650") and waits for the cluster's metadata. ctx bounds Open alone. Open
// starts goroutines; Close ends them.
func Open(ctx context.Context, url string, opts ...Option) (*Client, error) {
	cfg, err := newConfig(url, opts)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, codec: codec.New()}
	c.mu.parts = make(map[closer]struct{})
	if c.conns, err = newConns(&c.cfg, c.codec); err != nil {
		return nil, err
	}
	c.meta = newMetadata(&c.cfg, c.conns)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.wg.Go(func() { c.meta.run(run) })
	if err := c.meta.ready(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("client: open %s: %w", url, err)
	}
	return c, nil
}

// Close flushes producers and ends consumers. What ctx cuts short is reported. A second Close does nothing.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.closed = true
	parts := make([]closer, 0, len(c.mu.parts))
	for p := range c.mu.parts {
		parts = append(parts, p)
	}
	c.mu.Unlock()

	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() { errs[i] = p.Close(ctx) })
	}
	wg.Wait()
	c.stop()
	return errors.Join(errs...)
}

func (c *Client) stop() {
	c.cancel()
	c.conns.close()
	c.wg.Wait()
}

// ClusterID is the id of the cluster that the client talks to.
func (c *Client) ClusterID() string { return c.meta.snapshot().clusterID }

// Admin returns the administrative calls.
func (c *Client) Admin() *Admin { return &Admin{c: c} }

// register remembers a part that Close closes; it fails when the client is closed.
func (c *Client) register(p closer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fmt.Errorf("client: %w", ErrClosed)
	}
	c.mu.parts[p] = struct{}{}
	return nil
}

func (c *Client) unregister(p closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.parts, p)
}

// request bounds one request to one broker.
func (c *Client) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.requestTimeout)
}

// pause waits for d, for news, or for ctx, and reports whether there were news.
func pause(ctx context.Context, clk clock.Clock, d time.Duration, news <-chan struct{}) bool {
	if d <= 0 {
		return false
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C():
	case <-ctx.Done():
	}
	return false
}

// backoff computes waits that grow exponentially with full jitter above a floor. The zero value starts at the beginning. Not
// safe for concurrent use.
type backoff struct{ attempt int }

const (
	backoffMin = 10 * time.Millisecond
	backoffMax = time.Second
)

func (b *backoff) next() time.Duration {
	d := min(backoffMin<<min(b.attempt, 10), backoffMax)
	b.attempt++
	return d/2 + jitter(d/2)
}

func (b *backoff) reset() { b.attempt = 0 }
