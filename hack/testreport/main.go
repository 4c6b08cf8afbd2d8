// Command testreport reads the output of `go test -json`, prints what a person wants to see of it, and fails when anything
// failed or was skipped: a test that does not run checks nothing.
//
//	go test -json ./... | go run ./hack/testreport
//
// It prints go test's closing line of each package, the whole output of each failed test, and a count.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Output      string
	FailedBuild string
}

// id names a test, or a package's own output when test is empty.
type id struct{ pkg, test string }

// report copies what matters from r to w. It returns an error when a test, a package or a build failed, when a test was
// skipped, and when no test ran at all.
func report(r io.Reader, w io.Writer) error {
	var (
		passed, failed int
		skipped        []id
		broken         []string
		output         = make(map[id]*strings.Builder)
	)
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<20), 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// Not JSON: the go command itself complains, about a package that does not exist for example.
			fmt.Fprintln(w, lines.Text())
			broken = append(broken, lines.Text())
			continue
		}
		key := id{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			keep(output, key, e, w)
		case "pass":
			if e.Test != "" {
				passed++
			}
			delete(output, key)
		case "skip":
			// A package without test files is reported as skipped; it has no test to skip.
			if e.Test != "" {
				skipped = append(skipped, key)
			}
			delete(output, key)
		case "fail":
			if e.Test != "" {
				failed++
			} else {
				broken = append(broken, e.Package)
			}
			flush(output, key, w)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading go test's output: %w", err)
	}
	// What neither passed nor failed was cut off, by a crash or a time-out; its output says by which.
	for key, text := range output {
		if key.test != "" {
			fmt.Fprintf(w, "=== cut off: %s %s\n%s", key.pkg, key.test, text)
			broken = append(broken, key.pkg+" "+key.test)
		}
	}
	for _, key := range skipped {
		fmt.Fprintf(w, "SKIPPED %s %s\n", key.pkg, key.test)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, failed, len(skipped))
	return verdict(passed, failed, len(skipped), broken)
}

// keep stores the output of tests until their end is known, and prints go test's closing line of a package at once.
func keep(output map[id]*strings.Builder, key id, e event, w io.Writer) {
	if e.Test == "" && (strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "FAIL\t")) {
		fmt.Fprint(w, e.Output)
		return
	}
	if output[key] == nil {
		output[key] = new(strings.Builder)
	}
	output[key].WriteString(e.Output)
}

// flush prints what was kept of key.
func flush(output map[id]*strings.Builder, key id, w io.Writer) {
	if text := output[key]; text != nil {
		fmt.Fprint(w, text)
		delete(output, key)
	}
}

// verdict turns the counts into the result.
func verdict(passed, failed, skipped int, broken []string) error {
	var faults []error
	if failed > 0 {
		faults = append(faults, fmt.Errorf("%d tests failed", failed))
	}
	if len(broken) > 0 {
		faults = append(faults, fmt.Errorf("failed: %s", strings.Join(broken, ", ")))
	}
	if skipped > 0 {
		faults = append(faults, fmt.Errorf("%d tests were skipped; make them run, or remove them", skipped))
	}
	if passed == 0 {
		faults = append(faults, errors.New("no test passed"))
	}
	return errors.Join(faults...)
}
