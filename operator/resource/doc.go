// Package resource builds what the operator sends: values in, requests out. Builders are pure, return the same for the same input, and
// leave their arguments as they are, so they are safe for concurrent use and a golden file shows all that they do.
//
// A builder answers with an *InvalidError that holds every fault, by the field's path in the resource, or with something that is complete.
// The schema of the CRDs refuses most faults already; objects that were stored under an older schema, or that a newer cluster would
// understand, end up here and become the condition Stalled.
package resource
