package cli

import (
	"path/filepath"
	"testing"
)

func TestEtcdRecoverUsage(t *testing.T) {
	s := newShell(t)
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"nothing":              {nil, "--endpoints and --brokers are needed"},
		"no brokers":           {[]string{"--endpoints", "http://127.0.0.1:1"}, "--endpoints and --brokers are needed"},
		"data and brokers":     {[]string{"--data", t.TempDir(), "--brokers", "127.0.0.1:1"}, "--data says where"},
		"half a discard":       {[]string{"--endpoints", "http://127.0.0.1:1", "--brokers", "127.0.0.1:1", "--discard-cluster", "x"}, "both or neither"},
		"discards its own":     {[]string{"--endpoints", "http://127.0.0.1:1", "--brokers", "b:1", "--discard-cluster", "x", "--cluster-id", "x"}, "two different ids"},
		"ids that are none":    {[]string{"--accept-missing", "b"}, "--accept-missing"},
		"a cluster's bad name": {[]string{"--endpoints", "http://127.0.0.1:1", "--brokers", "127.0.0.1:1", "--cluster", "a/b"}, "a/b"},
		"no waiting":           {[]string{"--wait", "0s"}, "want more than 0s"},
		"an argument":          {[]string{"now"}, "now"},
	} {
		t.Run(name, func(t *testing.T) {
			s.run(append([]string{"etcd", "recover"}, tc.args...)...).want(t, exitUsage, tc.says)
		})
	}
	s.run("etcd", "recover", "--data", filepath.Join(t.TempDir(), "none")).want(t, exitFailed, "no dev cluster here")
	s.run("etcd", "recover", "--endpoints", "http://127.0.0.1:1", "--brokers", "127.0.0.1:1", "--snapshot", filepath.Join(t.TempDir(), "none")).
		want(t, exitFailed, "no such file")
	s.run("etcd", "recover", "--endpoints", "http://127.0.0.1:1", "--brokers", "127.0.0.1:1", "--timeout", "200ms").want(t, exitFailed, "metadata store unavailable")
}
