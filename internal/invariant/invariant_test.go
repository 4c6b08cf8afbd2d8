package invariant_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"runnel.dev/runnel/internal/invariant"
)

func TestCheck(t *testing.T) {
	if !invariant.Enabled() {
		t.Fatal("checks are off in a test binary")
	}
	invariant.Check(true, "never shown")
	defer func() {
		if got := recover(); got != "invariant broken: end 5 before start 7" {
			t.Errorf("got panic %v", got)
		}
	}()
	invariant.Check(false, "end %d before start %d", 5, 7)
	t.Error("no panic")
}

// An ordinary build passes over a broken invariant, one with the tag does not.
func TestBuildTag(t *testing.T) {
	src := filepath.Join(t.TempDir(), "main.go")
	const program = `package main

import "runnel.dev/runnel/internal/invariant"

func main() { invariant.Check(false, "broken on purpose") }
`
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file inside the module may import internal packages, so the program is
	// overlaid on one that need not exist.
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	main := filepath.Join(wd, "overlaid", "main.go")
	if err := os.WriteFile(overlay, []byte(`{"Replace": {"`+main+`": "`+src+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(tags string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", "run", "-tags", tags, "-overlay", overlay, "./overlaid")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(""); err != nil {
		t.Errorf("without the tag: %v\n%s", err, out)
	}
	if out, err := run("invariants"); err == nil || !strings.Contains(out, "invariant broken: broken on purpose") {
		t.Errorf("with the tag: %v\n%s", err, out)
	}
}
