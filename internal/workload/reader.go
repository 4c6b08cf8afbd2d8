package workload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
)

// DamagedError is a record that no writer has sent.
type DamagedError struct {
	Partition int32
	Offset    int64
	Bytes     int
}

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("partition %d: the record at offset %d (%d bytes) is damaged", e.Partition, e.Offset, e.Bytes)
}

// Parse returns what a record says of itself. fillerBytes are those of the writer. The error is a *DamagedError.
func Parse(r *client.Record, fillerBytes int) (history.Read, error) {
	read := history.Read{Partition: r.Partition, Offset: r.Offset}
	if len(r.Value) >= 8 {
		read.Number = binary.BigEndian.Uint64(r.Value)
	}
	if !bytes.Equal(r.Value, payload(read.Number, fillerBytes)) {
		return read, &DamagedError{Partition: r.Partition, Offset: r.Offset, Bytes: len(r.Value)}
	}
	return read, nil
}

// ReadAll reads each partition of a topic from its start to the end that it has now, in the order that history.Check wants.
func ReadAll(ctx context.Context, c *client.Client, topic string, fillerBytes int) (reads []history.Read, err error) {
	cs, err := c.NewConsumer(client.Topics(topic), client.From(client.Earliest), client.UntilEnd())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	for r, err := range cs.Records(ctx) {
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return reads, err
		}
		read, err := Parse(r, fillerBytes)
		if err != nil {
			return reads, err
		}
		reads = append(reads, read)
	}
	slices.SortStableFunc(reads, func(a, b history.Read) int { return cmp.Compare(a.Partition, b.Partition) })
	return reads, ctx.Err()
}
