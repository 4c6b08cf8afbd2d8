// Package mem is an object store in memory, for tests of what uses one. It
// keeps the contract of objectstore.Store, and on demand it misbehaves as real
// services do: see [Fault].
package mem
