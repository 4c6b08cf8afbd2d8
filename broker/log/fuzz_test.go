package log

import (
	"bytes"
	"errors"
	"testing"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// body takes the frame off: fuzzed bodies get a valid one, or the checksum would refuse nearly all of them.
func body(file []byte) []byte { return file[envelopeSize:] }

func FuzzDecodeEpochs(f *testing.F) {
	f.Add(body(encodeEpochs(nil)))
	f.Add(body(encodeEpochs([]EpochStart{{1, 0}, {4, 99}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := decodeEpochs("epochs", seal(epochsFormat, b))
		checkDecoded(t, err, func() []byte { return encodeEpochs(g) }, seal(epochsFormat, b))
	})
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(body(encodeMeta(testMeta())))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta("meta", seal(metaFormat, b))
		checkDecoded(t, err, func() []byte { return encodeMeta(m) }, seal(metaFormat, b))
	})
}

func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(body(encodeSnapshot(7, nil)))
	f.Add(body(encodeSnapshot(70, []ProducerState{{ProducerID: 3, Epoch: 1, LastActiveMS: 9, Batches: []ProducerBatch{{0, 4, 8, 15}, {5, 5, 16, 23}}}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, states, err := decodeSnapshot("snapshot", seal(snapshotFormat, b))
		if err == nil {
			_ = importProducers(states, maxProducers).export()
		}
		checkDecoded(t, err, func() []byte { return encodeSnapshot(at, states) }, seal(snapshotFormat, b))
	})
}

func FuzzUnseal(f *testing.F) {
	f.Add(encodeClean(cleanState{end: 5}))
	f.Add([]byte("RNLC"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeClean("clean", b)
		checkDecoded(t, err, func() []byte { return encodeClean(c) }, b)
	})
}

// checkDecoded: what is accepted encodes to the same bytes, what is refused is said to be corrupt.
func checkDecoded(t *testing.T, err error, encode func() []byte, file []byte) {
	t.Helper()
	if err != nil {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("untyped error %v", err)
		}
		return
	}
	if got := encode(); !bytes.Equal(got, file) && !bytes.Equal(got[:4], []byte(cleanFormat.magic)) {
		t.Fatalf("decoded and encoded again:\n%x\n%x", file, got)
	}
}

func FuzzScan(f *testing.F) {
	one := batch(f, 3, 1, noProducer, "v")
	two := batch(f, 2, 1, producerTag{id: 1}, "w")
	record.Stamp(two, 3, 0)
	f.Add(append(bytes.Clone(one), two...))
	f.Add(append(bytes.Clone(one), make([]byte, 80)...))
	f.Add(two[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		disk := memfs.New()
		file, err := disk.Create("/x")
		must(t, err)
		_, err = file.WriteAt(b, 0)
		must(t, err)
		var kept []byte
		next := int64(0)
		pos, end, err := segment.Scan(file, 0, 0, int64(len(b)), 0, func(h record.Header, batch []byte, at int64) error {
			if h.BaseOffset != next || at != int64(len(kept)) {
				t.Fatalf("batch at %d position %d, expected %d and %d", h.BaseOffset, at, next, len(kept))
			}
			next = h.NextOffset()
			kept = append(kept, batch...)
			return nil
		})
		if pos != int64(len(kept)) || end != next || !bytes.HasPrefix(b, kept) {
			t.Fatalf("ended at %d, %d with %d bytes up to %d", pos, end, len(kept), next)
		}
		if err == nil != (len(kept) == len(b)) || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes, %v", len(kept), len(b), err)
		}
	})
}

// FuzzAppendAsFollower: whatever a leader sends, the log takes whole batches that follow each other, says how many, and can be read.
func FuzzAppendAsFollower(f *testing.F) {
	f.Add(stamped(f, 0, 2, 1, 1, 2))
	f.Add(stamped(f, 0, 1, 4, 3))
	f.Add(stamped(f, 0, 1, 4)[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		for rest := b; len(rest) > 0; { // or the checksum would refuse nearly all of them
			batch, more, err := record.NextFrame(rest)
			if err != nil {
				break
			}
			h, _ := record.ParseHeader(batch)
			record.SetProducerOn(batch, h.ProducerID, h.ProducerEpoch, h.BaseSequence)
			rest = more
		}
		e := newEnv(t, testConfig())
		n, err := e.l.AppendAsFollower(bytes.Clone(b))
		if n < 0 || n > len(b) || (err == nil) != (n == len(b)) || int64(n) != e.l.Size() {
			t.Fatalf("%d of %d bytes, size %d, %v", n, len(b), e.l.Size(), err)
		}
		if n == 0 {
			return
		}
		must(t, e.host.round(e.l))
		got, err := readAll(e.l, 0, e.l.End())
		if err != nil || !bytes.Equal(got, b[:n]) {
			t.Fatalf("%d bytes are read of %d: %v", len(got), n, err)
		}
	})
}
