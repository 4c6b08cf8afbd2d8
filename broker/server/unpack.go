package server

import (
	"context"
	"runtime"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/record"
)

const (
	// smallUnpacked is what a batch may expand to and stay expanded while its records are sent.
	smallUnpacked = 4 << 20
	// mostPasses bounds how often a larger batch is expanded to send all of it.
	mostPasses = 16
)

// newUnpackBudget returns the budget of decompression: as many of the largest default batches at a time as there are processors,
// eight at most. More at a time would not be faster, and a client that opens many streams must not multiply the memory. Nobody
// waits for a client while holding a share.
func newUnpackBudget() *budget {
	const one = record.MaxExpansion << 20
	return newBudget(int64(min(runtime.GOMAXPROCS(0), 8))*one, 0)
}

// unpacking waits for its turn when batch is compressed. What it may expand to is charged until release is called; nobody can know
// the true size before.
func (s *Server) unpacking(ctx context.Context, batch []byte, maxBatch int) (release func(), err error) {
	if h, err := record.ParseHeader(batch); err != nil || h.Attributes.Codec() == record.CodecNone {
		return func() {}, nil //nolint:nilerr // whoever reads the batch will say what is wrong with it
	}
	n := max(maxBatch, len(batch)) * record.MaxExpansion
	if err := s.unpacked.acquire(ctx, n); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { s.unpacked.release(n) }, nil
}

// validate checks a batch against the limits of its log.
func (s *Server) validate(ctx context.Context, batch []byte, cfg log.Config) (record.Header, error) {
	release, err := s.unpacking(ctx, batch, cfg.MaxBatchBytes)
	if err != nil {
		return record.Header{}, err
	}
	defer release()
	v := s.validators.Get().(*record.Validator)
	defer s.validators.Put(v)
	return v.Validate(batch, record.Limits{
		MaxBatchBytes: cfg.MaxBatchBytes, NowMS: s.cfg.Clock.Now().UnixMilli(), MaxAheadMS: cfg.MaxTimestampAhead.Milliseconds(),
	})
}

// batch sends the records of one batch, and reports whether it came to its end.
//
// A client that reads slowly must not keep a batch in memory that expands to a multiple of itself. So the records of a large one are
// collected up to a bound, the expanded bytes are let go of, and only then is anything sent; the batch is read again for the rest.
func (s *subscriber) batch(ctx context.Context, p *subscribed, batch []byte, maxBatch int) (whole bool, err error) {
	release, err := s.l.unpacking(ctx, batch, maxBatch)
	if err != nil {
		return false, err
	}
	if err := s.reader.Reset(batch); err != nil {
		release()
		return false, s.fail(p, corrupt(p, err))
	}
	size := s.reader.Size()
	if size <= smallUnpacked || s.reader.Header().Attributes.Codec() == record.CodecNone {
		release()
		return true, s.records(p)
	}
	s.hold = hold{on: true, most: max(smallUnpacked, size/mostPasses)}
	err = s.records(p)
	whole = !s.hold.full()
	*s.reader = newReader()
	release()
	if err != nil {
		return false, err
	}
	return whole, s.letGo()
}

// newReader returns a reader of what the log has checked when it read it.
func newReader() record.Reader { return record.Reader{SkipCRC: true} }

// hold keeps answers back while they must not be sent.
type hold struct {
	on      bool
	most    int // bytes; no more are added above it
	bytes   int
	answers [][]*runnelv1.SubscribedRecord
}

func (h *hold) add(records []*runnelv1.SubscribedRecord, bytes int) {
	h.answers = append(h.answers, records)
	h.bytes += bytes
}

func (h *hold) full() bool { return h.on && h.bytes >= h.most }

// letGo sends what was held back.
func (s *subscriber) letGo() error {
	held := s.hold.answers
	s.hold = hold{}
	for i, records := range held {
		held[i] = nil
		if err := s.stream.Send(&runnelv1.SubscribeResponse{Records: records}); err != nil {
			return err
		}
	}
	return nil
}
