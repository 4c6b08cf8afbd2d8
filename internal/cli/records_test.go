package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/client/fakebroker"
)

func TestLinesComeBackAsTheyWere(t *testing.T) {
	tests := []struct{ name, in, out string }{
		{"lines", "a\nb\n\nc\n", "a\nb\n\nc\n"},
		{"no new line at the end", "a\nb", "a\nb\n"},
		{"nothing", "", ""},
		{"carriage returns stay", "a\r\nb\r\n", "a\r\nb\r\n"},
		{"binary", "\x00\xff\x1b[31m\xc3\n\xfe\n", "\x00\xff\x1b[31m\xc3\n\xfe\n"},
		{"longer than a block", strings.Repeat("x", 3*inputBlock+17) + "\ny\n", strings.Repeat("x", 3*inputBlock+17) + "\ny\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShell(t)
			s.must("topic", "create", "t")
			s.pipe(tt.in, "produce", "t").want(t, exitOK, fmt.Sprintf("%d records written to t", strings.Count(tt.out, "\n")))
			if got := s.must("consume", "t", "--until-end"); got != tt.out {
				t.Errorf("%d bytes came back, want %d, or others: %.80q", len(got), len(tt.out), got)
			}
		})
	}
}

func TestManyLinesKeepTheirOrder(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	var in strings.Builder
	for i := range 100_000 {
		fmt.Fprintln(&in, i)
	}
	s.pipe(in.String(), "produce", "t").want(t, exitOK, "100,000 records written")
	if got := s.must("consume", "t", "--until-end"); got != in.String() {
		t.Error("the lines came back in another order, or others")
	}
}

func TestKeysHeadersAndFormats(t *testing.T) {
	tests := []struct {
		name    string
		in      string
		produce []string
		consume string
		want    string
	}{
		{"key for all", "a\nb\n", []string{"-k", "key"}, `%k=%v;`, "key=a;key=b;"},
		{"key separator", "k1:a:b\nk2:\n", []string{"--key-sep", ":"}, `%k|%v\n`, "k1|a:b\nk2|\n"},
		{"tab separator", "k1\ta\n", []string{"--key-sep", `\t`}, `%k|%v\n`, "k1|a\n"},
		{"percent separator", "k1%%a\n", []string{"--key-sep", `%%`}, `%k|%v\n`, "k1|a\n"},
		{"format", "k1 a b\n", []string{"-f", `%k %v\n`}, `%v %k\n`, "a b k1\n"},
		{"zero bytes between records", "a\nb\x00c\x00", []string{"-f", `%v\0`}, `[%v]`, "[a\nb][c]"},
		{"prefix", "<a><b>", []string{"-f", `<%v>`}, `%v,`, "a,b,"},
		{"timestamps", "1000 a\n2000 b\n", []string{"-f", `%t %v\n`}, `%t:%v\n`, "1000:a\n2000:b\n"},
		{"partition field", "2 a\n", []string{"-f", `%p %v\n`}, `%p/%o %v\n`, "2/0 a\n"},
		{"partition flag", "a\n", []string{"--partition", "1"}, `%p/%o %v\n`, "1/0 a\n"},
		{"headers", "a\n", []string{"-H", "k=v", "-H", "k=w=x"}, `%h %v\n`, "k=v,k=w=x a\n"},
		{"headers do not drive a terminal", "a\n", []string{"-H", "k\x1b[2J=\x07\n"}, `%h|%v`, "k\ufffd[2J=\ufffd\ufffd|a"},
		{"raw", "a\nb\n", []string{"-f", "raw"}, "raw", "a\nb\n"},
		{"raw has one record", "a\nb\n", []string{"-f", "raw"}, `[%v]`, "[a\nb\n]"},
		{"hexadecimal", "axb", []string{"-f", `%v\x78`}, `%v\x21%%\\`, `a!%\b!%\`},
		{"leader acks and compression", "a\nb\n", []string{"--acks", "leader", "--compression", "zstd", "--linger", "0s"}, `%v,`, "a,b,"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShell(t)
			s.must("topic", "create", "t", "-p", "3")
			args := append([]string{"produce", "t"}, tt.produce...)
			if !hasPartition(tt.produce) {
				args = append(args, "--partition", "0")
			}
			s.pipe(tt.in, args...).want(t, exitOK)
			if got := s.must("consume", "t", "--until-end", "-f", tt.consume); got != tt.want {
				t.Errorf("output %q, want %q", got, tt.want)
			}
		})
	}
}

func hasPartition(args []string) bool {
	all := strings.Join(args, " ")
	return strings.Contains(all, "--partition") || strings.Contains(all, "%p")
}

func TestNoKeyAndEmptyKeyDiffer(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.pipe("a\n", "produce", "t").want(t, exitOK)
	s.pipe("a\n", "produce", "t", "-k", "").want(t, exitOK)
	lines := strings.Split(s.must("consume", "t", "--until-end", "-f", "json"), "\n")
	if !strings.Contains(lines[0], `"key":null`) || !strings.Contains(lines[1], `"key":""`) {
		t.Errorf("records %q, want the key null, then empty", lines)
	}
}

// JSON loses nothing: what is read from one topic and written to another is the same there.
func TestJSONRoundTrip(t *testing.T) {
	s := newShell(t)
	rapid.Check(t, func(rt *rapid.T) {
		bytesOrNil := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }))
		var in []byte
		var want []client.Record
		for range rapid.IntRange(1, 4).Draw(rt, "records") {
			r := client.Record{Topic: "t", Key: bytesOrNil.Draw(rt, "key"), Value: bytesOrNil.Draw(rt, "value"), Timestamp: fromMilliseconds(rapid.Int64Range(0, 1<<41).Draw(rt, "ms"))}
			for range rapid.IntRange(0, 2).Draw(rt, "headers") {
				r.Headers = append(r.Headers, client.Header{Key: rapid.String().Draw(rt, "name"), Value: bytesOrNil.Draw(rt, "text")})
			}
			want = append(want, r)
			in = appendRecordJSON(in, &r)
		}
		for _, line := range strings.SplitAfter(strings.TrimSuffix(string(in), "\n"), "\n") {
			if i := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return drivesTerminal(r) || r == '\n' || r == '\t' }); i >= 0 {
				rt.Fatalf("line %q drives a terminal", line)
			}
		}
		var got []client.Record
		parser := &input{r: strings.NewReader(string(in)), parse: parseJSONLine, blank: client.Record{Topic: "t"}}
		for {
			ch, err := parser.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, ch.records...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("records differ (-want +got):\n%s", diff)
		}
	})
	s.must("topic", "create", "a")
	s.must("topic", "create", "b")
	s.pipe("x\xff\n\ny\n", "produce", "a", "-k", "\xfe", "-H", "h=\xfd").want(t, exitOK)
	first := s.must("consume", "a", "--until-end", "-f", "json")
	s.pipe(first+"\n \n", "produce", "b", "-f", "json").want(t, exitOK, "3 records")
	if second := s.must("consume", "b", "--until-end", "-o", "json"); second != strings.ReplaceAll(first, `"topic":"a"`, `"topic":"b"`) {
		t.Errorf("copied %q, want %q", second, first)
	}
}

func TestBadInputNamesTheRecord(t *testing.T) {
	tests := []struct {
		name, in string
		args     []string
		code     int
		want     []string
	}{
		{"no separator", "k:a\nplain\nk:b\n", []string{"--key-sep", ":"}, exitPartial, []string{"record 2 of the input", `"plain": no ":" after %k`, "1 record written"}},
		{"no prefix", "<a>b>", []string{"-f", "<%v>"}, exitPartial, []string{"record 2", `does not begin with "<"`}},
		{"JSON", "{\"value\":\"a\"}\n{\"value\":7}\n", []string{"-f", "json"}, exitPartial, []string{"record 2", "JSON"}},
		{"JSON of another kind", `{"value":7}`, []string{"-f", "json"}, exitFailed, []string{`field "value" must not be of the kind number`}},
		{"no JSON object", `[]`, []string{"-f", "json"}, exitFailed, []string{"want an object, got array"}},
		{"unknown JSON field", `{"value":"a","timestampMs":1}`, []string{"-f", "json"}, exitFailed, []string{`unknown field "timestampMs"`}},
		{"half a JSON object", `{"value":"a"`, []string{"-f", "json"}, exitFailed, []string{"it ends too early"}},
		{"two JSON objects", `{"value":"a"}{"value":"b"}`, []string{"-f", "json"}, exitFailed, []string{"more than one JSON value"}},
		{"both forms", `{"value":"a","valueBase64":"YQ=="}`, []string{"-f", "json"}, exitFailed, []string{"both as text and as base64"}},
		{"timestamp", "soon a\n", []string{"-f", `%t %v\n`}, exitFailed, []string{`"soon"`, "milliseconds"}},
		{"partition", "-1 a\n", []string{"-f", `%p %v\n`}, exitFailed, []string{`"-1"`, "0 or more"}},
		{"partition that is not there", "0 a\n9 b\n", []string{"-f", `%p %v\n`}, exitPartial, []string{"record 2 of the input", "unknown partition"}},
		{"partition flag", "a\n", []string{"--partition", "9"}, exitFailed, []string{"partition 9", "has 2, 0 to 1"}},
		{"too large for the topic", "a\n" + strings.Repeat("x", 2<<20) + "\nb\n", []string{"-k", "k"}, exitPartial, []string{"record 2 of the input", "the limit is 1048576", "1 record written"}},
		{"too large for any topic", strings.Repeat("x", maxInputRecord+1), nil, exitFailed, []string{"record 1 of the input: longer than 16MiB"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShell(t)
			s.must("topic", "create", "t", "-p", "2")
			s.pipe(tt.in, append([]string{"produce", "t"}, tt.args...)...).want(t, tt.code, tt.want...)
		})
	}
}

func TestUnknownTopic(t *testing.T) {
	s := newShell(t)
	for _, command := range []string{"produce", "consume"} {
		s.run(command, "nope").want(t, exitFailed, `topic "nope": unknown topic`, "runnel topic create nope")
	}
	s.cluster.AutoCreate()
	s.pipe("a\n", "produce", "made", "--auto-create").want(t, exitOK, "1 record written to made")
}

func TestUnknownOutcome(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.OnCall(func(c fakebroker.Call) fakebroker.Action { return fakebroker.Action{Lose: c.Method == "Produce"} })
	r := s.pipe("a\nb\n", "produce", "t", "--delivery-timeout", "150ms")
	r.want(t, exitUnknown, "2 unknown", "record 1 of the input", "outcome unknown")
}

func TestPartialProduce(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.OnCall(func(c fakebroker.Call) fakebroker.Action {
		if c.Method == "Produce" && c.Sequence > 0 {
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.InvalidArgument, Reason: "INVALID_BATCH", Message: "no more of this"}}
		}
		return fakebroker.Action{}
	})
	// The second record is written once the first has been acknowledged.
	pr, pw := io.Pipe()
	s.stdin = pr
	go func() {
		fmt.Fprintln(pw, "a")
		for len(s.cluster.Records("t", 0)) == 0 {
			if t.Context().Err() != nil {
				break
			}
		}
		fmt.Fprintln(pw, "b")
		pw.Close()
	}()
	s.run("produce", "t", "--linger", "0s").want(t, exitPartial, "1 record written", "1 not written", "no more of this")
}

func TestConsumePositions(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t", "-p", "2")
	s.pipe("1000 a\n2000 b\n3000 c\n", "produce", "t", "-f", `%t %v\n`, "--partition", "0").want(t, exitOK)
	s.pipe("d\n", "produce", "t", "--partition", "1").want(t, exitOK)
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"-p", "0"}, "a\nb\nc\n"},
		{[]string{"-p", "0", "-n", "2"}, "a\nb\n"},
		{[]string{"-p", "0", "--from", "1"}, "b\nc\n"},
		{[]string{"-p", "0", "--from", "latest"}, ""},
		{[]string{"-p", "0", "--from", "@1970-01-01T00:00:02Z"}, "b\nc\n"},
		{[]string{"-p", "0", "--from", "@1970-01-01 00:00:03"}, "c\n"},
		{[]string{"--from", "-1h"}, "d\n"},
		{[]string{"-p", "1"}, "d\n"},
	}
	for _, tt := range tests {
		if got := s.must(append([]string{"consume", "t", "--until-end"}, tt.args...)...); got != tt.want {
			t.Errorf("consume %q printed %q, want %q", tt.args, got, tt.want)
		}
	}
	s.run("consume", "t", "-p", "0", "--from", "9").want(t, exitFailed, "offset 9", "out of range", "--from earliest, or an offset from 0 to 3")
	s.run("consume", "t", "-p", "7").want(t, exitFailed, "partition 7", "0 to 1")
}

func TestConsumeReportsDamage(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.Append("t", 0, "value")
	s.cluster.Damage("t", 0, 0, func(b []byte) { b[61] ^= 0x7e }) // the first record's length
	s.run("consume", "t", "--until-end").want(t, exitFailed, "t/0", "corrupt")
}

// An interrupted reader has succeeded, and a record is seen at once although its block is not full.
func TestInterruptedConsume(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.Append("t", 0, "a")
	ctx, cancel := context.WithCancel(t.Context())
	var got buffer
	s.out = writerFunc(func(p []byte) (int, error) {
		defer cancel()
		return got.Write(p)
	})
	s.runContext(ctx, "consume", "t").want(t, exitOK)
	if got.String() != "a\n" {
		t.Errorf("output %q, want the record", got.String())
	}
}

// With an end to reach, an interrupted reader has not reached it.
func TestInterruptedConsumeBeforeItsEnd(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.Append("t", 0, "a")
	ctx, cancel := context.WithCancel(t.Context())
	s.out = writerFunc(func(p []byte) (int, error) {
		cancel()
		return len(p), nil
	})
	s.runContext(ctx, "consume", "t", "-n", "2").want(t, exitPartial, "interrupted before the end, after 1 record")
}

// A failed write is reported once.
func TestConsumeReportsAFailedWriteOnce(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.Append("t", 0, "a")
	s.out = writerFunc(func([]byte) (int, error) { return 0, errors.New("disk full") })
	r := s.run("consume", "t", "--until-end")
	r.want(t, exitFailed, "disk full")
	if n := strings.Count(r.err, "disk full"); n != 1 {
		t.Errorf("standard error %q names the fault %d times, want 1", r.err, n)
	}
}

// What was read before the interrupt is written.
func TestInterruptedProduce(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	defer pw.Close()
	s.stdin = pr
	s.cluster.OnCall(func(c fakebroker.Call) fakebroker.Action {
		if c.Method == "Produce" {
			cancel()
		}
		return fakebroker.Action{}
	})
	go func() { fmt.Fprintln(pw, "a") }()
	s.runContext(ctx, "produce", "t").want(t, exitPartial, "1 record written", "interrupted")
	if n := len(s.cluster.Records("t", 0)); n != 1 {
		t.Errorf("%d records in the topic, want 1", n)
	}
}

func TestBrokenPipeEndsQuietly(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "t")
	s.cluster.Append("t", 0, "a")
	s.out = writerFunc(func([]byte) (int, error) { return 0, syscall.EPIPE })
	for _, args := range [][]string{{"consume", "t"}, {"consume", "t", "--until-end"}, {"topic", "list"}} {
		r := s.run(args...)
		r.want(t, exitOK)
		if r.err != "" {
			t.Errorf("%q: standard error %q, want nothing", args, r.err)
		}
	}
	s.out = writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	s.run("consume", "t").want(t, exitFailed, "no space left")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A partition that cannot be read is named, and the rest is printed.
func TestConsumeUntilEndWithoutALeader(t *testing.T) {
	s := newShell(t)
	s.cluster.CreateTopic("t", 2)
	s.cluster.Append("t", 1, "x")
	s.cluster.MoveLeader("t", 0, -1)
	r := s.run("consume", "t", "--until-end", "--timeout", "1s")
	r.want(t, exitPartial, "t/0", "no leader", "Try: runnel partition describe t", "1 of 2 partitions were not read to the end")
	if r.out != "x\n" {
		t.Errorf("printed %q", r.out)
	}
	s.run("consume", "t", "-p", "0", "--until-end", "--timeout", "1s").want(t, exitFailed, "1 of 1 partitions")
}
