package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"runnel.dev/runnel/client"
)

// setting is one field of a topic's configuration: how the command line spells it, and how brokers do.
type setting struct {
	key, field, usage string
	set               func(*client.TopicConfig, string) error
	show              func(client.TopicConfig) string
	// human turns the value in a broker's answer, a bare number, into what set takes.
	human func(string) string
}

const (
	forever   = "forever"
	unlimited = "unlimited"
)

var settings = []setting{
	durationSetting("retention", "retention_ms", "how long records are kept, or forever", forever, func(c *client.TopicConfig) **time.Duration { return &c.Retention }),
	bytesSetting("retention-bytes", "retention_bytes", "how much a partition keeps, or unlimited", unlimited, func(c *client.TopicConfig) **int64 { return &c.RetentionBytes }),
	bytesSetting("segment-bytes", "segment_bytes", "size at which a segment is rolled, 1MiB to 2GiB-1", "", func(c *client.TopicConfig) **int64 { return &c.SegmentBytes }),
	durationSetting("segment-age", "segment_age_ms", "age at which a segment is rolled", "", func(c *client.TopicConfig) **time.Duration { return &c.SegmentAge }),
	maxBatchSetting(),
	compressionSetting(),
	choiceSetting("timestamp-type", "timestamp_type", "create_time", "log_append_time", func(c *client.TopicConfig) **bool { return &c.LogAppendTime }),
	choiceSetting("cleanup-policy", "cleanup_policy", "delete", "compact", func(c *client.TopicConfig) **bool { return &c.Compact }),
	durationSetting("max-timestamp-ahead", "max_timestamp_ahead_ms", "how far in the future timestamps may lie", "", func(c *client.TopicConfig) **time.Duration { return &c.MaxTimestampAhead }),
	minInSyncSetting(),
}

func durationSetting(key, field, usage, never string, at func(*client.TopicConfig) **time.Duration) setting {
	format := func(d time.Duration) string {
		if d < 0 && never != "" {
			return never
		}
		return formatDuration(d)
	}
	return setting{
		key: key, field: field, usage: usage,
		set: func(c *client.TopicConfig, s string) error {
			d, err := parseDuration(s)
			if never != "" && (s == never || s == "-1") {
				d, err = -1, nil
			}
			*at(c) = &d
			return err
		},
		show: func(c client.TopicConfig) string { return showValue(*at(&c), format) },
		human: func(s string) string {
			return number(s, func(ms int64) string { return format(time.Duration(ms) * time.Millisecond) })
		},
	}
}

func bytesSetting(key, field, usage, never string, at func(*client.TopicConfig) **int64) setting {
	format := func(n int64) string {
		if n < 0 && never != "" {
			return never
		}
		return formatBytes(n)
	}
	return setting{
		key: key, field: field, usage: usage,
		set: func(c *client.TopicConfig, s string) error {
			n, err := parseBytes(s)
			if never != "" && (s == never || s == "-1") {
				n, err = -1, nil
			}
			*at(c) = &n
			return err
		},
		show:  func(c client.TopicConfig) string { return showValue(*at(&c), format) },
		human: func(s string) string { return number(s, format) },
	}
}

func maxBatchSetting() setting {
	format := func(n int32) string { return formatBytes(int64(n)) }
	return setting{
		key: "max-batch-bytes", field: "max_batch_bytes", usage: "largest batch that is accepted, 1KiB to 16MiB",
		set: func(c *client.TopicConfig, s string) error {
			n, err := parseBytes(s)
			if err == nil && n > math.MaxInt32 {
				err = fmt.Errorf("size %q: want at most 16MiB", s)
			}
			v := int32(n) // the error says when it does not fit
			c.MaxBatchBytes = &v
			return err
		},
		show:  func(c client.TopicConfig) string { return showValue(c.MaxBatchBytes, format) },
		human: func(s string) string { return number(s, formatBytes) },
	}
}

func compressionSetting() setting {
	format := func(v client.Compression) string {
		if v == client.CompressionTopic {
			return "producer"
		}
		return v.String()
	}
	return setting{
		key: "compression", field: "compression", usage: "producers' default: producer, none, gzip, snappy, lz4 or zstd",
		set: func(c *client.TopicConfig, s string) error {
			v, err := client.ParseCompression(strings.Replace(s, "producer", client.CompressionTopic.String(), 1))
			if err != nil {
				err = fmt.Errorf("%q: want producer, none, gzip, snappy, lz4 or zstd", s)
			}
			c.Compression = &v
			return err
		},
		show: func(c client.TopicConfig) string { return showValue(c.Compression, format) },
		human: func(s string) string {
			if s == "unspecified" {
				return "producer"
			}
			return s
		},
	}
}

// choiceSetting has two values; the second is what the field being true means.
func choiceSetting(key, field, no, yes string, at func(*client.TopicConfig) **bool) setting {
	dashed := func(s string) string { return strings.ReplaceAll(s, "_", "-") }
	return setting{
		key: key, field: field, usage: dashed(no) + " or " + dashed(yes),
		set: func(c *client.TopicConfig, s string) error {
			v := s == dashed(yes)
			*at(c) = &v
			if !v && s != dashed(no) {
				return fmt.Errorf("%q: want %s or %s", s, dashed(no), dashed(yes))
			}
			return nil
		},
		show: func(c client.TopicConfig) string {
			return showValue(*at(&c), func(v bool) string {
				if v {
					return dashed(yes)
				}
				return dashed(no)
			})
		},
		human: dashed,
	}
}

func minInSyncSetting() setting {
	return setting{
		key: "min-in-sync-replicas", field: "min_in_sync_replicas", usage: "replicas that must have a record before it is acknowledged",
		set: func(c *client.TopicConfig, s string) error {
			n, err := strconv.ParseInt(s, 10, 32)
			if err != nil {
				err = fmt.Errorf("%q: want a number", s)
			}
			v := int32(n)
			c.MinInSyncReplicas = &v
			return err
		},
		show: func(c client.TopicConfig) string {
			return showValue(c.MinInSyncReplicas, func(n int32) string { return fmt.Sprint(n) })
		},
		human: func(s string) string { return s },
	}
}

func showValue[T any](v *T, format func(T) string) string {
	if v == nil {
		return "default"
	}
	return format(*v)
}

// number formats what is a number, and leaves alone what is not.
func number(s string, format func(int64) string) string {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return s
	}
	return format(n)
}

// findSetting accepts both spellings.
func findSetting(name string) (setting, error) {
	keys := make([]string, len(settings))
	for i, s := range settings {
		if name == s.key || name == s.field {
			return s, nil
		}
		keys[i] = s.key
	}
	return setting{}, fmt.Errorf("unknown setting %q, want one of %s", name, strings.Join(keys, ", "))
}

// parseSettings reads key=value pairs and reports every fault.
func parseSettings(pairs []string) (client.TopicConfig, error) {
	var c client.TopicConfig
	var faults []error
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("setting %q: want key=value", pair))
			continue
		}
		s, err := findSetting(key)
		if err == nil {
			if err = s.set(&c, value); err != nil {
				err = fmt.Errorf("setting %s: %w", s.key, err)
			}
		}
		faults = append(faults, err)
	}
	return c, errors.Join(faults...)
}

// resetFields translates the names to reset.
func resetFields(names []string) ([]string, error) {
	fields := make([]string, len(names))
	for i, name := range names {
		s, err := findSetting(name)
		if err != nil {
			return nil, err
		}
		fields[i] = s.field
	}
	return fields, nil
}

// settingsHelp lists the settings for --help.
func settingsHelp() string {
	var b strings.Builder
	b.WriteString("Settings:\n")
	for _, s := range settings {
		fmt.Fprintf(&b, "  %-22s%s\n", s.key, s.usage)
	}
	return b.String()
}
