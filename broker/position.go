package broker

import (
	"errors"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/storage"
)

// known is how far this broker has seen the metadata: what the data directory says, or more if this process has seen more. The host saves what
// it acts on before it does; the answers to this broker's own writes are ahead of that.
func (b *Broker) known() (metadata.Position, error) {
	saved, err := storage.LoadPosition(b.deps.FS, b.cfg.Storage.DataDir)
	if err != nil {
		return metadata.Position{}, err
	}
	p := metadata.Position{ClusterID: saved.ClusterID, EtcdClusterID: saved.EtcdClusterID, Era: saved.Era, Revision: saved.Revision}
	if b.seen.ClusterID != "" && (p.ClusterID == "" || p.ClusterID == b.seen.ClusterID) && p.Before(b.seen) {
		p = b.seen
	}
	return p, nil
}

// remember keeps the position that a client has come to, for the next parts and, when the data directory is open, for the next process. Without
// it, a broker that refused an etcd which went back a little would take it when it begins anew.
func (b *Broker) remember(p *parts) error {
	if at := p.client.Position(); at.ClusterID != "" && at.EtcdClusterID != 0 && b.seen.Before(at) {
		b.seen = at
	}
	if p.store == nil || b.seen.ClusterID != p.store.ClusterID() {
		return nil
	}
	saved, err := storage.LoadPosition(b.deps.FS, b.cfg.Storage.DataDir)
	if err != nil {
		return err
	}
	if !(metadata.Position{Era: saved.Era, Revision: saved.Revision}).Before(b.seen) {
		return nil
	}
	err = p.store.SavePosition(storage.Position{
		ClusterID: b.seen.ClusterID, EtcdClusterID: b.seen.EtcdClusterID, Era: b.seen.Era, Revision: b.seen.Revision,
	})
	if errors.Is(err, storage.ErrClosed) {
		return nil
	}
	return err
}
