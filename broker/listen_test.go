package broker

import (
	"errors"
	"net"
	"os"
	"testing"

	"runnel.dev/runnel/broker/config"
)

func TestAdvertisedAddress(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7650} }
	for name, tt := range map[string]struct {
		advertised string
		bound      net.Addr
		want       string
	}{
		"as configured":     {"out.example.com:443", tcp("127.0.0.1"), "out.example.com:443"},
		"as listened on":    {"", tcp("127.0.0.1"), "127.0.0.1:7650"},
		"IPv6":              {"", tcp("::1"), "[::1]:7650"},
		"every interface":   {"", tcp("0.0.0.0"), net.JoinHostPort(host, "7650")},
		"every IPv6 one":    {"", tcp("::"), net.JoinHostPort(host, "7650")},
		"something not TCP": {"", &net.UnixAddr{Name: "buffer"}, "buffer"},
	} {
		if got, err := advertise(config.Listener{Advertised: tt.advertised}, tt.bound); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

// When one listener cannot be opened, those that were are closed.
func TestListenClosesWhatItOpened(t *testing.T) {
	cfg := testConfig(t)
	cfg.Listeners = []config.Listener{{Name: "a", Address: "127.0.0.1:0"}, {Name: "b", Address: "127.0.0.1:0"}}
	deps := testDeps()
	var opened []net.Listener
	broken := errors.New("no more sockets")
	deps.Listen = func(network, address string) (net.Listener, error) {
		if len(opened) == 1 {
			return nil, broken
		}
		l, err := net.Listen(network, address)
		opened = append(opened, l)
		return l, err
	}
	b, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	if ls, _, err := b.listen(); !errors.Is(err, broken) || len(ls) != 0 {
		t.Errorf("listen() = %v, %v", ls, err)
	}
	if _, err := opened[0].Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the first listener was left open: %v", err)
	}
}
