// Package archtest keeps the architecture true: it reads the import clauses of the whole tree and checks them against the
// rules of docs/architecture.md, and it checks that links between the documents resolve.
//
// Imports are read with go/parser, every file whatever its build tags, without running the go command: the check sees the
// same tree on every platform and costs a fraction of a second. depguard in .golangci.yml repeats the main rules for editors;
// this package also follows imports through other packages of ours, which depguard cannot.
package archtest

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the module path that our packages begin with.
const Module = "runnel.dev/runnel"

// Edge is one import clause.
type Edge struct {
	// Path is the imported package: relative to Module for ours, as written for others.
	Path string
	// File is where the clause stands, slash-separated and relative to the root.
	File string
	// Line is the clause's line in File.
	Line int
	// Test says that File is a _test.go file.
	Test bool
}

// Graph holds the import clauses of each package, keyed by its folder relative to the root ("." for the root itself).
type Graph map[string][]Edge

// ErrNoGoFiles is returned for a tree without Go files: a check of nothing must not pass.
var ErrNoGoFiles = errors.New("archtest: no Go files found")

// Read parses the import clauses of every Go file under root. It leaves out hidden folders, testdata, and folders that are
// modules of their own. A file that does not parse is an error that names it.
func Read(root string) (Graph, error) {
	graph := make(Graph)
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(root, name, entry.Name())
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		return graph.addFile(root, name)
	})
	if err != nil {
		return nil, fmt.Errorf("archtest: reading imports under %s: %w", root, err)
	}
	if len(graph) == 0 {
		return nil, fmt.Errorf("%w under %s", ErrNoGoFiles, root)
	}
	return graph, nil
}

// skipDir returns fs.SkipDir for folders that hold no packages of this module.
func skipDir(root, name, base string) error {
	if name == root {
		return nil
	}
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// addFile records the import clauses of one file.
func (g Graph) addFile(root, name string) error {
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly)
	if err != nil {
		return err
	}
	pkg := path.Dir(rel)
	edges := g[pkg]
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", rel, spec.Path.Value, err)
		}
		edges = append(edges, Edge{
			Path: relative(imported),
			File: rel,
			Line: fset.Position(spec.Pos()).Line,
			Test: strings.HasSuffix(rel, "_test.go"),
		})
	}
	g[pkg] = edges
	return nil
}

// relative turns an import path of ours into the package's folder and leaves others as they are.
func relative(imported string) string {
	if imported == Module {
		return "."
	}
	if rel, ok := strings.CutPrefix(imported, Module+"/"); ok {
		return rel
	}
	return imported
}

// Packages returns the folders that hold Go files, sorted.
func (g Graph) Packages() []string {
	return slices.Sorted(maps.Keys(g))
}
