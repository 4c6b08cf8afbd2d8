package controller

import (
	"testing"

	"runnel.dev/runnel/broker/metadata"
)

// BenchmarkDecide: 2,000 replicas on each of three brokers, when nothing is to do and when one of them dies.
func BenchmarkDecide(b *testing.B) {
	var partitions []*metadata.Partition
	for i, replicas := range Place([]int32{1, 2, 3}, nil, Load{map[int32]int{}, map[int32]int{}}, 2000, 3) {
		partitions = append(partitions, part(int32(i), replicas...))
	}
	s := metadata.NewState(wide(3, 3, partitions...))
	for name, in := range map[string]Input{"idle": {}, "one dies": suspects(2)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Decide(s, nil, in)
			}
		})
	}
}
