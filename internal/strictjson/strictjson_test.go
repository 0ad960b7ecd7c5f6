package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestWhatServersReadInTwoWaysIsRefused(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, want := range map[string]error{
		`{"a":1,"b":[true,null,"x",-1.5e3]}`: nil,
		` "text" `:                           nil,
		deep(MaxDepth):                       nil,
		deep(MaxDepth + 1):                   ErrDepth,
		`{"a":` + deep(MaxDepth) + `}`:       ErrDepth,
		`{"a":1,"a":2}`:                      ErrDuplicate,
		`{"a":1,"\u0061":2}`:                 ErrDuplicate,
		`{"x":{"a":1,"a":2}}`:                ErrDuplicate,
		`{"a":1}{"a":2}`:                     ErrTrailing,
		`{"a":1} x`:                          ErrTrailing,
		"{\"a\":1}\x00":                      ErrTrailing,
		"{\"a\":\"\xff\"}":                   ErrUTF8,
		"{\"\xc3\x28\":1}":                   ErrUTF8,
		`{"a":"\ud800"}`:                     ErrSyntax,
		`{"a":"\udc00x"}`:                    ErrSyntax,
		"\xef\xbb\xbf{}":                     ErrSyntax,
		"{\x00\"\x00a\x00\"\x00:\x001\x00}":  ErrSyntax, // UTF-16
		`{"a\u0000b":1}`:                     ErrNUL,
		`{"a":1,}`:                           ErrSyntax,
		`{'a':1}`:                            ErrSyntax,
		`{"a":01}`:                           ErrSyntax,
		`{"a":NaN}`:                          ErrSyntax,
		`{"a":1}/* */`:                       ErrTrailing,
		`{/* */"a":1}`:                       ErrSyntax,
		``:                                   ErrSyntax,
		`{"a":`:                              ErrSyntax,
	} {
		err := Walk([]byte(text), func([]PathStep, ValueKind, []byte) {})
		if !errors.Is(err, want) && !(want == ErrSyntax && errors.Is(err, ErrUTF8)) {
			t.Errorf("%.40q: %v, want %v", text, err, want)
		}
	}
}

// TestAWalkSeesWhatTheStandardLibraryReads builds the values that are visited, and compares them with encoding/json.
func TestAWalkSeesWhatTheStandardLibraryReads(t *testing.T) {
	for _, text := range []string{
		`{"a":{"b":[1,{"c":"d\u00e9\n\"x"}],"":true},"e":null}`, `[[[]],{},"",0]`, `"only"`, `12345678901234567890.5`,
		`{"model":"claude","messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00 hi"}]}],"stream":true}`,
	} {
		check(t, text)
	}
}

func check(t *testing.T, text string) {
	t.Helper()
	seen := map[string]string{}
	if Walk([]byte(text), func(at []PathStep, kind ValueKind, raw []byte) {
		switch kind {
		case '{', '[':
			seen[pathOf(at)] = string(kind)
		case '"':
			seen[pathOf(at)] = "\"" + Text(raw)
		default:
			seen[pathOf(at)] = string(raw)
		}
	}) != nil {
		return
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q is read, and encoding/json says %v", text, err)
	}
	want := map[string]string{}
	flatten(want, "", v)
	if !reflect.DeepEqual(seen, want) {
		t.Errorf("%q\nseen %v\nwant %v", text, seen, want)
	}
}

func pathOf(at []PathStep) (path string) {
	for _, s := range at {
		if s.Index >= 0 {
			path += "/" + strconv.Itoa(s.Index)
		} else {
			path += "/" + strconv.Quote(s.Name)
		}
	}
	return path
}

func flatten(into map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		into[path] = "{"
		for name, member := range v {
			flatten(into, path+"/"+strconv.Quote(name), member)
		}
	case []any:
		into[path] = "["
		for i, member := range v {
			flatten(into, path+"/"+strconv.Itoa(i), member)
		}
	case string:
		into[path] = "\"" + v
	case nil:
		into[path] = "null"
	default:
		into[path] = fmt.Sprint(v)
	}
}

// FuzzWalk: what is read is what encoding/json reads.
func FuzzWalk(f *testing.F) {
	for _, text := range []string{`{"a":[1,"x"]}`, `[]`, `{"a":1,"a":2}`, `{"\u0061":{}}`, `"\ud800"`} {
		f.Add(text)
	}
	f.Fuzz(check)
}

func TestNamesThatServersMayTakeForEachOther(t *testing.T) {
	for _, row := range []struct {
		a, b  string
		alike bool
	}{
		{"method", "method", true}, {"method", "Method", true}, {"method", "METHOD", true}, {"method", "ｍethod", true},
		{"kind", "\u212aind", true}, {"tools", "tool\u017f", true}, {"file", "\ufb01le", true},
		{"method", "methods", false}, {"method", "me-thod", false},
	} {
		if Alike(row.a, row.b) != row.alike {
			t.Errorf("%q and %q: alike is %t", row.a, row.b, !row.alike)
		}
	}
}
