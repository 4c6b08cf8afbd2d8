package fakebroker

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// topic is one topic. Guarded by the cluster's mu, as everything here.
type topic struct {
	name       string
	id         ids.TopicID
	generation int64
	config     *runnelv1.TopicConfig
	owner      string
	replicas   int
	partitions []*partition
}

// partition is a log in memory: what is appended can be read at once.
type partition struct {
	topic  *topic
	index  int32
	leader int32 // -1: none
	epoch  int32

	replicas, isr    []int32
	adding, removing []int32

	start, end int64
	batches    [][]byte // stamped, in offset order
	producers  map[int64]*producer
}

// producer is what a partition remembers of one: the sequence that comes next, and its last batches.
type producer struct {
	epoch  int16
	next   int32
	recent []appended
}

type appended struct {
	sequence, count int32
	base            int64
}

// remembered is how many batches per producer are recognised as duplicates.
const remembered = 5

// Error is how a call is refused, as a broker would.
type Error struct {
	Code      codes.Code
	Reason    string
	Message   string
	Retriable bool
	Metadata  map[string]string
	hint      *runnelv1.LeaderHint
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

func (e *Error) item() *runnelv1.Error {
	return &runnelv1.Error{
		Code: int32(e.Code), Reason: e.Reason, Message: e.Message, Retriable: e.Retriable, Metadata: e.Metadata, Leader: e.hint,
	}
}

func refuse(code codes.Code, reason string, retriable bool, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Retriable: retriable, Message: fmt.Sprintf(format, args...)}
}

// append validates, recognises duplicates, stamps and keeps a copy of one batch.
func (p *partition) append(v *record.Validator, b []byte, appendTime int64) (base int64, duplicate bool, err *Error) {
	h, verr := v.Validate(b, record.Limits{MaxBatchBytes: int(p.topic.config.GetMaxBatchBytes())})
	if verr != nil {
		return -1, false, refuse(codes.InvalidArgument, batchReason(verr), false, "%v", verr)
	}
	if h.ProducerID >= 0 {
		if base, dup, err := p.sequence(h); dup || err != nil {
			return base, dup, err
		}
	}
	kept := slices.Clone(b)
	record.Stamp(kept, p.end, p.epoch)
	if appendTime >= 0 {
		record.StampLogAppendTime(kept, appendTime)
	}
	base = p.end
	p.end += int64(h.Count)
	p.batches = append(p.batches, kept)
	if h.ProducerID >= 0 {
		p.remember(h, base)
	}
	return base, false, nil
}

// sequence checks a batch's place among its producer's.
func (p *partition) sequence(h record.Header) (base int64, duplicate bool, err *Error) {
	pr := p.producers[h.ProducerID]
	switch {
	case pr == nil && h.BaseSequence != 0:
		return -1, false, refuse(codes.FailedPrecondition, "UNKNOWN_PRODUCER", false, "producer %d is unknown and begins at sequence %d", h.ProducerID, h.BaseSequence)
	case pr == nil:
		p.producers[h.ProducerID] = &producer{epoch: h.ProducerEpoch}
		return 0, false, nil
	case h.ProducerEpoch < pr.epoch:
		return -1, false, refuse(codes.FailedPrecondition, "PRODUCER_FENCED", false, "producer epoch %d, current %d", h.ProducerEpoch, pr.epoch)
	case h.ProducerEpoch > pr.epoch:
		pr.epoch, pr.next, pr.recent = h.ProducerEpoch, 0, nil
	}
	for _, a := range pr.recent {
		if a.sequence == h.BaseSequence && a.count == h.Count {
			return a.base, true, nil
		}
	}
	if h.BaseSequence != pr.next {
		return -1, false, refuse(codes.FailedPrecondition, "OUT_OF_ORDER_SEQUENCE", false, "sequence %d, expected %d", h.BaseSequence, pr.next)
	}
	return 0, false, nil
}

func batchReason(err error) string {
	switch {
	case isA(err, record.ErrTooLarge):
		return "BATCH_TOO_LARGE"
	case isA(err, record.ErrCorrupt):
		return "CORRUPT_BATCH"
	}
	return "INVALID_BATCH"
}

// read returns whole batches from offset on, at least one and up to maxBytes, and the offset behind them.
func (p *partition) read(offset int64, maxBytes int) (batches []byte, next int64, err *Error) {
	if offset < p.start || offset > p.end {
		e := refuse(codes.OutOfRange, "OFFSET_OUT_OF_RANGE", false, "offset %d is outside %d to %d", offset, p.start, p.end)
		e.Metadata = map[string]string{
			"asked": fmt.Sprint(offset), "earliest": fmt.Sprint(p.start), "latest": fmt.Sprint(p.end),
		}
		return nil, 0, e
	}
	next = offset
	for _, b := range p.batches {
		h, perr := record.ParseHeader(b)
		if perr != nil || h.NextOffset() <= offset {
			continue
		}
		if len(batches) > 0 && len(batches)+len(b) > maxBytes {
			break
		}
		batches = append(batches, b...)
		next = h.NextOffset()
	}
	return batches, next, nil
}

// offsetFor looks a position up.
func (p *partition) offsetFor(pos *runnelv1.Position) (offset, timestamp int64) {
	switch at := pos.GetAt().(type) {
	case *runnelv1.Position_Latest:
		return p.end, -1
	case *runnelv1.Position_Offset:
		return at.Offset, -1
	case *runnelv1.Position_TimestampMs:
		offset, timestamp = p.end, -1
		p.each(func(r Record) bool {
			if r.Offset >= p.start && r.TimestampMS >= at.TimestampMs {
				offset, timestamp = r.Offset, r.TimestampMS
				return false
			}
			return true
		})
		return offset, timestamp
	}
	return p.start, -1
}

// Record is one record in a log.
type Record struct {
	Offset      int64
	TimestampMS int64
	Key, Value  []byte
	Headers     []*runnelv1.Header
}

// each calls f for the records in order until it returns false.
func (p *partition) each(f func(Record) bool) {
	var reader record.Reader
	for _, b := range p.batches {
		if err := reader.Reset(b); err != nil {
			panic(fmt.Sprintf("fakebroker: %s/%d: %v", p.topic.name, p.index, err)) // it was validated
		}
		var r record.Record
		for reader.Next(&r) {
			out := Record{Offset: r.Offset, TimestampMS: r.Timestamp, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value)}
			for _, h := range r.Headers {
				out.Headers = append(out.Headers, &runnelv1.Header{Key: string(h.Key), Value: slices.Clone(h.Value)})
			}
			if !f(out) {
				return
			}
		}
	}
}

// cut drops the batches that reach beyond end, and makes the producers' state again from those that are left.
func (p *partition) cut(end int64) {
	kept := p.batches[:0]
	p.end = p.start
	clear(p.producers)
	for _, b := range p.batches {
		h, err := record.ParseHeader(b)
		if err != nil || h.NextOffset() > end {
			break
		}
		kept = append(kept, b)
		p.end = h.NextOffset()
		if h.ProducerID >= 0 {
			p.remember(h, h.BaseOffset)
		}
	}
	clear(p.batches[len(kept):])
	p.batches = kept
}

// remember notes the batch of a producer.
func (p *partition) remember(h record.Header, base int64) {
	pr := p.producers[h.ProducerID]
	if pr == nil {
		pr = &producer{epoch: h.ProducerEpoch}
		p.producers[h.ProducerID] = pr
	}
	pr.recent = append(pr.recent, appended{h.BaseSequence, h.Count, base})
	if len(pr.recent) > remembered {
		pr.recent = pr.recent[1:]
	}
	pr.next = (h.LastSequence() + 1) & 0x7fffffff
}

// trim moves the log start; -1 stands for the end.
func (p *partition) trim(before int64) *Error {
	if before < 0 {
		before = p.end
	}
	if before > p.end {
		return refuse(codes.OutOfRange, "OFFSET_OUT_OF_RANGE", false, "offset %d lies behind the end %d", before, p.end)
	}
	p.start = max(p.start, before)
	p.batches = slices.DeleteFunc(p.batches, func(b []byte) bool {
		h, err := record.ParseHeader(b)
		return err == nil && h.NextOffset() <= p.start
	})
	return nil
}
