package broker

import (
	"testing"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// What this process has seen counts when it begins anew, although the data directory does not say so yet.
func TestAPositionThatWasSeenIsNotForgotten(t *testing.T) {
	b := &Broker{cfg: config.Default(), deps: Deps{FS: memfs.New()}}
	b.cfg.Storage.DataDir = "/data"
	p, err := b.known()
	if err != nil || p != (metadata.Position{}) {
		t.Fatalf("a new directory knows %+v, %v", p, err)
	}
	b.seen = metadata.Position{ClusterID: "c", EtcdClusterID: 7, Era: 1, Revision: 102}
	if p, err := b.known(); err != nil || p != b.seen {
		t.Fatalf("known %+v, %v, want %+v", p, err, b.seen)
	}
}
