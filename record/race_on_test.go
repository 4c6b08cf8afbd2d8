//go:build race

package record_test

// poolsLeak: under the race detector sync.Pool drops items at random, so pooled coders are made anew.
const poolsLeak = true
