package resource

import (
	"errors"
	"strings"
)

// ErrInvalid is matched by every *InvalidError: the resource asks for something that cannot be.
var ErrInvalid = errors.New("invalid resource")

// ErrNotImplemented is matched by an *InvalidError all of whose faults are things that a later version will have.
var ErrNotImplemented = errors.New("not implemented yet")

// Fault is one thing that is wrong with a resource.
type Fault struct {
	// Field is the path of the field, e.g. spec.segment.bytes.
	Field string
	// Value is what the field holds.
	Value string
	// Limit says what would be accepted.
	Limit string
	// NotYet is true for what a later version will have.
	NotYet bool
}

// String is one line: field, value, limit.
func (f Fault) String() string { return f.Field + " is " + f.Value + ", want " + f.Limit }

// InvalidError holds every fault of a resource, at least one, in the order of the fields.
type InvalidError struct{ Faults []Fault }

// Error lists all faults.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return ErrInvalid.Error() + ": " + strings.Join(lines, "; ")
}

// Is makes errors.Is work with ErrInvalid and, when every fault is something that a later version will have, ErrNotImplemented.
func (e *InvalidError) Is(target error) bool {
	if target != ErrNotImplemented {
		return target == ErrInvalid
	}
	for _, f := range e.Faults {
		if !f.NotYet {
			return false
		}
	}
	return true
}

// faults collects what is wrong.
type faults struct{ list []Fault }

func (f *faults) add(field, value, limit string) {
	f.list = append(f.list, Fault{Field: field, Value: value, Limit: limit})
}

func (f *faults) notYet(field, value, limit string) {
	f.list = append(f.list, Fault{Field: field, Value: value, Limit: limit, NotYet: true})
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return &InvalidError{Faults: f.list}
}
