package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// line is one row of the table: a figure per system.
type line struct {
	what, unit string
	of         func(measured) float64
	// atMost: lower is better, and the ratio is turned around.
	atMost bool
}

var lines = []line{
	{what: "produce, 1 KiB records, all acks", unit: "MB/s", of: func(m measured) float64 { return m.big.mbPerSecond() }},
	{what: "produce, 100 B records, all acks", unit: "k records/s", of: func(m measured) float64 { return m.small.recordsPerSecond() / 1e3 }},
	{what: "ack latency at 20 MB/s, p50", unit: "ms", of: func(m measured) float64 { return m.paced.p50.Seconds() * 1e3 }, atMost: true},
	{what: "ack latency at 20 MB/s, p99", unit: "ms", of: func(m measured) float64 { return m.paced.p99.Seconds() * 1e3 }, atMost: true},
	{what: "consume, 1 KiB records", unit: "MB/s", of: func(m measured) float64 { return m.read.mbPerSecond() }},
}

// report prints the table. Ratios are Runnel's to the other's; more than 1 is better for Runnel in every row.
func report(w io.Writer, disk float64, all []measured) {
	fmt.Fprintf(w, "disk: three writers, fdatasync per MiB: %.0f MB/s together; a third is %.0f, 75 %% of that %.0f\n", disk, disk/3, disk/4)
	for _, m := range all {
		fmt.Fprintf(w, "%s: an ack means: %s\n", m.system.name(), m.system.durability())
	}
	own := slices.IndexFunc(all, func(m measured) bool { return m.system.name() == "runnel" })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := []string{"WHAT", "UNIT"}
	for _, m := range all {
		head = append(head, strings.ToUpper(m.system.name()))
	}
	for i, m := range all {
		if own >= 0 && i != own {
			head = append(head, "RUNNEL/"+strings.ToUpper(m.system.name()))
		}
	}
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, l := range lines {
		row := []string{l.what, l.unit}
		for _, m := range all {
			row = append(row, fmt.Sprintf("%.4g", l.of(m)))
		}
		for i, m := range all {
			if own < 0 || i == own {
				continue
			}
			ratio := l.of(all[own]) / l.of(m)
			if l.atMost {
				ratio = 1 / ratio
			}
			row = append(row, fmt.Sprintf("%.2f", ratio))
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush()
}
