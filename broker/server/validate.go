package server

import (
	"context"
	"runtime"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/record"
)

// newUnpackBudget returns the budget of decompression: as many of the largest default batches at a time as there are processors,
// eight at most. More at a time would not be faster, and a client that opens many streams must not multiply the memory.
func newUnpackBudget() *budget {
	const one = record.MaxExpansion << 20
	return newBudget(int64(min(runtime.GOMAXPROCS(0), 8))*one, 0)
}

// validate checks a batch against the limits of its log. What a compressed batch may expand to is charged for as long as it is
// being checked; nobody can know the true size before.
func (s *Server) validate(ctx context.Context, batch []byte, cfg log.Config) (record.Header, error) {
	if h, err := record.ParseHeader(batch); err == nil && h.Attributes.Codec() != record.CodecNone {
		n := cfg.MaxBatchBytes * record.MaxExpansion
		if err := s.unpacked.acquire(ctx, n); err != nil {
			return record.Header{}, context.Cause(ctx)
		}
		defer s.unpacked.release(n)
	}
	v := s.validators.Get().(*record.Validator)
	defer s.validators.Put(v)
	return v.Validate(batch, record.Limits{
		MaxBatchBytes: cfg.MaxBatchBytes, NowMS: s.cfg.Clock.Now().UnixMilli(), MaxAheadMS: cfg.MaxTimestampAhead.Milliseconds(),
	})
}
