package record_test

import (
	"testing"

	"runnel.dev/runnel/record"
)

// TestMurmur2 uses the reference values of Kafka's own test (UtilsTest.testMurmur2).
func TestMurmur2(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(record.Murmur2([]byte(key))); got != want {
			t.Errorf("Murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestPartitionForKey(t *testing.T) {
	for _, tt := range []struct {
		key        string
		partitions int32
		want       int32
	}{
		// The sign bit is masked: -973932308 & 0x7fffffff is 1173551340, -790332482 gives 1357151166.
		{"21", 6, 1173551340 % 6},
		{"21", 1, 0},
		{"foobar", 1000, 166},
		{"abc", 1 << 30, 479470107},
	} {
		if got := record.PartitionForKey([]byte(tt.key), tt.partitions); got != tt.want {
			t.Errorf("PartitionForKey(%q, %d) = %d, want %d", tt.key, tt.partitions, got, tt.want)
		}
	}
}
