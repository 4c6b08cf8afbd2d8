package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"runnel.dev/runnel/client"
)

const (
	inputBlock = 64 << 10
	// maxInputRecord is more than any topic accepts, so that the broker's own limit is what is reported below it.
	maxInputRecord = 16<<20 + inputBlock
)

// recordParser reads one record from the front of data into r, which keeps slices of data. n is how long it was; 0: it is not complete.
// skip says that those n bytes hold no record.
type recordParser func(r *client.Record, data []byte, atEOF bool) (n int, skip bool, err error)

// chunk is what one read brought: records, and the bytes that they point to. It is used again once all of them are settled.
type chunk struct {
	buf     []byte
	records []client.Record
	first   int64 // number of records[0] in the input, from 1
	pending atomic.Int32
	done    func(*client.Record, error)
}

// input cuts a stream into chunks of records. A record is handed on as soon as it has come, so that a slow writer's records do not
// wait for each other.
type input struct {
	r      io.Reader
	parse  recordParser
	blank  client.Record // what every record begins as
	pool   sync.Pool
	carry  []byte
	count  int64
	bytes  int64
	ended  bool
	failed error
}

// next returns records, or an error and no records: io.EOF at the end.
func (in *input) next() (*chunk, error) {
	if in.failed != nil {
		return nil, in.failed
	}
	ch, _ := in.pool.Get().(*chunk)
	if ch == nil {
		ch = &chunk{buf: make([]byte, inputBlock)}
	}
	ch.records, ch.first = ch.records[:0], in.count+1
	if need := len(in.carry) + inputBlock/2; need > len(ch.buf) {
		ch.buf = make([]byte, 2*need)
	}
	used := copy(ch.buf, in.carry)
	for {
		if !in.ended {
			n, err := in.r.Read(ch.buf[used:])
			used += n
			in.bytes += int64(n)
			in.ended = errors.Is(err, io.EOF)
			if err != nil && !in.ended {
				in.failed = fmt.Errorf("input: %w", err)
			}
		}
		rest, err := in.cut(ch, ch.buf[:used])
		switch {
		case err != nil:
			in.failed = fmt.Errorf("record %d of the input: %w", in.count+1, err)
		case in.ended && in.failed == nil:
			in.failed = io.EOF
		}
		in.carry = rest
		if len(ch.records) > 0 {
			return ch, nil
		}
		if in.failed != nil {
			return nil, in.failed
		}
		used = copy(ch.buf, rest)
		if used < len(ch.buf) {
			continue
		}
		if used >= maxInputRecord {
			in.failed = fmt.Errorf("record %d of the input: longer than %s", in.count+1, formatBytes(maxInputRecord-inputBlock))
			return nil, in.failed
		}
		bigger := make([]byte, min(2*len(ch.buf), maxInputRecord))
		copy(bigger, ch.buf)
		ch.buf = bigger
	}
}

// cut appends the complete records of data to ch and returns what is left.
func (in *input) cut(ch *chunk, data []byte) (rest []byte, err error) {
	for len(data) > 0 {
		ch.records = append(ch.records, in.blank)
		n, skip, err := in.parse(&ch.records[len(ch.records)-1], data, in.ended)
		if n == 0 || skip || err != nil {
			ch.records = ch.records[:len(ch.records)-1]
		}
		if n == 0 || err != nil {
			return data, err
		}
		if !skip {
			in.count++
		}
		data = data[n:]
	}
	return nil, nil
}

// parser reads records of the template's form: the last text ends a record, and what is between the others is the fields.
func (t template) parser() recordParser {
	end := []byte(t[len(t)-1].text)
	pieces := t[:len(t)-1]
	return func(r *client.Record, data []byte, atEOF bool) (int, bool, error) {
		size := bytes.Index(data, end)
		n := size + len(end)
		if size < 0 {
			if !atEOF {
				return 0, false, nil
			}
			size, n = len(data), len(data)
		}
		text := data[:size:size]
		for i, p := range pieces {
			if p.field == 0 {
				if i > 0 {
					continue // the field before has taken it
				}
				rest, ok := bytes.CutPrefix(text, []byte(p.text))
				if !ok {
					return 0, false, fmt.Errorf("%q does not begin with %q", clip(text), p.text)
				}
				text = rest
				continue
			}
			field := text
			if i+1 < len(pieces) {
				var ok bool
				if field, text, ok = bytes.Cut(text, []byte(pieces[i+1].text)); !ok {
					return 0, false, fmt.Errorf("%q: no %q after %%%c", clip(field), pieces[i+1].text, p.field)
				}
			}
			if err := p.set(r, slices.Clip(field)); err != nil {
				return 0, false, err
			}
		}
		return n, false, nil
	}
}

// parseJSONLine reads a record per line; empty lines are none.
func parseJSONLine(r *client.Record, data []byte, atEOF bool) (n int, skip bool, err error) {
	size := bytes.IndexByte(data, '\n')
	if n = size + 1; size < 0 {
		if !atEOF {
			return 0, false, nil
		}
		size, n = len(data), len(data)
	}
	line := bytes.TrimSpace(data[:size])
	if len(line) == 0 {
		return n, true, nil
	}
	return n, false, parseRecordJSON(line, r)
}

// parseWhole takes all of the input as one record.
func parseWhole(r *client.Record, data []byte, atEOF bool) (n int, skip bool, err error) {
	if !atEOF {
		return 0, false, nil
	}
	r.Value = data
	return len(data), false, nil
}
