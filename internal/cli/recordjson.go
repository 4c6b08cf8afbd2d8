package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"runnel.dev/runnel/client"
)

// recordJSON is a record as one line of JSON. What is no UTF-8 is in the base64 fields, and what is null is null, so nothing is lost:
//
//	{"topic":"t","partition":0,"offset":7,"timestamp":"2026-01-02T03:04:05.678Z","key":"k","value":"v","headers":[{"key":"h","value":"x"}]}
//
// Topic, partition and offset are ignored when it is read. Any other field is a fault: a misspelt one would be lost in silence.
type recordJSON struct {
	Topic       string       `json:"topic"`
	Partition   int32        `json:"partition"`
	Offset      int64        `json:"offset"`
	Timestamp   *time.Time   `json:"timestamp"`
	Key         *string      `json:"key"`
	KeyBase64   []byte       `json:"keyBase64"`
	Value       *string      `json:"value"`
	ValueBase64 []byte       `json:"valueBase64"`
	Headers     []headerJSON `json:"headers"`
}

type headerJSON struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 []byte  `json:"valueBase64"`
}

// appendRecordJSON renders r with a new line behind it. It is written by hand because it runs once per record.
func appendRecordJSON(b []byte, r *client.Record) []byte {
	b = append(b, `{"topic":`...)
	b = appendJSONString(b, r.Topic)
	b = append(b, `,"partition":`...)
	b = strconv.AppendInt(b, int64(r.Partition), 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, r.Offset, 10)
	b = append(b, `,"timestamp":"`...)
	b = r.Timestamp.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `",`...)
	b = appendJSONBytes(b, "key", r.Key)
	b = append(b, ',')
	b = appendJSONBytes(b, "value", r.Value)
	for i, h := range r.Headers {
		if i == 0 {
			b = append(b, `,"headers":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, `{"key":`...)
		b = appendJSONString(b, h.Key)
		b = append(b, ',')
		b = appendJSONBytes(b, "value", h.Value)
		b = append(b, '}')
	}
	if len(r.Headers) > 0 {
		b = append(b, ']')
	}
	return append(b, '}', '\n')
}

// appendJSONBytes appends "name":"text", "nameBase64":"…", or "name":null.
func appendJSONBytes(b []byte, name string, v []byte) []byte {
	b = append(b, '"')
	b = append(b, name...)
	switch {
	case v == nil:
		return append(b, `":null`...)
	case utf8.Valid(v):
		b = append(b, `":`...)
		return appendJSONString(b, string(v))
	default:
		b = append(b, `Base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, v)
		return append(b, '"')
	}
}

// appendJSONString escapes what JSON demands and what would drive a terminal. Invalid UTF-8 becomes the replacement character.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < 0x20 || drivesTerminal(r):
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// parseRecordJSON reads one line into r, whose bytes are then its own.
func parseRecordJSON(line []byte, r *client.Record) error {
	var v recordJSON
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	err := dec.Decode(&v)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	if err != nil {
		return fmt.Errorf("JSON %q: %w", clip(line), jsonFault(err))
	}
	key, err := pickBytes("key", v.Key, v.KeyBase64)
	value, valueErr := pickBytes("value", v.Value, v.ValueBase64)
	if err = errors.Join(err, valueErr); err != nil {
		return err
	}
	r.Value = value
	if key != nil {
		r.Key = key
	}
	if v.Timestamp != nil {
		r.Timestamp = *v.Timestamp
	}
	for _, h := range v.Headers {
		value, err := pickBytes("header value", h.Value, h.ValueBase64)
		if err != nil {
			return err
		}
		r.Headers = append(r.Headers, client.Header{Key: h.Key, Value: value})
	}
	return nil
}

// jsonFault speaks of fields where the decoder speaks of Go.
func jsonFault(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends too early")
	case !ok:
		return err
	case wrong.Field == "":
		return fmt.Errorf("want an object, got %s", wrong.Value)
	default:
		return fmt.Errorf("field %q must not be of the kind %s", wrong.Field, wrong.Value)
	}
}

func pickBytes(name string, text *string, encoded []byte) ([]byte, error) {
	switch {
	case text != nil && encoded != nil:
		return nil, fmt.Errorf("the %s is given both as text and as base64", name)
	case text != nil:
		return []byte(*text), nil
	default:
		return encoded, nil
	}
}
