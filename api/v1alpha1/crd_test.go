package v1alpha1

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const crdFolder = "../../config/crd/bases"

// typedInFull are the paths that the contract leaves open and the Go types do not.
var typedInFull = []string{".status", ".spec.topicNamespaces.selector"}

func TestCRDsKeepTheContract(t *testing.T) {
	contracts := readDocuments(t, "testdata/contract.yaml")
	files, err := filepath.Glob(filepath.Join(crdFolder, "*.yaml"))
	if err != nil || len(files) != 3 || len(contracts) != 3 {
		t.Fatalf("%d CRDs (%v) and %d contracts, want 3 of each", len(files), err, len(contracts))
	}
	for _, contract := range contracts {
		plural := dig(contract, "spec", "names", "plural")
		t.Run(fmt.Sprint(plural), func(t *testing.T) {
			file := filepath.Join(crdFolder, fmt.Sprintf("runnel.dev_%s.yaml", plural))
			crd := readDocuments(t, file)[0]
			if got, want := dig(crd, "spec", "names"), dig(contract, "spec", "names"); !reflect.DeepEqual(got, want) {
				t.Errorf("names = %v, want %v", got, want)
			}
			for _, path := range [][]string{{"metadata", "name"}, {"spec", "group"}, {"spec", "scope"}} {
				if got, want := dig(crd, path...), dig(contract, path...); got != want {
					t.Errorf("%v = %v, want %v", path, got, want)
				}
			}
			got, want := onlyVersion(t, crd), onlyVersion(t, contract)
			for _, field := range []string{"name", "served", "storage", "subresources", "additionalPrinterColumns"} {
				if !reflect.DeepEqual(got[field], want[field]) {
					t.Errorf("%s:\n got %v\nwant %v", field, got[field], want[field])
				}
			}
			for _, difference := range compareSchemas("", schemaOf(t, got), schemaOf(t, want)) {
				t.Error(difference)
			}
		})
	}
}

func TestCompareSchemasSees(t *testing.T) {
	const base = "type: object\nrequired: [a]\nproperties:\n  a: {type: integer, minimum: 1, default: 3}\n  b: {type: array, x-kubernetes-list-type: set, items: {type: string}}\n" +
		"x-kubernetes-validations: [{rule: 'self.a > 0', message: positive}]\n"
	tests := []struct{ name, old, changed, want string }{
		{"nothing", "", "", ""},
		{"a description", "type: integer", "type: integer, description: x", ""},
		{"the width of an integer", "type: integer", "type: integer, format: int32", ""},
		{"a default", "default: 3", "default: 4", ".a: default is 4, want 3"},
		{"a limit that is gone", "minimum: 1, ", "", ".a: minimum is absent, want 1"},
		{"a limit too many", "minimum: 1", "minimum: 1, maximum: 2", ".a: maximum is 2, want absent"},
		{"a field that is gone", "  b: {type: array, x-kubernetes-list-type: set, items: {type: string}}\n", "", ".b: the field is absent"},
		{"a field too many", "  b:", "  c: {type: string}\n  b:", ".c: not in the contract"},
		{"a type of items", "items: {type: string}", "items: {type: integer}", ".b[]: type is integer, want string"},
		{"a rule", "self.a > 0", "self.a > 1", `: rule "self.a > 0" (positive) is absent`},
		{"a message", "positive", "negative", `: rule "self.a > 0" (negative) is not in the contract`},
		{"what is required", "[a]", "[a, b]", ": required is [a b], want [a]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changed := base
			if tt.old != "" {
				changed = strings.Replace(base, tt.old, tt.changed, 1)
				if changed == base {
					t.Fatalf("%q is not in the schema", tt.old)
				}
			}
			var got, want map[string]any
			if err := yaml.Unmarshal([]byte(changed), &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(base), &want); err != nil {
				t.Fatal(err)
			}
			differences := compareSchemas("", got, want)
			if tt.want == "" && len(differences) != 0 || tt.want != "" && !slices.Contains(differences, tt.want) {
				t.Errorf("compareSchemas() = %q, want %q", differences, tt.want)
			}
		})
	}
}

// TestCRDsAreDescribed keeps `kubectl explain` readable and the CRDs small enough for client-side apply.
func TestCRDsAreDescribed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(crdFolder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		const limit = 256 << 10 // of all annotations of an object, and apply keeps a copy of the object in one
		if len(data) > limit {
			t.Errorf("%s has %d bytes, at most %d are admitted", file, len(data), limit)
		}
		walkProperties("", schemaOf(t, onlyVersion(t, readDocuments(t, file)[0])), func(path string, schema map[string]any) {
			if path != ".metadata" && schema["description"] == nil {
				t.Errorf("%s: %s has no description", filepath.Base(file), path)
			}
		})
	}
}

func TestDefaultsOfTheTypesAreThoseOfTheSchema(t *testing.T) {
	schema := schemaOf(t, onlyVersion(t, readDocuments(t, filepath.Join(crdFolder, "runnel.dev_topics.yaml"))[0]))
	defaults := map[string]any{}
	walkProperties("", schema, func(path string, schema map[string]any) { defaults[path] = schema["default"] })
	for path, want := range map[string]any{
		".spec.partitions":     float64(DefaultTopicPartitions),
		".spec.retention.time": string(DefaultTopicRetention),
		".spec.segment.bytes":  string(DefaultTopicSegmentBytes),
		".spec.segment.time":   string(DefaultTopicSegmentTime),
	} {
		if defaults[path] != want {
			t.Errorf("%s defaults to %v in the schema and to %v in Go", path, defaults[path], want)
		}
	}
}

// compareSchemas returns how a generated schema differs from the contract.
func compareSchemas(path string, got, want map[string]any) []string {
	if slices.Contains(typedInFull, path) {
		return nil
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, path+": "+fmt.Sprintf(format, args...)) }
	keys := slices.Sorted(maps.Keys(got))
	for key := range want {
		if _, both := got[key]; !both {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		switch key {
		case "description":
		case "properties", "items", "additionalProperties":
			out = append(out, compareNested(path, key, got[key], want[key])...)
		case "x-kubernetes-validations":
			is, expected := rules(got[key]), rules(want[key])
			for _, rule := range expected {
				if !slices.Contains(is, rule) {
					say("%s is absent", rule)
				}
			}
			for _, rule := range is {
				if !slices.Contains(expected, rule) {
					say("%s is not in the contract", rule)
				}
			}
		case "format":
			if _, fixed := want[key]; !fixed && want["type"] == "integer" {
				continue // the width that the Go type has
			}
			fallthrough
		default:
			if is, expected := sorted(key, got[key]), sorted(key, want[key]); !reflect.DeepEqual(is, expected) {
				say("%s is %v, want %v", key, orAbsent(is), orAbsent(expected))
			}
		}
	}
	return out
}

func compareNested(path, key string, got, want any) []string {
	is, _ := got.(map[string]any)
	expected, _ := want.(map[string]any)
	if key != "properties" {
		return compareSchemas(path+"[]", is, expected)
	}
	var out []string
	for name := range expected {
		if _, there := is[name]; !there {
			out = append(out, path+"."+name+": the field is absent")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		below := path + "." + name
		standard := path == "" && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name)
		field, known := expected[name].(map[string]any)
		switch {
		case known:
			out = append(out, compareSchemas(below, is[name].(map[string]any), field)...)
		case !standard:
			out = append(out, below+": not in the contract")
		}
	}
	return out
}

func rules(list any) []string {
	items, _ := list.([]any)
	out := make([]string, 0, len(items))
	for _, item := range items {
		rule := item.(map[string]any)
		out = append(out, fmt.Sprintf("rule %q (%v)", rule["rule"], rule["message"]))
	}
	return out
}

// sorted puts lists without an order into one.
func sorted(key string, value any) any {
	list, ok := value.([]any)
	if !ok || key != "required" && key != "enum" {
		return value
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return list
}

func orAbsent(value any) any {
	if value == nil {
		return "absent"
	}
	return value
}

// walkProperties calls visit for every field of a schema, through lists and maps.
func walkProperties(path string, schema map[string]any, visit func(path string, schema map[string]any)) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		field := properties[name].(map[string]any)
		visit(path+"."+name, field)
		walkProperties(path+"."+name, field, visit)
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if nested, ok := schema[key].(map[string]any); ok {
			walkProperties(path+"[]", nested, visit)
		}
	}
}

func readDocuments(t *testing.T, file string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	for text := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var document map[string]any
		if err := yaml.Unmarshal(text, &document); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if document != nil {
			out = append(out, document)
		}
	}
	return out
}

func onlyVersion(t *testing.T, crd map[string]any) map[string]any {
	t.Helper()
	versions, _ := dig(crd, "spec", "versions").([]any)
	if len(versions) != 1 {
		t.Fatalf("%d versions, want 1", len(versions))
	}
	return versions[0].(map[string]any)
}

func schemaOf(t *testing.T, version map[string]any) map[string]any {
	t.Helper()
	schema, _ := dig(version, "schema", "openAPIV3Schema").(map[string]any)
	if schema == nil {
		t.Fatal("the version has no schema")
	}
	return schema
}

func dig(in map[string]any, path ...string) any {
	var value any = in
	for _, key := range path {
		within, _ := value.(map[string]any)
		value = within[key]
	}
	return value
}
