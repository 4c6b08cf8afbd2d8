package resource

import (
	"fmt"
	"strings"
)

const (
	longestName = 249 // bytes
	nameRule    = `1 to 249 of a-z A-Z 0-9 . _ -, not "." or "..", not beginning with "__"`
)

// TopicName checks the name that a topic is to have in the cluster. The error is an *InvalidError.
func TopicName(name string) error {
	var f faults
	f.topicName("spec.topicName", name)
	return f.err()
}

func (f *faults) topicName(field, name string) {
	legal := name != "" && len(name) <= longestName && name != "." && name != ".." && !strings.HasPrefix(name, "__")
	for i := 0; legal && i < len(name); i++ {
		legal = nameByte(name[i])
	}
	if !legal {
		f.add(field, quoted(name), nameRule)
	}
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// quoted shows a value on one line, cut where it is long, with nothing in it that a terminal would obey.
func quoted(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q (%d bytes)", s[:most]+"…", len(s))
	}
	return fmt.Sprintf("%q", s)
}
