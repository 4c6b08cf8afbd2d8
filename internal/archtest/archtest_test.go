package archtest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repositoryRoot is where this package's tests run, two folders up.
const repositoryRoot = "../.."

func TestImportsPointDown(t *testing.T) {
	graph, err := Read(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range []string{"api/runnel/v1", "internal/archtest", "record"} {
		if len(graph[known]) == 0 {
			t.Errorf("Read() found no imports in %s, so the rules would check too little; it read %d packages", known, len(graph))
		}
	}
	for _, v := range Check(graph, Rules) {
		t.Error(v)
	}
}

func TestRulesAreWellFormed(t *testing.T) {
	for _, rule := range Rules {
		if len(rule.Packages) == 0 || rule.Why == "" || len(rule.Only)+len(rule.Never) == 0 {
			t.Errorf("rule %+v: packages, a limit and a reason are needed", rule)
		}
		for _, pattern := range slices.Concat(rule.Packages, rule.Only, rule.Never) {
			if strings.HasPrefix(pattern, Module) || strings.HasPrefix(pattern, "./") || strings.HasSuffix(pattern, "/") {
				t.Errorf("rule %q: pattern %q has to be a folder relative to the module, or an import path", rule.Why, pattern)
			}
		}
	}
}

// TestRulesCatch breaks each direction that the design names and expects the rule to see it.
func TestRulesCatch(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string // file → imports
		want  string            // "" for an import that is allowed
	}{
		{"record imports log", map[string]string{"record/a.go": "runnel.dev/runnel/broker/log", "broker/log/b.go": ""}, "record/a.go:3: record → broker/log: "},
		{"record imports vfs", map[string]string{"record/index/a.go": "runnel.dev/runnel/internal/vfs", "internal/vfs/b.go": ""}, "record/index → internal/vfs"},
		{"record imports record", map[string]string{"record/index/a.go": "runnel.dev/runnel/record", "record/b.go": ""}, ""},
		{"record imports another module", map[string]string{"record/a.go": "github.com/klauspost/compress/zstd"}, ""},
		{"segment imports log", map[string]string{"broker/segment/a.go": "runnel.dev/runnel/broker/log", "broker/log/b.go": ""}, "broker/segment → broker/log"},
		{"log imports segment", map[string]string{"broker/log/a.go": "runnel.dev/runnel/broker/segment", "broker/segment/b.go": ""}, ""},
		{"log imports metadata", map[string]string{"broker/log/a.go": "runnel.dev/runnel/broker/metadata", "broker/metadata/b.go": ""}, "broker/log → broker/metadata"},
		{"log imports etcd", map[string]string{"broker/log/a.go": "go.etcd.io/etcd/client/v3"}, "broker/log → go.etcd.io/etcd/client/v3"},
		{"log imports storage", map[string]string{"broker/log/a.go": "runnel.dev/runnel/broker/storage", "broker/storage/b.go": ""}, "broker/log → broker/storage"},
		{"storage imports log", map[string]string{"broker/storage/a.go": "runnel.dev/runnel/broker/log", "broker/log/b.go": ""}, ""},
		{"storage imports metadata", map[string]string{"broker/storage/a.go": "runnel.dev/runnel/broker/metadata", "broker/metadata/b.go": ""}, "broker/storage → broker/metadata"},
		{"metadata imports storage", map[string]string{"broker/metadata/a.go": "runnel.dev/runnel/broker/storage", "broker/storage/b.go": ""}, "broker/metadata → broker/storage"},
		{"replica imports net", map[string]string{"broker/replica/a.go": "net"}, "broker/replica → net"},
		{"partition imports server", map[string]string{"broker/partition/a.go": "runnel.dev/runnel/broker/server", "broker/server/b.go": ""}, "broker/partition → broker/server"},
		{"server imports partition", map[string]string{"broker/server/a.go": "runnel.dev/runnel/broker/partition", "broker/partition/b.go": ""}, ""},
		{"client imports broker", map[string]string{"client/a.go": "runnel.dev/runnel/broker", "broker/b.go": ""}, "client → broker"},
		{
			"client reaches broker through internal",
			map[string]string{"client/a.go": "runnel.dev/runnel/internal/x", "internal/x/b.go": "runnel.dev/runnel/broker/log", "broker/log/c.go": ""},
			"client → internal/x → broker/log",
		},
		{"client's test imports broker", map[string]string{"client/a_test.go": "runnel.dev/runnel/broker", "broker/b.go": ""}, ""},
		{"tiering imports broker", map[string]string{"tiering/manifest/a.go": "runnel.dev/runnel/broker/log", "broker/log/b.go": ""}, "tiering/manifest → broker/log"},
		{"operator imports broker", map[string]string{"operator/controller/a.go": "runnel.dev/runnel/broker/config", "broker/config/b.go": ""}, "operator/controller → broker/config"},
		{"operator imports tiering", map[string]string{"operator/controller/a.go": "runnel.dev/runnel/tiering", "tiering/b.go": ""}, "operator/controller → tiering"},
		{"operator imports client", map[string]string{"operator/controller/a.go": "runnel.dev/runnel/client", "client/b.go": ""}, ""},
		{"operator imports Kubernetes", map[string]string{"operator/controller/a.go": "k8s.io/api/core/v1"}, ""},
		{"broker imports Kubernetes", map[string]string{"broker/a.go": "k8s.io/api/core/v1"}, "broker → k8s.io/api/core/v1"},
		{"client's test imports Kubernetes", map[string]string{"client/a_test.go": "k8s.io/api/core/v1"}, "client → k8s.io/api/core/v1"},
		{
			"tiering reaches Kubernetes through internal",
			map[string]string{"tiering/a.go": "runnel.dev/runnel/internal/x", "internal/x/b.go": "k8s.io/client-go/rest"},
			"tiering → internal/x → k8s.io/client-go/rest",
		},
		{"vfs imports record", map[string]string{"internal/vfs/a.go": "runnel.dev/runnel/record", "record/b.go": ""}, "internal/vfs → record"},
		{"broker imports a command", map[string]string{"broker/a.go": "runnel.dev/runnel/cmd/runnel", "cmd/runnel/b.go": ""}, "broker → cmd/runnel"},
		{"broker imports client", map[string]string{"broker/server/a.go": "runnel.dev/runnel/client", "client/b.go": ""}, "broker/server → client"},
		{"command imports both", map[string]string{"cmd/runnel/a.go": "runnel.dev/runnel/broker", "broker/b.go": ""}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			graph, err := Read(tree(t, tt.files))
			if err != nil {
				t.Fatal(err)
			}
			got := Check(graph, Rules)
			if tt.want == "" {
				if len(got) != 0 {
					t.Errorf("Check() = %v, want no violation", got)
				}
				return
			}
			if !slices.ContainsFunc(got, func(v Violation) bool { return strings.Contains(v.String(), tt.want) }) {
				t.Errorf("Check() = %v, want one with %q", got, tt.want)
			}
		})
	}
}

func TestReadSkipsWhatIsNotOurs(t *testing.T) {
	root := tree(t, map[string]string{
		"record/a.go":              "fmt",
		"record/testdata/b.go":     "runnel.dev/runnel/broker",
		"hack/tools/buf/b.go":      "runnel.dev/runnel/broker",
		"hack/tools/buf/go.mod":    "",
		".cache/c.go":              "runnel.dev/runnel/broker",
		"record/not-go/readme.txt": "",
	})
	graph, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := graph.Packages(), []string{"record"}; !slices.Equal(got, want) {
		t.Errorf("Packages() = %q, want %q", got, want)
	}
}

func TestReadRefusesNothingAndNonsense(t *testing.T) {
	if _, err := Read(t.TempDir()); !errors.Is(err, ErrNoGoFiles) {
		t.Errorf("Read(empty folder) = %v, want ErrNoGoFiles", err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "bad.go"), []byte("package\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root); err == nil || !strings.Contains(err.Error(), "bad.go") {
		t.Errorf("Read(file that does not parse) = %v, want an error that names bad.go", err)
	}
}

// tree writes files, each with the one import that is named ("" for none), and returns their root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, imported := range files {
		var text string
		switch {
		case filepath.Ext(name) != ".go":
		case imported == "":
			text = "package p\n"
		default:
			text = "package p\n\nimport _ \"" + imported + "\"\n"
		}
		full := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
