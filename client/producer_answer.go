package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/record"
)

// attemptRef names one attempt of one batch; a late answer to an earlier attempt does not match any more.
type attemptRef struct {
	pt      *producerPartition
	b       *batch
	attempt uint64
}

// current returns the attempt's index in the queue, or -1 when it is not the batch's current one.
func (a attemptRef) currentLocked() int {
	if a.b.attempt.Load() != a.attempt || a.b.state != batchSent {
		return -1
	}
	return slices.Index(a.pt.mu.queue, a.b)
}

// answered takes the broker's answer to an attempt.
func (pt *producerPartition) answered(a attemptRef, r *runnelv1.ProduceResponse) {
	pt.mu.Lock()
	i := a.currentLocked()
	if i < 0 {
		pt.mu.Unlock()
		return
	}
	pt.mu.inFlight--
	var hint *runnelv1.LeaderHint
	if r.GetError() == nil {
		pt.acceptedLocked(a.b, r.GetBaseOffset(), r.GetLogAppendTimeMs(), r.GetDuplicate())
	} else {
		e := itemError(r.GetError())
		hint = e.leader
		pt.refusedLocked(i, e)
	}
	id := pt.mu.topicID
	pt.offerLocked()
	pt.mu.Unlock()
	pt.p.c.meta.hint(pt.tp.Topic, id, pt.index, hint)
	pt.deliver()
}

func (pt *producerPartition) acceptedLocked(b *batch, base, appendTime int64, duplicate bool) {
	b.state, b.ambiguous = batchDone, false
	pt.mu.settledSequence = addSequence(b.sequence, b.count)
	pt.mu.back.reset()
	pt.mu.cause = nil
	if !b.abandoned {
		b.result = batchResult{baseOffset: base, appendTime: appendTime, duplicate: duplicate}
	}
	pt.settleLocked()
}

// refusedBeforeAppend are reasons after which a batch is certainly not in the log, as far as this attempt goes.
var refusedBeforeAppend = map[string]bool{
	reasonNotLeader: true, reasonUnknownEpoch: true, reasonNotReady: true, reasonShuttingDown: true, reasonNotEnoughReplicas: true,
	reasonUnknownTopicID: true, reasonUnknownPartition: true, reasonNoSpace: true, reasonReadOnly: true, reasonCorruptBatch: true,
	reasonOutOfOrder: true, reasonUnknownProducer: true, reasonUnreachable: true, reasonBrokerBusy: true,
}

// refusedLocked takes an error answer for batch i of the queue.
func (pt *producerPartition) refusedLocked(i int, e *Error) {
	b := pt.mu.queue[i]
	before := slices.ContainsFunc(pt.mu.queue[:i], (*batch).outstanding)
	switch {
	case e.Reason == reasonDuplicateSequence:
		// Written so long ago that the broker does not remember the offset.
		pt.acceptedLocked(b, -1, -1, true)
	case (e.Reason == reasonOutOfOrder || e.Reason == reasonUnknownProducer) && before:
		pt.retryLocked(b, e, false) // it follows a batch that is not there yet
	case e.Reason == reasonUnknownProducer && !b.ambiguous && !pt.mu.failing:
		// The broker has forgotten the producer, and this batch was never written: so was nothing behind it. A new id is safe.
		for _, o := range pt.mu.queue[i:] {
			if o.outstanding() {
				o.ambiguous = o.ambiguous && o.state == batchSent
			}
		}
		pt.mu.renew = true
		pt.retryLocked(b, e, false)
	case e.Reason == reasonOutOfOrder || e.Reason == reasonUnknownProducer || e.Reason == reasonProducerFenced:
		if !pt.mu.failing {
			pt.mu.renew = true
		}
		pt.failLocked(i, e)
	case e.Reason == reasonOutcomeUnknown:
		pt.retryLocked(b, e, true)
	case e.retriable:
		pt.retryLocked(b, e, !refusedBeforeAppend[e.Reason])
	default:
		// Every other refusal is one of the batch itself, before it was appended.
		b.ambiguous = b.ambiguous || e.Code == codes.Internal || e.Code == codes.Unknown
		pt.failLocked(i, e)
	}
}

// retryLocked sends b again after a pause.
func (pt *producerPartition) retryLocked(b *batch, cause error, ambiguous bool) {
	b.state = batchRetry
	b.ambiguous = b.ambiguous || ambiguous
	pt.mu.cause = cause
	now := pt.p.c.cfg.clock.Now()
	if !pt.mu.retryAt.After(now) {
		wait := pt.mu.back.next()
		pt.mu.retryAt = now.Add(wait)
		pt.p.timers.at(event{at: pt.mu.retryAt, run: pt.onRetry})
		pt.p.c.cfg.hooks.Retried(pt.tp, cause, wait)
	}
	pt.settleLocked()
}

func (pt *producerPartition) onRetry(time.Time, *batch, uint64) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.offerLocked()
}

// lost says that an attempt's stream has ended without an answer.
func (pt *producerPartition) lost(a attemptRef, cause error) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if a.currentLocked() < 0 {
		return
	}
	pt.mu.inFlight--
	pt.retryLocked(a.b, cause, true)
	pt.offerLocked()
}

// recallLocked gives up waiting for the current attempts: their broker is not the leader any more.
func (pt *producerPartition) recallLocked() {
	for _, b := range pt.mu.queue {
		if b.state == batchSent {
			b.state, b.ambiguous = batchRetry, true
			b.attempt.Add(1)
			pt.mu.inFlight--
		}
	}
}

// setLeader applies metadata.
func (pt *producerPartition) setLeader(t *topicMeta, m partitionMeta) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	mu := &pt.mu
	mu.topicID, mu.maxBatchBytes, mu.closed = t.id, t.maxBatchBytes, pt.p.closedErr()
	mu.codec = pt.p.codecFor(t.compression)
	if mu.sender != nil && mu.leader == m.leader && mu.leaderEpoch == m.leaderEpoch {
		return
	}
	moved := mu.leader != m.leader || mu.leaderEpoch != m.leaderEpoch
	mu.leader, mu.leaderEpoch = m.leader, m.leaderEpoch
	mu.sender = nil
	if m.leader >= 0 {
		mu.sender = pt.p.sender(m.leader)
	}
	pt.hasLeader.Store(mu.sender != nil)
	if moved {
		pt.recallLocked()
		mu.retryAt = time.Time{}
		mu.back.reset()
		pt.settleLocked()
		if mu.sender != nil {
			mu.sender.hurry()
		}
	}
	pt.offerLocked()
}

// topicGone fails everything: the topic that it was meant for does not exist any more, so nothing is resolved further.
func (pt *producerPartition) topicGone(cause error) {
	pt.mu.Lock()
	pt.endLocked(cause)
	pt.mu.nextSequence, pt.mu.settledSequence, pt.mu.renew = 0, 0, false
	pt.mu.sender, pt.mu.leader = nil, -1
	pt.mu.closed = cause
	pt.hasLeader.Store(false)
	pt.mu.Unlock()
	pt.p.deliverLater(pt)
}

// endLocked settles everything for good.
func (pt *producerPartition) endLocked(cause error) {
	for _, b := range pt.mu.queue {
		switch {
		case b.state == batchDone:
		case b.abandoned:
			b.state = batchDone
		case b.state == batchSent || b.ambiguous:
			b.state, b.result.err = batchDone, pt.failure(ErrOutcomeUnknown, cause)
		default:
			b.state, b.result.err = batchDone, pt.failure(ErrNotWritten, cause)
		}
	}
	pt.mu.open, pt.mu.inFlight, pt.mu.failing = nil, 0, false
}

// checkTimeouts fails what has waited too long and returns when to look again; the zero time: nothing is waiting.
func (pt *producerPartition) checkTimeouts(now time.Time) (next time.Time) {
	pt.mu.Lock()
	var hung *sender
	delivery, request := pt.p.cfg.deliveryTimeout, pt.p.c.cfg.requestTimeout
	for i, b := range pt.mu.queue {
		if b.state == batchDone || b.abandoned {
			continue
		}
		due := b.queuedAt.Add(delivery)
		if due.After(now) {
			next = due
		} else {
			pt.abandonLocked(i, pt.timedOutLocked(delivery))
		}
		break // those behind it were queued later
	}
	for _, b := range pt.mu.queue {
		if b.state != batchSent {
			continue
		}
		if due := b.sentAt.Add(request); due.After(now) {
			next = earlier(next, due)
		} else {
			hung = pt.mu.sender
		}
	}
	pt.mu.Unlock()
	if hung != nil {
		hung.abort(fmt.Errorf("%w: no answer for %v", ErrUnavailable, request))
	}
	pt.deliver()
	return next
}

// notSent notes why nothing could be sent, for whoever asks in the end.
func (pt *producerPartition) notSent(cause error, wait time.Duration) {
	pt.mu.Lock()
	if pt.mu.cause == nil {
		pt.mu.cause = cause
	}
	pt.mu.Unlock()
	pt.p.c.cfg.hooks.Retried(pt.tp, cause, wait)
}

// timedOutLocked says why nothing came of a batch, as far as is known. The reason is text alone: its class says nothing of the outcome.
func (pt *producerPartition) timedOutLocked(after time.Duration) error {
	switch {
	case pt.mu.cause != nil:
		return fmt.Errorf("%w: %v; the last attempt: %v", ErrDeliveryTimeout, after, pt.mu.cause) //nolint:errorlint // its class says nothing of the outcome
	case pt.mu.sender == nil:
		return fmt.Errorf("%w: %v; the partition has no leader", ErrDeliveryTimeout, after)
	default:
		return fmt.Errorf("%w: %v", ErrDeliveryTimeout, after)
	}
}

// earlier is the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// deliver runs callbacks of settled batches, in order, on the caller's goroutine; one caller at a time per partition.
func (pt *producerPartition) deliver() {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.mu.delivering {
		return
	}
	pt.mu.delivering = true
	for {
		b := pt.deliverableLocked()
		if b == nil {
			break
		}
		info := ProducedBatch{
			TopicPartition: pt.tp, Records: len(b.entries), Bytes: len(b.wired), Attempts: b.sends, Duplicate: b.result.duplicate,
			Err: b.result.err, Latency: pt.p.c.cfg.clock.Since(b.queuedAt),
		}
		pt.mu.Unlock()
		failed := pt.complete(b)
		pt.p.c.cfg.hooks.Produced(info)
		pt.mu.Lock()
		b.delivered = true
		for _, f := range b.flushes {
			f.end(info.Records, failed, info.Err)
		}
		pt.releaseLocked(b)
	}
	pt.mu.delivering = false
}

// deliverableLocked removes what is finished from the queue's front and returns the next batch whose callbacks may run, or nil.
func (pt *producerPartition) deliverableLocked() *batch {
	for i := 0; i < len(pt.mu.queue); {
		b := pt.mu.queue[i]
		switch {
		case b.building && b.state == batchDone:
			return nil // the sender delivers once it has noticed
		case b.delivered && b.state == batchDone:
			pt.mu.queue = slices.Delete(pt.mu.queue, i, i+1)
			pt.p.freeBatch(b)
		case b.delivered:
			i++
		case b.state == batchDone || b.abandoned:
			return b
		default:
			return nil
		}
	}
	return nil
}

// releaseLocked drops what a delivered batch does not need any more.
func (pt *producerPartition) releaseLocked(b *batch) {
	clear(b.entries)
	b.entries = b.entries[:0]
	clear(b.flushes)
	b.flushes = b.flushes[:0]
	clear(b.contexts)
	b.contexts = b.contexts[:0]
}

// complete runs b's callbacks, without locks, and returns how many records failed. Nothing changes entries and result of a batch
// that has an outcome.
func (pt *producerPartition) complete(b *batch) (failed int) {
	res := b.result
	for i := range b.entries {
		e := &b.entries[i]
		err := res.err
		if res.errs != nil {
			err = res.errs[i]
		}
		e.r.Partition = pt.index
		e.r.Offset = -1
		switch {
		case err != nil:
			failed++
		case res.baseOffset >= 0:
			e.r.Offset = res.baseOffset + int64(i)
			if res.appendTime >= 0 {
				e.r.Timestamp = time.UnixMilli(res.appendTime)
			}
		}
		e.done(e.r, err)
	}
	pt.p.budget.give(b.cost())
	return failed
}

// flush makes everything that is queued report to f, and lets nothing wait for more records.
func (pt *producerPartition) flush(f *flushWaiter) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for _, b := range pt.mu.queue {
		if !b.delivered {
			f.begin()
			b.flushes = append(b.flushes, f)
		}
	}
	if b := pt.mu.open; b != nil {
		pt.sealLocked(b)
	}
}

// codecOf maps the public name to the record package's.
func codecOf(c Compression) record.Codec {
	switch c {
	case CompressionGzip:
		return record.CodecGzip
	case CompressionSnappy:
		return record.CodecSnappy
	case CompressionLZ4:
		return record.CodecLZ4
	case CompressionZstd:
		return record.CodecZstd
	case CompressionTopic, CompressionNone:
	}
	return record.CodecNone
}

// isCancelled reports whether a call ended because its own context did.
func isCancelled(err error) bool {
	var e *Error
	return errors.Is(err, context.Canceled) || (errors.As(err, &e) && e.Code == codes.Canceled)
}

// hurry lets the open batch wait no longer: the buffer is full.
func (pt *producerPartition) hurry() {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.mu.open != nil {
		pt.sealLocked(pt.mu.open)
	}
}

// refuse makes the partition take no more records.
func (pt *producerPartition) refuse(cause error) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.mu.closed = cause
}

// end settles everything for good and runs the callbacks.
func (pt *producerPartition) end(cause error) {
	pt.mu.Lock()
	if pt.mu.cause != nil {
		cause = fmt.Errorf("%w; the last attempt: %v", cause, pt.mu.cause) //nolint:errorlint // its class says nothing of the outcome
	}
	pt.endLocked(cause)
	pt.mu.sender = nil
	pt.mu.Unlock()
	pt.deliver()
}
