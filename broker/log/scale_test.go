package log

import (
	"fmt"
	"runtime"
	"testing"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// TestIdleLogsAreSmall: what a log costs in memory that was written to and is idle now, its share of the simulated disk included, with
// few files open. Times 10,000 it has to fit a broker.
func TestIdleLogsAreSmall(t *testing.T) {
	const logs, most = 1000, 30 << 10
	disk := newDisk(t)
	host, err := openHost(disk)
	must(t, err)
	defer host.close()
	e := &env{t: t, fs: disk, clk: clock.NewFake(testStart), host: host, cfg: DefaultConfig()}
	oc := e.openConfig()
	oc.Cache = segment.NewCache(50, 0)
	all := make([]*Log, 0, logs)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range logs {
		m := testMeta()
		m.Partition, m.LogID = int32(i), ids.LogID{1, byte(i), byte(i >> 8)}
		oc.Dir = fmt.Sprintf("%s/topic/%d", dataDir, i)
		l, err := Create(t.Context(), oc, m, StartState{})
		must(t, err)
		e.l = l
		for range 3 {
			e.mustAppend(1, "x")
		}
		must(t, host.round(l))
		if _, err := readAll(l, 0, 3); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	each := (heap() - before) / logs
	t.Logf("%d bytes for an idle log", each)
	if each > most {
		t.Errorf("%d bytes for an idle log, at most %d are meant", each, most)
	}
	if n := oc.Cache.OpenFiles(); n > 50 {
		t.Errorf("%d files are open", n)
	}
	for _, l := range all {
		must(t, l.Close())
	}
}
