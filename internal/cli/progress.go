package cli

import (
	"fmt"
	"strings"
	"time"
)

const (
	progressOnTerminal = 200 * time.Millisecond
	progressElsewhere  = 10 * time.Second
	barWidth           = 24
)

// progress shows that long work goes on: a line that is drawn again on a terminal, a new line now and then elsewhere. Not safe for
// concurrent use.
type progress struct {
	a       *app
	what    string
	began   time.Time
	shown   time.Time
	visible bool
}

func (a *app) startProgress(what string) *progress {
	now := a.Clock.Now()
	return &progress{a: a, what: what, began: now, shown: now}
}

// update shows a count, bytes, and with a known total (0: unknown) how much of the bytes that is. It costs a clock reading.
func (p *progress) update(count, bytes, total int64) {
	now := p.a.Clock.Now()
	every := progressElsewhere
	if p.a.Terminal {
		every = progressOnTerminal
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	line := fmt.Sprintf("%s %s, %s, %s/s", groupDigits(count), p.what, roundBytes(bytes), roundBytes(int64(float64(bytes)/now.Sub(p.began).Seconds())))
	if total > 0 {
		done := min(1, float64(bytes)/float64(total))
		full := int(done * barWidth)
		line = fmt.Sprintf("[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*done, line)
	}
	if !p.a.Terminal {
		fmt.Fprintln(p.a.Err, line)
		return
	}
	fmt.Fprintf(p.a.Err, "\r%s\x1b[K", line)
	p.visible = true
}

// done takes the line away.
func (p *progress) done() {
	if p.visible {
		fmt.Fprint(p.a.Err, "\r\x1b[K")
		p.visible = false
	}
}
