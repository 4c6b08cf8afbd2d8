package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDocumentLinksResolve(t *testing.T) {
	broken, checked, err := CheckLinks(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	if checked == 0 {
		t.Error("CheckLinks() found no relative link in the repository's documents; README.md has some, so it reads nothing")
	}
	for _, link := range broken {
		t.Error(link)
	}
}

func TestCheckLinks(t *testing.T) {
	tests := []struct {
		name string
		text string
		want string // "" for a document without a broken link
	}{
		{"file", "see [b](docs/b.md)", ""},
		{"folder", "see [docs](docs/)", ""},
		{"from the root", "see [b](/docs/b.md)", ""},
		{"heading elsewhere", "see [b](docs/b.md#what-it-is-1-of-2)", ""},
		{"repeated heading", "see [b](docs/b.md#twice-1)", ""},
		{"own heading", "# Top\n\n[up](#top)", ""},
		{"by reference", "see [b][x]\n\n[x]: docs/b.md", ""},
		{"with a title", `see [b](docs/b.md "the other one")`, ""},
		{"another site", "see [x](https://runnel.dev/nowhere) and <mailto:a@b.c>", ""},
		{"in code", "```\n[x](nowhere.md)\n```\n\nand `[x](nowhere.md)`", ""},
		{"missing file", "one\ntwo [x](docs/nowhere.md)", `a.md:2: link "docs/nowhere.md": no such file or folder`},
		{"missing image", "![x](docs/x.png)", "no such file or folder"},
		{"missing heading", "[x](docs/b.md#nowhere)", "no such heading"},
		{"missing own heading", "[x](#nowhere)", "no such heading"},
		{"missing by reference", "[x]\n\n[x]: nowhere.md", `a.md:3: link "nowhere.md"`},
		{"heading in code", "```\n# Top\n```\n[x](#top)", "no such heading"},
		{"out of the repository", "[x](../secret.md)", "leads out of the repository"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(filepath.Join(root, "docs"), 0o750); err != nil {
				t.Fatal(err)
			}
			write("a.md", tt.text)
			write("docs/b.md", "# B\n\n## What it *is* (1 of 2)\n\n## Twice\n\n## Twice\n")
			broken, _, err := CheckLinks(root)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want == "" && len(broken) != 0:
				t.Errorf("CheckLinks() = %v, want no broken link", broken)
			case tt.want != "" && (len(broken) != 1 || !strings.Contains(broken[0].String(), tt.want)):
				t.Errorf("CheckLinks() = %v, want one broken link with %q", broken, tt.want)
			}
		})
	}
}
