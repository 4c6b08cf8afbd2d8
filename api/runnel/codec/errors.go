package codec

import "fmt"

// DecodeError says why a message is not well-formed.
type DecodeError struct {
	// Message is the protobuf message's name.
	Message string
	// Field is the field's number, 0 when the tag itself is bad.
	Field int
	// Offset is where in the message the fault was found, bytes.
	Offset int
	// Detail says what is wrong, with value and limit.
	Detail string
}

// Error implements error.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("malformed %s: field %d at byte %d: %s", e.Message, e.Field, e.Offset, e.Detail)
}
