package sim

import (
	"encoding/binary"
	"fmt"
	"slices"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/record"
)

// unwell says what keeps the cluster from being whole: every replica in sync, every leader alive and writable, everything that was sent
// resolved and read.
func (w *world) unwell() string {
	for i, l := range w.check.ledgers {
		p := l.record
		switch {
		case p == nil || p.Leader == metadata.NoLeader:
			return fmt.Sprintf("%s has no leader", w.name(l.ref))
		case len(p.Adding)+len(p.Removing) > 0:
			return fmt.Sprintf("%s is being reassigned: %v, adding %v, removing %v", w.name(l.ref), p.Replicas, p.Adding, p.Removing)
		case len(p.ISR) != len(p.Replicas):
			return fmt.Sprintf("%s has %s in sync, replicas are %v", w.name(l.ref), members(p.ISR), p.Replicas)
		}
		leader := w.nodes[p.Leader].proc
		if leader == nil || leader.parts[i] == nil || !leader.parts[i].status.Leading || leader.parts[i].status.Epoch != p.LeaderEpoch {
			return fmt.Sprintf("%s: broker %d does not lead epoch %d", w.name(l.ref), p.Leader, p.LeaderEpoch)
		}
		if !leader.parts[i].status.Writable {
			return fmt.Sprintf("%s: broker %d is not writable", w.name(l.ref), p.Leader)
		}
		for _, m := range p.ISR {
			if w.check.lost[m.LogID] {
				return fmt.Sprintf("%s has a lost log in sync: %s", w.name(l.ref), members(p.ISR))
			}
		}
	}
	for _, p := range w.producers {
		if w.check.ledgers[p.index].forced {
			continue // it may wait for ever for what was lost
		}
		for _, s := range p.flight {
			if w.now-s.began > 5*produceTimeout {
				return fmt.Sprintf("producer %d of %s waits since %s", p.lane, w.name(w.refs[p.index]), s.began)
			}
		}
	}
	return ""
}

// unfinished says what is still to be acknowledged, replicated or read, once nobody produces any more.
func (w *world) unfinished() string {
	for _, p := range w.producers {
		if len(p.flight) > 0 && !w.check.ledgers[p.index].forced {
			return fmt.Sprintf("producer %d of %s has %d batches in flight", p.lane, w.name(w.refs[p.index]), len(p.flight))
		}
	}
	for i, l := range w.check.ledgers {
		leader := w.nodes[l.record.Leader].proc.parts[i].held.Log
		if leader.HighWatermark() != leader.End() {
			return fmt.Sprintf("%s is committed up to %d of %d", w.name(l.ref), leader.HighWatermark(), leader.End())
		}
		for _, m := range l.record.ISR {
			pt := w.nodes[m.BrokerID].proc.parts[i]
			if pt == nil || pt.log() == nil || pt.held.End() != leader.End() || pt.held.HighWatermark() != leader.HighWatermark() ||
				!l.forced && pt.held.LogStart() != leader.LogStart() {
				return fmt.Sprintf("%s: broker %d is not where its leader is", w.name(l.ref), m.BrokerID)
			}
		}
		if c := w.consumers[i]; !l.forced && c.at != leader.HighWatermark() {
			return fmt.Sprintf("%s was read up to %d of %d", w.name(l.ref), c.at, leader.HighWatermark())
		}
	}
	return ""
}

// judge compares what the producers were told with what every replica holds.
func (w *world) judge() {
	for i, l := range w.check.ledgers {
		if l.forced {
			continue
		}
		for _, m := range l.record.ISR {
			pt := w.nodes[m.BrokerID].proc.parts[i]
			w.check.compare(pt, pt.held.ReplicaStart(), pt.held.HighWatermark(), false)
		}
		leader := w.nodes[l.record.Leader].proc.parts[i].held.Log
		reads := w.readAll(leader)
		for _, p := range w.producers[2*i : 2*i+2] {
			sends := make([]history.Send, 0, len(p.history))
			for _, s := range p.history {
				if s.Outcome != history.Acked || s.Offset >= leader.LogStart() {
					sends = append(sends, s)
				}
			}
			found := reads[p.lane]
			if !p.idempotent {
				// What was never answered can still arrive behind what was sent later.
				found = slices.DeleteFunc(found, func(r history.Read) bool { return p.history[p.places[r.Number]].Outcome == history.Unknown })
			}
			if r := history.Check(sends, found); !r.OK() {
				w.fail(invHistory, "%s producer %d: %s: %s", w.name(l.ref), p.lane, r.String(), r.First)
			}
		}
	}
}

// readAll reads a log, by producer.
func (w *world) readAll(l *log.Log) map[int32][]history.Read {
	out := map[int32][]history.Read{}
	var reader record.Reader
	var rec record.Record
	for at := l.LogStart(); at < l.HighWatermark(); {
		r, err := l.ReadRange(at, 64<<10, l.HighWatermark())
		w.must(err)
		buf := make([]byte, r.Len)
		w.must(r.ReadInto(buf))
		r.Release()
		for len(buf) > 0 {
			batch, rest, err := record.NextFrame(buf)
			w.must(err)
			w.must(reader.Reset(batch))
			for reader.Next(&rec) {
				if rec.Offset >= l.LogStart() {
					lane := int32(binary.BigEndian.Uint32(rec.Value[8:])) // #nosec G115 -- as it was written
					out[lane] = append(out[lane], history.Read{Partition: lane, Offset: rec.Offset, Number: binary.BigEndian.Uint64(rec.Value)})
				}
			}
			w.must(reader.Err())
			buf = rest
		}
		at = r.Next
	}
	return out
}
