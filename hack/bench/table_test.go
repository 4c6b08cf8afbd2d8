package main

import (
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	tests := []struct {
		row  row
		want string
	}{
		{row{target: 100, measured: 100}, "pass"},
		{row{target: 100, measured: 99}, "short"},
		{row{target: 100, measured: 70}, "short"},
		{row{target: 100, measured: 69}, "FAIL"},
		{row{target: 100, measured: 0}, "FAIL"},
		{row{target: 5, measured: 5, atMost: true}, "pass"},
		{row{target: 5, measured: 7, atMost: true}, "short"},
		{row{target: 5, measured: 8, atMost: true}, "FAIL"},
		{row{measured: 3}, ""},
	}
	for _, tt := range tests {
		if got := tt.row.verdict(); got != tt.want {
			t.Errorf("%+v: verdict %q, want %q", tt.row, got, tt.want)
		}
	}
}

func TestMachineIsDescribed(t *testing.T) {
	if got := describeMachine(t.TempDir()); strings.Contains(got, "unknown") || strings.Contains(got, "\n") {
		t.Errorf("describeMachine() = %q, want one line with every fact", got)
	}
}
