package partition

import "context"

// Truncate cuts the log as EffectTruncate does.
func (p *Partition) Truncate(_ context.Context, to int64) error {
	p.truncate(to)
	return nil
}
