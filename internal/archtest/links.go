package archtest

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// BrokenLink is a relative link of a document that leads nowhere.
type BrokenLink struct {
	// File is the document, slash-separated and relative to the root.
	File string
	// Line is where the link stands.
	Line int
	// Target is the link as written.
	Target string
	// Why says what is missing.
	Why string
}

// String names the document, the line, the link and what is missing.
func (b BrokenLink) String() string {
	return fmt.Sprintf("%s:%d: link %q: %s", b.File, b.Line, b.Target, b.Why)
}

var (
	inlineLink    = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	referenceLink = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s+"[^"]*")?\s*$`)
	codeSpan      = regexp.MustCompile("`[^`]*`")
	heading       = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*\s*$`)
	headingLink   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// CheckLinks returns the relative links of every Markdown document under root whose file or heading does not exist, and the
// number of links that it looked at. Links to other sites are not followed.
func CheckLinks(root string) (broken []BrokenLink, checked int, err error) {
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		b, n, err := checkDocument(root, name)
		broken = append(broken, b...)
		checked += n
		return err
	})
	if err != nil {
		return nil, checked, fmt.Errorf("archtest: checking links under %s: %w", root, err)
	}
	return broken, checked, nil
}

// checkDocument checks the links of one document.
func checkDocument(root, name string) (broken []BrokenLink, checked int, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, 0, err
	}
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return nil, 0, err
	}
	for i, line := range prose(string(text)) {
		for _, target := range linksOf(line) {
			why, relative := follow(root, name, target)
			if !relative {
				continue
			}
			checked++
			if why != "" {
				broken = append(broken, BrokenLink{File: filepath.ToSlash(rel), Line: i + 1, Target: target, Why: why})
			}
		}
	}
	return broken, checked, nil
}

// prose returns the document's lines with those of fenced code blocks emptied, so that line numbers stay.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	fence := ""
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			lines[i] = ""
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			fence = trimmed[:3]
			lines[i] = ""
		}
	}
	return lines
}

// linksOf returns the targets of a line's links, inline and by reference.
func linksOf(line string) []string {
	line = codeSpan.ReplaceAllString(line, "")
	var targets []string
	for _, match := range inlineLink.FindAllStringSubmatch(line, -1) {
		targets = append(targets, match[1])
	}
	if match := referenceLink.FindStringSubmatch(line); match != nil {
		targets = append(targets, match[1])
	}
	return targets
}

// follow says what is missing behind a target of the document name, "" if nothing is, and whether the target is relative.
func follow(root, name, target string) (why string, relative bool) {
	link, err := url.Parse(target)
	if err != nil {
		return err.Error(), true
	}
	if link.Scheme != "" || link.Host != "" {
		return "", false
	}
	file := name
	switch {
	case strings.HasPrefix(link.Path, "/"):
		file = filepath.Join(root, filepath.FromSlash(link.Path))
	case link.Path != "":
		file = filepath.Join(filepath.Dir(name), filepath.FromSlash(link.Path))
	}
	if inside, err := filepath.Rel(root, file); err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(filepath.Separator)) {
		return "leads out of the repository", true
	}
	if _, err := os.Stat(file); err != nil {
		return "no such file or folder", true
	}
	if link.Fragment == "" || filepath.Ext(file) != ".md" {
		return "", true
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error(), true
	}
	if !anchors(string(text))[strings.ToLower(link.Fragment)] {
		return "no such heading", true
	}
	return "", true
}

// anchors returns the fragments that a document's headings get: lower case, punctuation dropped, spaces to hyphens, and a
// number behind a repeated one.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	repeats := make(map[string]int)
	for _, line := range prose(text) {
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		title := headingLink.ReplaceAllString(match[1], "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		if n := repeats[slug]; n > 0 {
			found[fmt.Sprintf("%s-%d", slug, n)] = true
		} else {
			found[slug] = true
		}
		repeats[slug]++
	}
	return found
}
