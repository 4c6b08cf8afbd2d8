package client

import (
	"slices"
	"strings"
	"testing"
)

func TestOptionsReportAllFaults(t *testing.T) {
	_, err := newProducerConfig([]ProducerOption{Linger(-1), BatchBytes(1), BufferBytes(1), DeliveryTimeout(0), MaxInFlight(6), Compress(9)})
	if n := len(strings.Split(err.Error(), "\n")); n != 6 {
		t.Errorf("%d faults: %v", n, err)
	}
	_, err = newConsumerConfig([]ConsumerOption{From(At(-1)), OutOfRange(9), PartitionCredit(0), StreamCredit(-1)})
	if n := len(strings.Split(err.Error(), "\n")); n != 5 {
		t.Errorf("%d faults: %v", n, err)
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string][]string{
		"runnel://h1:7650,h2:1": {"h1:7650", "h2:1"}, "localhost": {"localhost:7650"}, "runnel://[::1]:5/": {"[::1]:5"}, "[::1]": {"[::1]:7650"},
	} {
		if got, err := parseURL(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "http://x", "runnel://", "a:1,,b:2", "::1", "a b", "runnel://h/x"} {
		if got, err := parseURL(in); err == nil {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}
