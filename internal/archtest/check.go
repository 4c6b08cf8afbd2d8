package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Rule limits what packages may import, directly or through other packages of ours.
//
// Patterns are folders relative to Module for our packages and import paths for others. A pattern that ends in "/..."
// stands for the folder and everything below it.
type Rule struct {
	// Packages are the patterns of the packages that the rule binds.
	Packages []string
	// Only, when not empty, lists all of our packages that they may import. It says nothing about other modules.
	Only []string
	// Never lists packages, ours or others', that they may not import. A package is never in breach by importing itself.
	Never []string
	// Tests says that the rule binds _test.go files as well.
	Tests bool
	// Why is the reason, printed with each violation.
	Why string
}

// Violation is an import that breaks a rule.
type Violation struct {
	// Package is the folder of the package in breach.
	Package string
	// Chain leads from an import clause of Package to the forbidden package; longer than one where the import is indirect.
	Chain []Edge
	// Why is the rule's reason.
	Why string
}

// String names the file, the line, the chain and the reason.
func (v Violation) String() string {
	hops := make([]string, 0, len(v.Chain)+1)
	hops = append(hops, v.Package)
	for _, edge := range v.Chain {
		hops = append(hops, edge.Path)
	}
	return fmt.Sprintf("%s:%d: %s: %s", v.Chain[0].File, v.Chain[0].Line, strings.Join(hops, " → "), v.Why)
}

// Check returns every violation of rules in graph, in a stable order, each with a shortest chain.
func Check(graph Graph, rules []Rule) []Violation {
	var found []Violation
	for _, rule := range rules {
		for _, pkg := range graph.Packages() {
			if matchAny(rule.Packages, pkg) {
				found = append(found, graph.check(pkg, rule)...)
			}
		}
	}
	return found
}

// check walks what pkg imports, breadth first. It does not walk on from a package that is itself in breach, so that one bad
// import is reported once and not again for all that lies behind it; nor from one that the rule binds, which answers for its
// own imports.
func (g Graph) check(pkg string, rule Rule) []Violation {
	var found []Violation
	seen := map[string]bool{pkg: true}
	var queue [][]Edge
	visit := func(chain []Edge) {
		target := chain[len(chain)-1].Path
		if seen[target] {
			return
		}
		seen[target] = true
		switch {
		case g.breaks(rule, target):
			found = append(found, Violation{Package: pkg, Chain: chain, Why: rule.Why})
		case !matchAny(rule.Packages, target):
			queue = append(queue, chain)
		}
	}
	for _, edge := range g[pkg] {
		if rule.Tests || !edge.Test {
			visit([]Edge{edge})
		}
	}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, edge := range g[chain[len(chain)-1].Path] {
			// Another package's tests are not part of what its importers build.
			if !edge.Test {
				visit(append(slices.Clip(chain), edge))
			}
		}
	}
	return found
}

// breaks says whether a package bound by rule may not import target.
func (g Graph) breaks(rule Rule, target string) bool {
	if matchAny(rule.Never, target) {
		return true
	}
	_, ours := g[target]
	return ours && len(rule.Only) > 0 && !matchAny(rule.Only, target)
}

// matchAny says whether one of the patterns stands for pkg.
func matchAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		tree, isTree := strings.CutSuffix(pattern, "/...")
		return pkg == tree || isTree && strings.HasPrefix(pkg, tree+"/")
	})
}
