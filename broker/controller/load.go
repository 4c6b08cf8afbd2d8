package controller

import (
	"time"

	"runnel.dev/runnel/broker/metadata"
)

// PartitionLoad is what a partition's leader measured over the last seconds.
type PartitionLoad struct {
	// BytesIn and BytesOut are bytes per second appended, and sent to consumers and followers. RecordsIn is records per second.
	BytesIn, BytesOut, RecordsIn float64
}

// weight is what a leadership costs its broker: all the bytes that pass through it.
func (l PartitionLoad) weight() float64 { return l.BytesIn + l.BytesOut }

// LoadReport is what one broker measured of the partitions that it leads. Partitions without traffic may be left out. It is not changed
// after it was handed over.
type LoadReport struct {
	Broker     int32
	Partitions map[metadata.PartitionRef]PartitionLoad
}

// Settings are the controller's limits; zero values take their defaults.
type Settings struct {
	// MaxMoves is how many partitions may be moving to or from one broker at a time. Default 64.
	MaxMoves int
	// BalanceInterval is the time between two rounds of leader balancing. Default 30 s; negative: never.
	BalanceInterval time.Duration
	// LeaderMoves bounds the leaders that one round brings back to their preferred brokers. Default 100.
	LeaderMoves int
	// LoadMoves bounds the leaders that one round moves for their load. Default 8.
	LoadMoves int
	// Imbalance is how far above the average a broker's load has to be before a round acts, as a fraction of the average. Default 0.3. It then
	// acts until the broker is within half of that.
	Imbalance float64
	// MinLoad is the average load per broker, bytes per second, below which load does not matter. Default 1 MiB/s.
	MinLoad float64
	// TakeoverDelay is the head start that each broker gives the ones with lower ids when a controller is suspected. Default 50 ms.
	TakeoverDelay time.Duration
}

func (c Settings) withDefaults() Settings {
	if c.MaxMoves <= 0 {
		c.MaxMoves = 64
	}
	if c.BalanceInterval == 0 {
		c.BalanceInterval = 30 * time.Second
	}
	if c.LeaderMoves <= 0 {
		c.LeaderMoves = 100
	}
	if c.LoadMoves <= 0 {
		c.LoadMoves = 8
	}
	if c.Imbalance <= 0 {
		c.Imbalance = 0.3
	}
	if c.MinLoad <= 0 {
		c.MinLoad = 1 << 20
	}
	if c.TakeoverDelay <= 0 {
		c.TakeoverDelay = 50 * time.Millisecond
	}
	return c
}
