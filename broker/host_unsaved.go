package broker

// withhold leaves in a plan what may be done although the position of the metadata that it was made of could not be saved, on a full disk:
// a restart would not know that it has seen that much, and would take an older etcd, which gives the same epochs out again. So this
// broker takes part in no epoch that it has not taken part in yet, neither leading nor following. It does end what it led in earlier ones,
// or its clients would be held by a leader that others have replaced; and it deletes topics, which makes room. It comes back to the
// rest once the position is saved.
func (w *plan) withhold(h *host) {
	roles := w.roles[:0]
	for _, a := range w.roles {
		p, ok := h.lookup(a.ref)
		if !ok {
			continue
		}
		if rec := a.update.Record; rec.LeaderEpoch > p.Role().Epoch || rec.LeaderEpoch == h.held[a.ref] {
			if rec.Leader == h.reg.BrokerID() {
				continue // told that it is not usable, it would never lead that epoch
			}
			a.update.Usable = false
			h.held[a.ref] = rec.LeaderEpoch
		}
		roles = append(roles, a)
	}
	*w = plan{roles: roles, purge: w.purge}
}
