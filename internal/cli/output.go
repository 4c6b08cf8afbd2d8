package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// format is the value of -o.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatName  format = "name"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }
func (f *format) Set(s string) error {
	switch v := format(s); v {
	case formatTable, formatJSON, formatYAML, formatName:
		*f = v
		return nil
	default:
		return errors.New("want table, json, yaml or name")
	}
}

// table lays out rows for people. Rows whose first cell is the object's name also serve -o name.
type table struct {
	w        *tabwriter.Writer
	nameOnly bool
}

// header is left out of -o name.
func (t *table) header(cells ...string) {
	if !t.nameOnly {
		t.write(cells)
	}
}

// row prints cells; with -o name, only the first.
func (t *table) row(cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = cell(fmt.Sprint(c))
	}
	if t.nameOnly {
		text = text[:1]
	}
	for len(text) > 1 && text[len(text)-1] == "" {
		text = text[:len(text)-1] // no blanks at the end of a line
	}
	t.write(text)
}

// fact prints one property of an object; it is left out of -o name.
func (t *table) fact(name string, value any) {
	if !t.nameOnly {
		t.write([]string{name, cell(fmt.Sprint(value))})
	}
}

// line prints one line as it is, but for control characters.
func (t *table) line(s string) { t.write([]string{sanitize(s)}) }

// gap separates blocks, whose columns are then laid out apart.
func (t *table) gap() {
	if !t.nameOnly {
		t.write([]string{""})
	}
}

func (t *table) write(cells []string) {
	_, _ = io.WriteString(t.w, strings.Join(cells, "\t")+"\n") // an error stays with the writer and comes back from Flush
}

// print shows v as -o says: as JSON or YAML, or as the table that draw lays out.
func (a *app) print(v any, draw func(*table)) error {
	switch a.output {
	case formatJSON:
		return a.printJSON(v)
	case formatYAML:
		return a.printYAML(v)
	case formatTable, formatName:
	}
	t := &table{w: tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0), nameOnly: a.output == formatName}
	draw(t)
	return t.w.Flush()
}

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = a.Out.Write(append(escapeControls(b), '\n'))
	return err
}

// printYAML goes through JSON, so that both forms have the same names.
func (a *app) printYAML(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var plain yaml.Node
	if err := yaml.Unmarshal(escapeControls(b), &plain); err != nil {
		return err
	}
	restyle(&plain)
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&plain), enc.Close()); err != nil {
		return err
	}
	_, err = a.Out.Write(escapeControls(text.Bytes()))
	return err
}

// restyle drops the styles that JSON came with, quotes too: the encoder quotes what needs it. What will hold an escape needs it.
func restyle(n *yaml.Node) {
	n.Style = 0
	if strings.IndexFunc(n.Value, drivesTerminal) >= 0 {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		restyle(c)
	}
}

// escapeControls writes the control characters that JSON leaves as they are (DEL, C1, and what changes the direction of text) as
// escapes. They stand in double-quoted strings only, in JSON always, in YAML by restyle.
func escapeControls(text []byte) []byte {
	if bytes.IndexFunc(text, drivesTerminal) < 0 {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		if drivesTerminal(r) {
			out = fmt.Appendf(out, "\\u%04x", r)
			continue
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// drivesTerminal says whether a character does something to a terminal other than to appear; new line and tab aside.
func drivesTerminal(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case unicode.IsControl(r):
		return true
	default: // marks, embeddings, overrides and isolates of direction
		return r == 0x200e || r == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	}
}

// sanitize keeps text from servers and data from driving the terminal: what could becomes visible.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if drivesTerminal(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// cell is sanitize for one cell of a table, which holds neither lines nor columns.
func cell(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, sanitize(s))
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
