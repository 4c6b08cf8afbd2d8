package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"runnel.dev/runnel/client"
)

// template is a record format such as '%k %v\n': fields and the text around them.
//
//	%k key   %v value   %t timestamp, milliseconds since 1970   %p partition   %o offset   %h headers, k=v,k=v   %% a percent sign
//	\n \t \r \0 \\ \xHH   bytes
type template []piece

// piece is a field, or text when field is 0.
type piece struct {
	field byte
	text  string
}

const templateFields = "kvtpoh"

func parseTemplate(s string) (template, error) {
	var t template
	var text []byte
	end := func() {
		if len(text) > 0 {
			t = append(t, piece{text: string(text)})
			text = nil
		}
	}
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '%' && s[i] != '\\':
			text = append(text, s[i])
		case i+1 == len(s):
			return nil, fmt.Errorf("format %q: it ends within %q", s, s[i])
		case s[i] == '\\':
			b, n, err := unescape(s[i+1:])
			if err != nil {
				return nil, fmt.Errorf("format %q: %w", s, err)
			}
			text = append(text, b)
			i += n
		case s[i+1] == '%':
			text = append(text, '%')
			i++
		case strings.IndexByte(templateFields, s[i+1]) < 0:
			return nil, fmt.Errorf("format %q: unknown field %%%c, want one of %%k %%v %%t %%p %%o %%h %%%%", s, s[i+1])
		default:
			end()
			t = append(t, piece{field: s[i+1]})
			i++
		}
	}
	end()
	return t, nil
}

// unescape reads what follows a backslash and returns how long it was.
func unescape(s string) (b byte, n int, err error) {
	switch s[0] {
	case 'n':
		return '\n', 1, nil
	case 't':
		return '\t', 1, nil
	case 'r':
		return '\r', 1, nil
	case '0':
		return 0, 1, nil
	case '\\':
		return '\\', 1, nil
	case 'x':
		if len(s) >= 3 {
			if v, err := strconv.ParseUint(s[1:3], 16, 8); err == nil {
				return byte(v), 3, nil
			}
		}
		return 0, 0, errors.New(`\x wants two hexadecimal digits`)
	default:
		return 0, 0, fmt.Errorf(`unknown escape \%c, want one of \n \t \r \0 \\ \xHH`, s[0])
	}
}

// append renders r.
func (t template) append(b []byte, r *client.Record) []byte {
	for _, p := range t {
		switch p.field {
		case 0:
			b = append(b, p.text...)
		case 'k':
			b = append(b, r.Key...)
		case 'v':
			b = append(b, r.Value...)
		case 't':
			b = strconv.AppendInt(b, r.Timestamp.UnixMilli(), 10)
		case 'p':
			b = strconv.AppendInt(b, int64(r.Partition), 10)
		case 'o':
			b = strconv.AppendInt(b, r.Offset, 10)
		case 'h':
			b = appendHeaders(b, r.Headers)
		}
	}
	return b
}

// appendHeaders is for people: unlike values, headers are not what was asked for byte by byte, so they must not drive a terminal.
func appendHeaders(b []byte, hs []client.Header) []byte {
	for i, h := range hs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, cell(h.Key)...)
		b = append(b, '=')
		b = append(b, cell(string(h.Value))...)
	}
	return b
}

// checkInput says whether records can be told apart by t.
func (t template) checkInput() error {
	if len(t) == 0 || t[len(t)-1].field != 0 {
		return errors.New(`the format has to end with what ends a record, such as \n`)
	}
	seen := make(map[byte]bool)
	for i, p := range t {
		switch {
		case p.field == 0:
			continue
		case p.field == 'o' || p.field == 'h':
			return fmt.Errorf("%%%c cannot be read back; -f json can", p.field)
		case t[i+1].field != 0:
			return fmt.Errorf("%%%c%%%c: nothing tells where the first ends", p.field, t[i+1].field)
		case seen[p.field]:
			return fmt.Errorf("%%%c stands twice in the format", p.field)
		}
		seen[p.field] = true
	}
	if !seen['v'] {
		return errors.New("the format has no %v")
	}
	return nil
}

// set gives a record the text of a field.
func (p piece) set(r *client.Record, text []byte) error {
	switch p.field {
	case 'k':
		r.Key = text
	case 'v':
		r.Value = text
	case 't':
		ms, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return fmt.Errorf("timestamp %q: want milliseconds since 1970", clip(text))
		}
		r.Timestamp = time.UnixMilli(ms)
	case 'p':
		n, err := strconv.ParseInt(string(text), 10, 32)
		if err != nil || n < 0 {
			return fmt.Errorf("partition %q: want a number, 0 or more", clip(text))
		}
		r.Partition = int32(n)
	}
	return nil
}

// has says whether a field occurs.
func (t template) has(field byte) bool {
	for _, p := range t {
		if p.field == field {
			return true
		}
	}
	return false
}

// clip keeps error messages short.
func clip(b []byte) []byte {
	const most = 64
	if len(b) > most {
		return append(b[:most:most], "…"...)
	}
	return b
}
