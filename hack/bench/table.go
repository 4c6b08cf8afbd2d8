package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

const (
	verdictPass = "pass"
	verdictFail = "FAIL"
)

// row is one figure and its target.
type row struct {
	what string
	unit string
	// target of 0 is none: the row is there for comparison.
	target, measured float64
	// atMost: lower is better.
	atMost bool
	note   string
}

// ratio is 1 or more when the target is met.
func (r row) ratio() float64 {
	switch {
	case r.target == 0:
		return 1
	case r.measured == 0:
		return 0
	case r.atMost:
		return r.target / r.measured
	default:
		return r.measured / r.target
	}
}

func (r row) verdict() string {
	switch q := r.ratio(); {
	case r.target == 0:
		return ""
	case q >= 1:
		return verdictPass
	case q >= 0.7:
		return "short"
	default:
		return verdictFail
	}
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT\tTARGET\tMEASURED\tRATIO\tVERDICT\tNOTE")
	for _, r := range rows {
		target, ratio := "-", "-"
		if r.target != 0 {
			sign := "≥"
			if r.atMost {
				sign = "≤"
			}
			target = fmt.Sprintf("%s %s %s", sign, figure(r.target), r.unit)
			ratio = fmt.Sprintf("%.2f", r.ratio())
		}
		fmt.Fprintf(t, "%s\t%s\t%s %s\t%s\t%s\t%s\n", r.what, target, figure(r.measured), r.unit, ratio, r.verdict(), r.note)
	}
	_ = t.Flush()
}

// figure shows three digits or more.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
