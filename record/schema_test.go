package record

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A schemaNode is the part of a JSON schema that this test reads.
type schemaNode struct {
	Type       string
	Enum       []any
	Const      any
	Ref        string                     `json:"$ref"`
	Defs       map[string]json.RawMessage `json:"$defs"`
	Properties map[string]json.RawMessage
}

// TestTheSchemaHasTheMembersOfTheType compares the names and the JSON types of the members in
// docs/record.schema.json with the fields of [Record].
func TestTheSchemaHasTheMembersOfTheType(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "record.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema schemaNode
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"run": "string", "origin": "string", "key": "string", "checkpoint": "string"} // of the index of runs
	typesOf(known, "", reflect.TypeFor[Record]())
	described := map[string]bool{}
	var describe func(prefix string, n schemaNode)
	describe = func(prefix string, n schemaNode) {
		for name, text := range n.Properties {
			path := prefix + name
			described[path] = true
			var member schemaNode
			if json.Unmarshal(text, &member) != nil {
				continue // true: another definition has the member
			}
			for refs := 0; strings.HasPrefix(member.Ref, "#/$defs/") && refs < 3; refs++ {
				def := schema.Defs[strings.TrimPrefix(member.Ref, "#/$defs/")]
				if def == nil {
					break // a path into another definition
				}
				member = schemaNode{}
				if err := json.Unmarshal(def, &member); err != nil {
					t.Fatal(err)
				}
			}
			if got := member.jsonType(); got != "" && got != known[path] {
				t.Errorf("the schema has %s %s, Record has %q", got, path, known[path])
			}
			describe(path+".", member)
		}
	}
	describe("", schema)
	for _, text := range schema.Defs {
		var def schemaNode
		if err := json.Unmarshal(text, &def); err != nil {
			t.Fatal(err)
		}
		if def.Properties["v"] != nil || def.Properties["kind"] != nil { // not a part of a record
			describe("", def)
		}
	}
	if a, b := slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(known)); !slices.Equal(a, b) {
		t.Errorf("the schema has %q\nRecord has %q", a, b)
	}
}

// jsonType returns the type of the values that n accepts, or "" if n does not say.
func (n schemaNode) jsonType() string {
	switch append(n.Enum, n.Const)[0].(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		return "integer"
	default:
		return n.Type
	}
}

// typesOf adds the members of a struct and their JSON types to types.
func typesOf(types map[string]string, prefix string, of reflect.Type) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		name = prefix + name
		switch f.Type.Kind() {
		case reflect.Pointer:
			types[name] = "object"
			typesOf(types, name+".", f.Type.Elem())
		case reflect.Slice:
			types[name] = "array"
		case reflect.Bool:
			types[name] = "boolean"
		case reflect.Struct, reflect.String: // a time is a string
			types[name] = "string"
		default:
			types[name] = "integer"
		}
	}
}
