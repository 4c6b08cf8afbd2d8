// Package objectstore is the seam between Runnel and object storage: a flat
// name space of immutable byte strings that are written whole, read in ranges,
// listed by prefix and deleted in batches.
//
// The interface is what S3 can keep, and no more, with the loose ends of that
// protocol tied down so that all stores answer alike:
//
//   - Every object carries a checksum that its writer computed. A store refuses
//     bytes that do not match, and checks reads of a whole object against it.
//   - A body that ends early is an error and never a plain io.EOF.
//   - The precondition "if none match" makes exactly one of many concurrent
//     writers win.
//   - A call that failed may have taken effect, unless its error says what was
//     wrong with it. Look at [Retriable] for which ones are worth another try.
//   - Nothing here retries, and nothing sets deadlines: callers do, with the
//     context of each call.
//
// Listing is the weak spot of object storage. Callers may not rely on it for
// anything that has to be right at once; see [Store].
//
// Package storetest is this contract as a suite of tests.
package objectstore
