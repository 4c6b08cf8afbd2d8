package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const pass = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
	tests := []struct {
		name    string
		in      string
		want    []string // parts of the output
		not     string   // absent from the output
		wantErr string   // "" for success
	}{
		{"passes", pass, []string{"ok  \tp\t0.1s\n", "1 passed, 0 failed, 0 skipped\n"}, "chatter", ""},
		{"nothing ran", "", nil, "", "no test passed"},
		{
			"package without tests", pass + `{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`, []string{"1 passed, 0 failed, 0 skipped"}, "", "",
		},
		{
			"fails", pass + `{"Action":"output","Package":"q","Test":"TestB","Output":"b_test.go:1: wrong\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`, []string{"b_test.go:1: wrong\n", "FAIL\tq", "1 passed, 1 failed, 0 skipped"}, "", "1 tests failed\nfailed: q",
		},
		{
			"skips", pass + `{"Action":"output","Package":"p","Test":"TestC","Output":"not on this machine\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
`, []string{"SKIPPED p TestC", "1 passed, 0 failed, 1 skipped"}, "", "1 tests were skipped",
		},
		{
			"does not build", pass + `{"ImportPath":"q","Action":"build-output","Output":"q/q.go:1: undefined: x\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
`, []string{"undefined: x", "FAIL\tq [build failed]"}, "", "failed: q",
		},
		{
			"times out", pass + `{"Action":"run","Package":"q","Test":"TestSlow"}
{"Action":"output","Package":"q","Test":"TestSlow","Output":"panic: test timed out\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t600s\n"}
{"Action":"fail","Package":"q"}
`, []string{"cut off: q TestSlow", "panic: test timed out"}, "", "q TestSlow",
		},
		{"complaint of the go command", pass + "pattern ./nowhere: no such folder\n", []string{"no such folder"}, "", "no such folder"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			err := report(strings.NewReader(tt.in), &out)
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output:\n%s\nwant it to contain %q", out.String(), want)
				}
			}
			if tt.not != "" && strings.Contains(out.String(), tt.not) {
				t.Errorf("output:\n%s\nwant it without %q", out.String(), tt.not)
			}
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("report() = %v, want success", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("report() = %v, want an error with %q", err, tt.wantErr)
			}
		})
	}
}
