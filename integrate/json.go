package integrate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
)

// A jsonFile is JSON with comments, kept as it was written.
type jsonFile struct{ root hujson.Value }

func parseJSON(text []byte) (*jsonFile, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	return &jsonFile{root}, nil
}

func (f *jsonFile) pack() []byte { return f.root.Pack() }

// standardJSON is text without comments and trailing commas. What it returns of
// text that is not JSON is not JSON either.
func standardJSON(text []byte) []byte {
	standard, err := hujson.Standardize(bytes.Clone(text)) // it writes over what it is given
	if err != nil {
		return text
	}
	return standard
}

func joined(keys []string) string { return strings.Join(keys, ".") }

// set puts value, a literal, at keys, and makes the objects on the way. It returns what
// is there, and leaves that, where it is something else.
func (f *jsonFile) set(keys []string, value string) (has string, err error) {
	v := &f.root
	for depth, key := range keys {
		object, ok := v.Value.(*hujson.Object)
		if !ok {
			return "", fmt.Errorf("%s is no object", cmp.Or(joined(keys[:depth]), "the file"))
		}
		member, err := find(object, key)
		if err != nil {
			return "", err
		}
		if member == nil {
			insert(object, key, nested(keys[depth+1:], value, depth+1), depth+1)
			return "", nil
		}
		v = &member.Value
	}
	if got := strings.TrimSpace(string(hujson.Value{Value: v.Value}.Pack())); got != value {
		return got, nil
	}
	return "", nil
}

func find(object *hujson.Object, key string) (found *hujson.ObjectMember, err error) {
	for i := range object.Members {
		if name, ok := object.Members[i].Name.Value.(hujson.Literal); !ok || name.String() != key {
			continue
		}
		if found != nil {
			return nil, errors.New("it has " + key + " twice")
		}
		found = &object.Members[i]
	}
	return found, nil
}

const indent = "  "

// nested is value inside of an object for each of keys, laid out at depth.
func nested(keys []string, value string, depth int) string {
	if len(keys) == 0 {
		return value
	}
	margin := "\n" + strings.Repeat(indent, depth)
	return "{" + margin + indent + `"` + keys[0] + `": ` + nested(keys[1:], value, depth+1) + margin + "}"
}

// insert adds a member to the end of object, laid out like those before it. Comments
// at the end stay where they are, before it.
func insert(object *hujson.Object, key, text string, depth int) {
	value, err := hujson.Parse([]byte(text))
	if err != nil {
		panic(err) // text is made by nested
	}
	value.BeforeExtra = hujson.Extra(" ")
	broken := "\n" + strings.Repeat(indent, depth)
	margin, end := broken, strings.TrimSuffix(broken, indent)
	comments := strings.TrimRight(string(object.AfterExtra), " \t\r\n")
	if n := len(object.Members); n > 0 {
		last := &object.Members[n-1]
		margin, end = string(last.Name.BeforeExtra), string(object.AfterExtra[len(comments):])
		if strings.TrimSpace(margin) != "" || comments != "" {
			margin = broken
		}
		if last.Value.AfterExtra != nil { // a comma stands after the last one
			value.AfterExtra = hujson.Extra{}
		}
	}
	object.Members = append(object.Members, hujson.ObjectMember{
		Name: hujson.Value{BeforeExtra: hujson.Extra(comments + margin), Value: hujson.String(key)}, Value: value,
	})
	object.AfterExtra = hujson.Extra(end)
}
