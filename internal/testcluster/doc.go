// Package testcluster runs a whole cluster inside a test: a real etcd member and real brokers, on loopback, each with a data directory
// of the test's own. Parts are started, stopped and started again one by one, at the addresses they had before.
//
//	func TestMain(m *testing.M) { os.Exit(testcluster.Main(m, &shared)) }
//
//	c := testcluster.New(t, testcluster.Options{Etcd: shared})
//	cl := c.Client()
//	c.Broker(1).Restart()
//
// Nothing sleeps: starting waits until /readyz says that the broker may be given work, stopping until its Run has returned. Whatever a
// test has started ends with it; Main checks that no goroutine is left.
//
// Brokers can be cut off the network, and killed as far as that goes in one process: see Broker.Cut and Broker.Kill. What it cannot do is kill
// or pause a process. A power failure is a memfs clone on which a broker is started (see memfs.Mem.CrashClone); kill −9
// of real processes is what test/crash does.
package testcluster
