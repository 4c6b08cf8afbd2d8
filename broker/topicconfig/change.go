package topicconfig

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Apply returns base with the fields of patch set and the fields named in reset taken back, which makes them follow the default
// again. Any argument may be nil. A name in reset that is no field, or that patch sets as well, is a fault (*InvalidError).
func Apply(base, patch *runnelv1.TopicConfig, reset []string) (*runnelv1.TopicConfig, error) {
	out := &runnelv1.TopicConfig{}
	if base != nil {
		proto.Merge(out, base)
	}
	if patch != nil {
		proto.Merge(out, patch)
	}
	var c checker
	fields := out.ProtoReflect().Descriptor().Fields()
	for _, name := range reset {
		field := fields.ByName(protoreflect.Name(name))
		switch {
		case field == nil:
			c.fault("reset_fields", fmt.Sprintf("%q", name), "one of "+strings.Join(FieldNames(), ", "))
		case patch != nil && patch.ProtoReflect().Has(field):
			c.fault("reset_fields", fmt.Sprintf("%q", name), "a field that the same change does not set")
		default:
			out.ProtoReflect().Clear(field)
		}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// FieldNames returns the names of all settings, in the order of their field numbers.
func FieldNames() []string {
	fields := (&runnelv1.TopicConfig{}).ProtoReflect().Descriptor().Fields()
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	return names
}

// Diff returns the settings that differ, in the order of their field numbers. A field that is not set shows as an empty string,
// so diffing effective settings and diffing stored ones both say something useful. The arguments may be nil.
func Diff(before, after *runnelv1.TopicConfig) []*runnelv1.ConfigChange {
	var changes []*runnelv1.ConfigChange
	b, a := before.ProtoReflect(), after.ProtoReflect()
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		was, is := text(b, field), text(a, field)
		if was != is {
			changes = append(changes, &runnelv1.ConfigChange{Field: string(field.Name()), Before: was, After: is})
		}
	}
	return changes
}

// text prints a value as a person would type it: enum values without their prefix, in lower case.
func text(m protoreflect.Message, field protoreflect.FieldDescriptor) string {
	if !m.IsValid() || !m.Has(field) {
		return ""
	}
	value := m.Get(field)
	enum := field.Enum()
	if enum == nil {
		return value.String()
	}
	named := enum.Values().ByNumber(value.Enum())
	if named == nil {
		return fmt.Sprint(value.Enum())
	}
	prefix := strings.ToUpper(string(field.Name())) + "_"
	return strings.ToLower(strings.TrimPrefix(string(named.Name()), prefix))
}
