package cli

import (
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
)

func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"terminal", true, "\r[######..................]  25%  1,000 records, 512KiB, 512KiB/s\x1b[K\r2,000 records, 1.00MiB, 87.4KiB/s\x1b[K\r\x1b[K"},
		{"elsewhere", false, "2,000 records, 1.00MiB, 87.4KiB/s\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clk := clock.NewFake(time.Unix(1_000, 0))
			var out buffer
			a := &app{Env: Env{Err: &out, Clock: clk, Terminal: tt.terminal}}
			p := a.startProgress("records")
			p.update(1, 1, 0) // too early
			clk.Advance(time.Second)
			p.update(1_000, 512<<10, 2<<20)
			clk.Advance(time.Millisecond)
			p.update(1_001, 512<<10, 2<<20) // too soon
			clk.Advance(10*time.Second + 718*time.Millisecond)
			p.update(2_000, 1<<20, 0)
			p.done()
			p.done()
			if got := out.String(); got != tt.want {
				t.Errorf("output %q, want %q", got, tt.want)
			}
		})
	}
}
