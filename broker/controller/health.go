package controller

import (
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
)

// Health is what the failure detector of the deciding broker has concluded. The zero value knows nothing: whoever is registered is well,
// whoever is not is gone.
type Health struct {
	// Suspects are the confirmed ones; Stopping are brokers that hand over; Beating are brokers, registered or not, that are alive by
	// their own word.
	Suspects, Stopping, Beating map[int32]bool
	// Unwritable are brokers whose data volumes take no writes, and UnwritableLogs single logs that take none, by broker. They can be read
	// from, and stay in in-sync sets for as long as they keep up; others lead where others can.
	Unwritable     map[int32]bool
	UnwritableLogs map[int32]map[metadata.PartitionRef]bool
}

// HealthOf takes from a detector's view what decisions rest on.
func HealthOf(v liveness.View) Health {
	set := func(list []int32) map[int32]bool {
		out := make(map[int32]bool, len(list))
		for _, id := range list {
			out[id] = true
		}
		return out
	}
	h := Health{Suspects: set(v.Confirmed), Stopping: set(v.Stopping), Beating: set(v.Beating), Unwritable: set(v.Unwritable)}
	for id, logs := range v.UnwritableLogs {
		if h.UnwritableLogs == nil {
			h.UnwritableLogs = map[int32]map[metadata.PartitionRef]bool{}
		}
		h.UnwritableLogs[id] = make(map[metadata.PartitionRef]bool, len(logs))
		for _, l := range logs {
			h.UnwritableLogs[id][metadata.PartitionRef(l)] = true
		}
	}
	return h
}

// End is how far a replica's log reaches.
type End struct {
	// Epoch is the latest leader epoch in the log.
	Epoch int32
	// Offset is the log end.
	Offset int64
}

// before orders ends: of two logs of one partition, the later one has everything that the other can have committed.
func (e End) before(o End) bool {
	return e.Epoch < o.Epoch || e.Epoch == o.Epoch && e.Offset < o.Offset
}

// Input is what a decision takes into account beside the metadata.
type Input struct {
	// Self is the deciding broker.
	Self   int32
	Health Health
	// Ends of logs, where they are known, decide between several members after an unclean stop.
	Ends map[metadata.PartitionRef]map[int32]End
	// Loads are measured, for all partitions that carry any; nil: not measured, leaders are balanced by preference only.
	Loads map[metadata.PartitionRef]PartitionLoad
	// Balance: a round of leader balancing is due.
	Balance bool
	// Spared are brokers that were taken out of in-sync sets a moment ago and came back while still suspected: whoever leads hears them.
	// They are left in, so that controller and leaders do not undo each other's work.
	Spared map[int32]bool
	// Settings with defaults for zero values.
	Settings Settings
}

// Ranks of brokers as leaders; less is better. A leader gives way to a member of a lower rank only.
const (
	rankWell = iota
	rankDraining
	// rankUnwritable: it can be read from, and written to again some time. A broker that stops cannot even be read from in a moment.
	rankUnwritable
	rankStopping
	rankSuspect
	// rankBarred: fenced or decommissioned.
	rankBarred
)

// rank of a registered broker.
func (in *Input) rank(s *metadata.State, id int32) int {
	st, known := s.Storage(id)
	switch {
	case known && barred(st):
		return rankBarred
	case in.Health.Suspects[id]:
		return rankSuspect
	case in.Health.Stopping[id]:
		return rankStopping
	case in.Health.Unwritable[id]:
		return rankUnwritable
	case known && st.State == metadata.StorageDraining:
		return rankDraining
	}
	return rankWell
}

// rankFor is the rank of a registered broker as the leader of one partition: its log of it may take no writes although others do.
func (in *Input) rankFor(s *metadata.State, ref metadata.PartitionRef, id int32) int {
	rank := in.rank(s, id)
	if rank < rankUnwritable && in.Health.UnwritableLogs[id][ref] {
		return rankUnwritable
	}
	return rank
}

// gone: the registration has ended and nothing is heard of the broker. A lapsed registration alone moves nothing.
func (in *Input) gone(s *metadata.State, id int32) bool {
	_, alive := s.Broker(id)
	return !alive && !in.Health.Beating[id]
}

// holds reports whether a broker may be given replicas: eligible, active, writable, and neither suspected nor stopping.
func (in *Input) holds(s *metadata.State, id int32) bool {
	return s.Eligible(id) && in.rank(s, id) == rankWell
}
