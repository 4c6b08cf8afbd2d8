package storage

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs/memfs"
)

var testStorage = ids.StorageID{1, 2, 3}

func testKey(n int32) partitionKey { return partitionKey{TopicID: ids.TopicID{7}, Partition: n} }

func progress(n int32, flushed int64, epochs ...log.EpochStart) journalRecord {
	return journalRecord{key: testKey(n), logID: ids.LogID{byte(n)}, kind: kindProgress, flushed: flushed, highWatermark: flushed, epochs: epochs}
}

var stateDiff = cmp.AllowUnexported(logState{}, journalRecord{}, partitionKey{})

func diffState(want, got journalState) string {
	return cmp.Diff(want, got, stateDiff, cmp.Transformer("epochs", func(e []log.EpochStart) string { return fmt.Sprint(e) }))
}

func drawRecord(t *rapid.T) journalRecord {
	n := rapid.Int32Range(0, 3).Draw(t, "partition")
	r := journalRecord{
		key:           testKey(n),
		logID:         ids.LogID{byte(n), byte(rapid.IntRange(0, 1).Draw(t, "incarnation"))},
		kind:          recordKind(rapid.IntRange(1, 6).Draw(t, "kind")),
		flushed:       rapid.Int64Range(0, 1000).Draw(t, "flushed"),
		highWatermark: rapid.Int64Range(0, 1000).Draw(t, "hw"),
		logStart:      rapid.Int64Range(0, 1000).Draw(t, "start"),
		wantedStart:   rapid.Int64Range(0, 1000).Draw(t, "wanted start"),
		adopted:       rapid.Int32Range(0, 50).Draw(t, "adopted"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "epochs") {
		r.epochs = append(r.epochs, log.EpochStart{Epoch: rapid.Int32Range(0, 50).Draw(t, "epoch"), Start: rapid.Int64Range(0, 1000).Draw(t, "start")})
	}
	return r
}

func TestJournalReplayIsTheSumOfItsRecords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rounds := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(drawRecord), 0, 5), 0, 8).Draw(rt, "rounds")
		fsys := memfs.New()
		j, err := newJournal(fsys, "/", testStorage, 700, 0, journalState{})
		if err != nil {
			rt.Fatal(err)
		}
		want := journalState{}
		for _, records := range rounds {
			if err := j.commit(records); err != nil {
				rt.Fatal(err)
			}
			for _, r := range records {
				want.apply(r)
			}
		}
		if err := j.close(); err != nil {
			rt.Fatal(err)
		}
		got, err := replayJournal(fsys, "/"+journalName, testStorage)
		if err != nil || len(got.damage) > 0 || got.torn {
			rt.Fatalf("replay: %v, %+v", err, got)
		}
		if d := diffState(want, got.state); d != "" {
			rt.Fatalf("state (-want +got):\n%s", d)
		}
		for k, st := range got.state {
			for i := 1; i < len(st.epochs); i++ {
				if st.epochs[i].Epoch <= st.epochs[i-1].Epoch || st.epochs[i].Start <= st.epochs[i-1].Start {
					rt.Fatalf("%v: epochs %v do not rise", k, st.epochs)
				}
			}
		}
	})
}

// sampleJournal returns a journal as a process would leave it, and what is in it after each frame or copy, by its end.
func sampleJournal() (content []byte, states map[int]journalState) {
	rounds := [][]journalRecord{
		{{key: testKey(0), logID: ids.LogID{0}, kind: kindState}, {key: testKey(1), logID: ids.LogID{1}, kind: kindState, flushed: 5}},
		{progress(0, 10, log.EpochStart{Epoch: 1, Start: 0})},
		{progress(0, 20), progress(1, 7)},
		{{key: testKey(0), logID: ids.LogID{0}, kind: kindTruncated, flushed: 15}},
		{progress(0, 30, log.EpochStart{Epoch: 2, Start: 15}), progress(1, 9)},
		{progress(1, 11)},
	}
	content = encodeJournalHeader(testStorage, 1)
	states = map[int]journalState{len(content): {}}
	state := journalState{}
	sequence := uint64(1)
	for _, records := range rounds {
		before := len(content)
		content, sequence = appendFrames(content, sequence, records)
		for _, r := range records {
			state.apply(r)
		}
		snapshot := maps.Clone(state)
		if f, _ := parseFrame(content[before:]); before+f.size < len(content) {
			states[before+f.size] = snapshot // the copy follows
		}
		states[len(content)] = snapshot
	}
	return content, states
}

func TestJournalTornAtEveryLength(t *testing.T) {
	content, states := sampleJournal()
	last := journalHeaderSize
	for n := journalHeaderSize; n <= len(content); n++ {
		if _, ok := states[n]; ok {
			last = n
		}
		got, err := replayBytes(journalName, content[:n], testStorage)
		if err != nil || len(got.damage) > 0 {
			t.Fatalf("%d bytes: %v, damage %v", n, err, got.damage)
		}
		if d := diffState(states[last], got.state); d != "" {
			t.Fatalf("%d bytes (-want +got):\n%s", n, d)
		}
		if got.torn != (n != last) {
			t.Fatalf("%d bytes: torn is %v, the last frame ends at %d", n, got.torn, last)
		}
		// What a torn write leaves behind the last frame is as often zeros or old sectors as nothing.
		got, err = replayBytes(journalName, append(append([]byte{}, content[:last]...), make([]byte, len(content)-last)...), testStorage)
		if err != nil || len(got.damage) > 0 || diffState(states[last], got.state) != "" {
			t.Fatalf("%d bytes and zeros: %v, %+v", last, err, got)
		}
	}
}

// TestJournalBitFlips: no flip loses a critical record; one that loses another record, or hits a copy, is reported, unless it is in
// the last frame, where it cannot be told from a torn write.
func TestJournalBitFlips(t *testing.T) {
	content, states := sampleJournal()
	want := states[len(content)]
	lastFrame := len(content) - frameHeaderSize - recordFixedSize
	for i := range content {
		for bit := range 8 {
			flipped := append([]byte{}, content...)
			flipped[i] ^= 1 << bit
			got, err := replayBytes(journalName, flipped, testStorage)
			if err != nil {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
			if i >= lastFrame {
				if !got.torn || diffState(states[lastFrame], got.state) != "" {
					t.Fatalf("byte %d bit %d in the last frame: %+v", i, bit, got)
				}
				continue
			}
			if len(got.damage) == 0 {
				t.Fatalf("byte %d bit %d: not noticed", i, bit)
			}
			if d := diffState(want, got.state); d != "" {
				t.Fatalf("byte %d bit %d: state (-want +got):\n%s", i, bit, d)
			}
			if at := got.damage[0].Offset; at > int64(i)+8 {
				t.Fatalf("byte %d bit %d: reported at %d", i, bit, at)
			}
		}
	}
}

func TestJournalNoticesALostFrame(t *testing.T) {
	content := encodeJournalHeader(testStorage, 1)
	content, seq := appendFrames(content, 1, []journalRecord{progress(0, 10)})
	content, seq = appendFrames(content, seq+1, []journalRecord{progress(0, 20)}) // frame 2 is lost without a trace
	content, _ = appendFrames(content, seq, []journalRecord{progress(1, 5)})
	got, err := replayBytes(journalName, content, testStorage)
	if err != nil || !got.lost || len(got.damage) != 1 {
		t.Fatalf("replay: %v, %+v", err, got)
	}
	if got.state[testKey(0)].flushed != 20 || got.state[testKey(1)].flushed != 5 {
		t.Errorf("what is left is not used: %+v", got.state)
	}
}

func TestJournalRefusesFutureVersionAndOtherStorage(t *testing.T) {
	_, err := replayBytes(journalName, futureJournal(), testStorage)
	var future *FutureFormatError
	if !errors.As(err, &future) || future.Version != journalVersion+1 {
		t.Errorf("future version: %v", err)
	}
	_, err = replayBytes(journalName, encodeJournalHeader(ids.StorageID{9}, 1), testStorage)
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("journal of another storage: %v", err)
	}
}

func TestJournalTruncationLowersAndForgetsEpochs(t *testing.T) {
	s := journalState{}
	s.apply(progress(0, 100, log.EpochStart{Epoch: 1, Start: 0}, log.EpochStart{Epoch: 3, Start: 40}, log.EpochStart{Epoch: 4, Start: 80}))
	s.apply(journalRecord{key: testKey(0), logID: ids.LogID{0}, kind: kindTruncated, flushed: 40, highWatermark: 40})
	got := s[testKey(0)]
	if got.flushed != 40 || got.highWatermark != 40 || len(got.epochs) != 1 {
		t.Errorf("after truncation to 40: %+v", got)
	}
	s.apply(progress(0, 60, log.EpochStart{Epoch: 5, Start: 40}))
	if got := s[testKey(0)]; got.flushed != 60 || len(got.epochs) != 2 {
		t.Errorf("after new progress: %+v", got)
	}
}

func TestJournalRemovalNamesTheLog(t *testing.T) {
	s := journalState{}
	s.apply(progress(3, 100))
	s.apply(journalRecord{key: testKey(3), logID: ids.LogID{99}, kind: kindRemoved})
	if _, ok := s[testKey(3)]; !ok {
		t.Fatal("the removal of an older log removed the newer one")
	}
	s.apply(journalRecord{key: testKey(3), logID: ids.LogID{3}, kind: kindRemoved})
	if _, ok := s[testKey(3)]; ok {
		t.Fatal("a removed log is still known")
	}
}

func TestJournalBoundsEpochs(t *testing.T) {
	s := journalState{}
	for i := range int32(maxJournalEpochs + 10) {
		s.apply(progress(0, int64(i), log.EpochStart{Epoch: i, Start: int64(i)}))
	}
	got := s[testKey(0)].epochs
	if len(got) != maxJournalEpochs || got[len(got)-1].Epoch != maxJournalEpochs+9 {
		t.Errorf("%d epochs, the last %v", len(got), got[len(got)-1])
	}
}

func futureJournal() []byte {
	b := encodeJournalHeader(testStorage, 1)
	b[8]++
	return resealHeader(b)
}

func FuzzJournalReplay(f *testing.F) {
	content, _ := sampleJournal()
	f.Add(content)
	f.Add(futureJournal())
	f.Add(content[:len(content)-5])
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := replayBytes(journalName, b, testStorage)
		var corrupt *CorruptFileError
		var future *FutureFormatError
		if err != nil && !errors.As(err, &corrupt) && !errors.As(err, &future) {
			t.Fatalf("untyped error %v", err)
		}
		for _, r := range got.state.records() {
			if len(r.epochs) > maxJournalEpochs {
				t.Fatalf("%d epochs", len(r.epochs))
			}
		}
		if got.end > int64(len(b)) {
			t.Fatalf("end %d of %d bytes", got.end, len(b))
		}
	})
}
