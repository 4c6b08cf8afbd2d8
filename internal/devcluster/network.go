package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Host names this machine itself in Cut and Heal, beside the names of processes.
const Host = "host"

// deadAddress is a hardware address that nobody has: what is sent to it is lost in silence, as in a network that is cut.
const deadAddress = "02:00:00:00:00:00"

// Network is a bridge with a namespace per process. Its methods run iproute2.
type Network struct {
	Bridge string `json:"bridge"`
	// Subnet is the first three numbers of its addresses; this machine has .1.
	Subnet string `json:"subnet"`
	// Names are the processes in the order of their addresses, from .11 on.
	Names []string `json:"names"`
}

// newNetwork chooses names and addresses that nothing on this machine uses.
func newNetwork() (*Network, error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for range 100 {
		n := &Network{Bridge: fmt.Sprintf("rnl%06x", rand.IntN(1<<24)), Subnet: fmt.Sprintf("10.%d.%d", 64+rand.IntN(128), rand.IntN(256))}
		free := true
		for _, a := range taken {
			free = free && !strings.HasPrefix(a.String(), n.Subnet+".")
		}
		if free {
			return n, nil
		}
	}
	return nil, errors.New("no free subnet in 10.64.0.0/10 to 10.191.0.0/10")
}

// place gives a process its address and namespace. Without a network that is loopback and none.
func (n *Network) place(name string) (host, namespace string) {
	if n == nil {
		return "127.0.0.1", ""
	}
	n.Names = append(n.Names, name)
	return n.address(name), n.namespace(name)
}

func (n *Network) address(name string) string {
	if name == Host {
		return n.Subnet + ".1"
	}
	for i, known := range n.Names {
		if known == name {
			return n.Subnet + "." + strconv.Itoa(11+i)
		}
	}
	return ""
}

func (n *Network) namespace(name string) string { return n.Bridge + "-" + name }

// up makes bridge and namespaces, unless they are there.
func (n *Network) up() error {
	if n == nil {
		return nil
	}
	if _, err := net.InterfaceByName(n.Bridge); err == nil {
		return nil
	}
	steps := [][]string{
		{"link", "add", n.Bridge, "type", "bridge"},
		{"addr", "add", n.address(Host) + "/24", "dev", n.Bridge},
		{"link", "set", n.Bridge, "up"},
	}
	for i, name := range n.Names {
		ns, port := n.namespace(name), n.Bridge+"p"+strconv.Itoa(i)
		steps = append(steps,
			[]string{"netns", "add", ns},
			[]string{"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"link", "set", port, "master", n.Bridge, "up"},
			[]string{"-n", ns, "addr", "add", n.address(name) + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "eth0", "up"},
			[]string{"-n", ns, "link", "set", "lo", "up"})
	}
	for _, args := range steps {
		if err := ip(args...); err != nil {
			return errors.Join(err, n.down())
		}
	}
	return nil
}

// down removes what up has made. The processes in it have ended.
func (n *Network) down() error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, name := range n.Names {
		ns := n.namespace(name)
		if _, err := os.Stat("/run/netns/" + ns); err == nil {
			errs = append(errs, ip("netns", "del", ns)) // its end of the veth goes with it, and so the other
		}
	}
	if _, err := net.InterfaceByName(n.Bridge); err == nil {
		errs = append(errs, ip("link", "del", n.Bridge))
	}
	return errors.Join(errs...)
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s (network namespaces need Linux, root, and iproute2)", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func inNamespace(namespace string, args []string) []string {
	if namespace == "" {
		return args
	}
	return append([]string{"ip", "netns", "exec", namespace}, args...)
}

var errNotIsolated = errors.New("the cluster's processes share this machine's network, which cannot be cut: start it with network namespaces")

// Cut loses everything that a and b send to each other, without a trace, until Heal. Both are names of processes, or Host.
func (c *Cluster) Cut(a, b string) error { return c.both(a, b, (*Network).cut) }

// Heal takes Cut back.
func (c *Cluster) Heal(a, b string) error { return c.both(a, b, (*Network).heal) }

// Others are all processes but the named one, and Host.
func (c *Cluster) Others(name string) []string {
	out := []string{Host}
	for _, p := range c.Processes {
		if p.Name != name {
			out = append(out, p.Name)
		}
	}
	return out
}

func (c *Cluster) both(a, b string, do func(n *Network, from, to string) error) error {
	if c.Network == nil {
		return errNotIsolated
	}
	for _, name := range []string{a, b} {
		if c.Network.address(name) == "" {
			return fmt.Errorf("%q: %w", name, ErrUnknownProcess)
		}
	}
	return errors.Join(do(c.Network, a, b), do(c.Network, b, a))
}

func (n *Network) cut(from, to string) error {
	return ip(n.at(from, "neigh", "replace", n.address(to), "lladdr", deadAddress, "nud", "permanent")...)
}

func (n *Network) heal(from, to string) error {
	return ip(n.at(from, "neigh", "flush", "to", n.address(to), "nud", "permanent")...)
}

// at completes a command for the network of a process, or this machine's.
func (n *Network) at(name string, args ...string) []string {
	if name == Host {
		return append(args, "dev", n.Bridge)
	}
	return append(append([]string{"-n", n.namespace(name)}, args...), "dev", "eth0")
}
