//go:build linux

package cli

import (
	"context"
	"os"
	"testing"
)

func TestReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	gone := make(chan bool)
	go func() { gone <- readerGone(t.Context(), w) }()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !<-gone {
		t.Error("a pipe without a reader was not noticed")
	}
}

func TestReaderGoneEndsWithItsContext(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	defer func() { _ = w.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if readerGone(ctx, w) || readerGone(ctx, os.Stdin) || readerGone(ctx, writerFunc(nil)) {
		t.Error("a reader that is there was taken for gone")
	}
}
