package vfstest

import (
	"bytes"
	"io"
	"io/fs"
)

func testReadWrite(e *env) {
	f := e.create(e.path("f"), "hello")
	if f.Name() != e.path("f") {
		e.Fatalf("name is %q", f.Name())
	}
	e.write(f, "J", 0)
	e.write(f, " world", 5)
	e.content(f, "Jello world")
	part := make([]byte, 3)
	n, err := f.ReadAt(part, 6)
	if n != 3 || err != nil || string(part) != "wor" {
		e.Fatalf("got %d bytes %q, error %v", n, part, err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	e.write(f, string(big), 3)
	e.content(f, "Jel"+string(big))
	if n, err := f.WriteAt(nil, 1<<20); n != 0 || err != nil {
		e.Fatalf("empty write: %d, %v", n, err)
	}
	e.content(f, "Jel"+string(big)) // an empty write extends nothing
}

func testReadEnd(e *env) {
	f := e.create(e.path("f"), "abc")
	buf := make([]byte, 4)
	n, err := f.ReadAt(buf, 1)
	if n != 2 {
		e.Fatalf("read %d bytes, want 2", n)
	}
	e.is(err, io.EOF)
	for _, off := range []int64{3, 100} {
		n, err = f.ReadAt(buf, off)
		if n != 0 {
			e.Fatalf("read %d bytes at %d, want none", n, off)
		}
		e.is(err, io.EOF)
	}
	_, err = f.ReadAt(buf, -1)
	e.fails(err)
	_, err = f.WriteAt(buf, -1)
	e.fails(err)
}

func testGap(e *env) {
	f := e.create(e.path("f"), "ab")
	e.write(f, "z", 9000)
	e.content(f, "ab"+string(make([]byte, 8998))+"z")
}

func testTruncate(e *env) {
	f := e.create(e.path("f"), "abcdef")
	e.ok(f.Truncate(2))
	e.content(f, "ab")
	e.ok(f.Truncate(4))
	e.content(f, "ab\x00\x00")
	e.write(f, "x", 5)
	e.content(f, "ab\x00\x00\x00x")
	long := bytes.Repeat([]byte("x"), 20_000)
	e.write(f, string(long), 0)
	e.ok(f.Truncate(5000))
	e.write(f, "y", 12_000)
	e.content(f, string(long[:5000])+string(make([]byte, 7000))+"y")
	e.ok(f.Truncate(0))
	e.content(f, "")
	e.fails(f.Truncate(-1))
}

// Bytes that were cut off do not come back when the file grows again.
func testTruncateSynced(e *env) {
	long := string(bytes.Repeat([]byte("x"), 9000))
	f := e.create(e.path("f"), long)
	e.ok(f.Sync())
	e.ok(e.SyncDir(e.dir))
	e.ok(f.Truncate(100))
	e.ok(f.Truncate(4200))
	want := long[:100] + string(make([]byte, 4100))
	e.content(f, want)
	e.write(f, "y", 8999)
	want += string(make([]byte, 4799)) + "y"
	e.content(f, want)
	e.ok(f.Sync())
	e.content(f, want)
	e.ok(f.Close())
	e.holds(e.path("f"), want)
}

func testSharedHandles(e *env) {
	f := e.create(e.path("f"), "abc")
	g, err := e.OpenRW(e.path("f"))
	e.ok(err)
	e.write(g, "X", 1)
	e.content(f, "aXc")
	e.ok(g.Close())
	e.content(f, "aXc")
}

func testReadOnly(e *env) {
	e.create(e.path("f"), "abc")
	f, err := e.Open(e.path("f"))
	e.ok(err)
	_, err = f.WriteAt([]byte("x"), 0)
	e.fails(err)
	e.fails(f.Truncate(0))
	e.content(f, "abc")
	e.ok(f.Sync())
	e.ok(f.Close())
}

func testClosed(e *env) {
	f := e.create(e.path("f"), "abc")
	e.ok(f.Close())
	e.is(f.Close(), fs.ErrClosed)
	_, err := f.ReadAt(make([]byte, 1), 0)
	e.is(err, fs.ErrClosed)
	_, err = f.WriteAt(make([]byte, 1), 0)
	e.is(err, fs.ErrClosed)
	_, err = f.Size()
	e.is(err, fs.ErrClosed)
	e.is(f.Truncate(0), fs.ErrClosed)
	e.is(f.Sync(), fs.ErrClosed)
	e.is(f.StartWriteback(0, 1), fs.ErrClosed)
	e.holds(e.path("f"), "abc")
}

func testSync(e *env) {
	f := e.create(e.path("f"), "abc")
	e.ok(f.StartWriteback(0, 3))
	e.ok(f.Sync())
	e.ok(e.SyncDir(e.dir))
	e.write(f, "def", 3)
	e.ok(f.Sync())
	e.ok(f.Truncate(4))
	e.ok(f.Sync())
	e.ok(f.Close())
	e.holds(e.path("f"), "abcd")
	e.ok(e.Rename(e.path("f"), e.path("g")))
	e.ok(e.SyncDir(e.dir))
	e.holds(e.path("g"), "abcd")
	e.ok(e.Remove(e.path("g")))
	e.ok(e.SyncDir(e.dir))
	e.names(e.dir)
}
