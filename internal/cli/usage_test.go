package cli

import (
	"strings"
	"testing"
)

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		line string
		want []string
	}{
		{"frobnicate", []string{`unknown command "frobnicate"`, "runnel --help"}},
		{"topci", []string{"did you mean topic?"}},
		{"topic frobnicate", []string{"frobnicate", "runnel topic --help"}},
		{"topic create", []string{"got 0 arguments, want: runnel topic create NAME"}},
		{"topic create a b", []string{"got 2 arguments"}},
		{"topic create a -p -1", []string{"partitions -1"}},
		{"topic create a -p many", []string{`--partitions "many": invalid syntax`}},
		{"topic create a -p 99999999999", []string{`--partitions "99999999999": value out of range`}},
		{"topic create a --partition 3", []string{"did you mean --partitions?"}},
		{"topic create a --config retention", []string{"want key=value"}},
		{"topic create a --config speed=9", []string{`unknown setting "speed"`, "retention, retention-bytes"}},
		{"topic create a --config retention=soon --config segment-bytes=-3 --config cleanup-policy=x --config min-in-sync-replicas=most", []string{
			`setting retention: duration "soon"`, `setting segment-bytes: size "-3"`, "want delete or compact", "want a number",
		}},
		{"topic create a --config max-batch-bytes=3GiB", []string{"want at most 16MiB"}},
		{"topic create a --config compression=rar", []string{"zstd"}},
		{"topic update a", []string{"nothing to change"}},
		{"topic update a --reset speed", []string{`unknown setting "speed"`}},
		{"topic update a --generation -1", []string{"--generation -1: want 1 or more"}},
		{"topic update a --config retention=99999999999d", []string{"up to 106751d"}},
		{"topic trim a", []string{"--before is missing"}},
		{"topic trim a --before soon", []string{`"soon"`, "latest"}},
		{"topic list -o xml", []string{`"xml"`, "table, json, yaml or name"}},
		{"topic list --timeout 0s", []string{"more than 0s"}},
		{"produce", []string{"got 0 arguments"}},
		{"produce a --linger 10h", []string{"--linger 10h0m0s, --delivery-timeout 2m0s"}},
		{"produce a --compression rar", []string{`--compression "rar": want none, gzip`}},
		{"dev --port 9", []string{"--port 9: want 1024 to 65000"}},
		{"log dump x -o json", []string{"lines of text"}},
		{"completion ksh", []string{`unknown command "ksh"`}},
		{"produce a -f %q", []string{"unknown field %q"}},
		{"produce a -f %v", []string{"what ends a record"}},
		{`produce a -f %k%v\n`, []string{"nothing tells where the first ends"}},
		{`produce a -f %o:%v\n`, []string{"cannot be read back"}},
		{`produce a -f %k\n`, []string{"no %v"}},
		{`produce a -f %v\q`, []string{`unknown escape \q`}},
		{`produce a -f %v\xg0`, []string{"hexadecimal"}},
		{`produce a -f %v\`, []string{"ends within"}},
		{`produce a -f %p:%v\n --partition 1`, []string{"exclude each other"}},
		{"produce a --key-sep : -f json", []string{"exclude each other"}},
		{"produce a --acks some -H x --compression rar --partition -4 --linger -1s", []string{"all or leader", `-H "x"`, "rar", "--partition -4", "-1s"}},
		{"consume a --from yesterday -n -3 -p -1 -f %z", []string{"yesterday", "-n -3", "-p -1", "%z"}},
		{"consume a -o yaml", []string{"records have their own formats"}},
		{"consume a -o json -f raw", []string{"records have their own formats"}},
		{"partition describe", []string{"got 0 arguments"}},
		{"partition describe a 1 x", []string{`"x"`}},
		{"bench produce --size 3B --acks none --rate fast -p 0", []string{"record size 3", "acks", `"fast"`, "--partitions 0"}},
		{"bench", nil},
		{"dev --brokers 17", []string{"want 1 to 16"}},
		{"version x", []string{"unknown command"}},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			s := &shell{t: t} // no cluster: a fault is found before anything is dialled
			r := s.run(strings.Fields(tt.line)...)
			code := exitUsage
			if tt.want == nil {
				code = exitOK // a command that only holds others shows its help
			}
			r.want(t, code, tt.want...)
			if tt.want != nil && r.out != "" {
				t.Errorf("standard output %q, want nothing", r.out)
			}
		})
	}
}

func TestNoBrokerSaysWhatToTry(t *testing.T) {
	s := &shell{t: t}
	s.run("topic", "list", "--server", "127.0.0.1:1", "--timeout", "200ms").want(t, exitFailed, "no broker answers at 127.0.0.1:1: dial tcp 127.0.0.1:1: ", "runnel dev --detach", "--server")
	s.run("topic", "list", "--server", "http://x").want(t, exitFailed, "runnel://")
	s.run("topic", "list", "--server", "127.0.0.1:1", "--tls-ca-file", "/nonexistent/ca.pem").want(t, exitFailed, "/nonexistent/ca.pem")
}

func TestVersion(t *testing.T) {
	s := &shell{t: t}
	if got := s.must("version"); !strings.HasPrefix(got, "runnel ") || strings.Count(got, "\n") != 1 {
		t.Errorf("output %q, want one line", got)
	}
	if got := s.must("version", "-o", "json"); !strings.Contains(got, `"version"`) {
		t.Errorf("output %q, want JSON", got)
	}
	s.must("version", "-o", "name")
	s.must("--version")
	s.must("--help")
}
