package file

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestAllowTextKeepsTheLayout adds x.test, and where a row says so more, to
// files that are laid out in every way.
func TestAllowTextKeepsTheLayout(t *testing.T) {
	for _, row := range []struct{ name, old, want string }{
		{
			"a block", "version: 1\nallow:\n  - a.test\n  - b.test\ndeny: []\n",
			"version: 1\nallow:\n  - a.test\n  - b.test\n  - x.test\ndeny: []\n",
		},
		{
			"a block with comments everywhere",
			"# top\nversion: 1 # one\n\nallow: # ours\n  # first\n  - a.test # why a\n  # - old.test\n\n# about deny\ndeny: []\n# end\n",
			"# top\nversion: 1 # one\n\nallow: # ours\n  # first\n  - a.test # why a\n  - x.test\n  # - old.test\n\n# about deny\ndeny: []\n# end\n",
		},
		{
			"a block without indentation", "allow:\n- a.test\nversion: 1\n",
			"allow:\n- a.test\n- x.test\nversion: 1\n",
		},
		{
			"a file without a newline at its end", "version: 1\nallow:\n    - a.test",
			"version: 1\nallow:\n    - a.test\n    - x.test\n",
		},
		{
			"lines that end as in Windows", "version: 1\r\nallow:\r\n  - a.test\r\ndeny: []\r\n",
			"version: 1\r\nallow:\r\n  - a.test\r\n  - x.test\r\ndeny: []\r\n",
		},
		{
			"a last item over several lines", "version: 1\nallow:\n  - host: a.test\n    methods: [GET,\n      PUT]\n    reason: >-\n      # not\n      a comment\n  # after\ndeny: []\n",
			"version: 1\nallow:\n  - host: a.test\n    methods: [GET,\n      PUT]\n    reason: >-\n      # not\n      a comment\n  - x.test\n  # after\ndeny: []\n",
		},
		{
			"a last item in braces over several lines", "version: 1\nallow:\n  - {host: a.test,\n     methods: [GET]\n    }\ndeny: []\n",
			"version: 1\nallow:\n  - {host: a.test,\n     methods: [GET]\n    }\n  - x.test\ndeny: []\n",
		},
		{
			"an item on the line below its dash", "version: 1\nallow:\n  -\n    a.test\n",
			"version: 1\nallow:\n  -\n    a.test\n  - x.test\n",
		},
		{
			"brackets", "version: 1\nallow: [a.test, \"*.b.test\"] # ours\n",
			"version: 1\nallow: [a.test, \"*.b.test\", x.test] # ours\n",
		},
		{
			"brackets with a bracket in a comment", "version: 1\nallow: [a.test, # not ]\n  b.test]\n",
			"version: 1\nallow: [a.test, # not ]\n  b.test, x.test]\n",
		},
		{
			"keys of inspection", "version: 1\nallow:\n  - host: a.test\n    paths: [/live] # one\n    upgrade: websocket\n    inject: {header: X-Key, command: [pass, show,\n      key], refresh: 30m} # two\ntls: {never: [b.test]} # three\n",
			"version: 1\nallow:\n  - host: a.test\n    paths: [/live] # one\n    upgrade: websocket\n    inject: {header: X-Key, command: [pass, show,\n      key], refresh: 30m} # two\n  - x.test\ntls: {never: [b.test]} # three\n",
		},
		{
			"brackets around mappings", "version: 1\nallow: [{host: a.test, methods: [GET]}]\n",
			"version: 1\nallow: [{host: a.test, methods: [GET]}, x.test]\n",
		},
		{
			"brackets over several lines, with a comma at the end", "version: 1\nallow: [\n  a.test,  # why a\n  b.test,  # why b ]\n]\n",
			"version: 1\nallow: [\n  a.test,  # why a\n  b.test,  # why b ]\n  x.test,\n]\n",
		},
		{
			"brackets over several lines, without", "version: 1\r\nallow: [\r\n  a.test,\r\n  b.test # why b\r\n]\r\n",
			"version: 1\r\nallow: [\r\n  a.test,\r\n  b.test, # why b\r\n  x.test\r\n]\r\n",
		},
		{
			"brackets that close behind the last line", "version: 1\nallow: [a.test,\n  b.test]\n",
			"version: 1\nallow: [a.test,\n  b.test, x.test]\n",
		},
		{
			"characters of several bytes before a bracket", "version: 1\nallow: [{host: a.test, reason: \"für ö\"}, b.test]\n",
			"version: 1\nallow: [{host: a.test, reason: \"für ö\"}, b.test, x.test]\n",
		},
		{
			"an empty list", "version: 1\nallow: []   # none yet\n#  - a.test\ndeny: []\n",
			"version: 1\nallow:   # none yet\n  - x.test\n#  - a.test\ndeny: []\n",
		},
		{
			"an empty list beside one without indentation", "version: 1\nallow: [ ]\ndeny:\n- a.test\n",
			"version: 1\nallow:\n- x.test\ndeny:\n- a.test\n",
		},
		{
			"an empty list on a line of its own", "version: 1\nallow:\n  []\n",
			"version: 1\nallow:\n  [x.test]\n",
		},
		{
			"an empty list with a comment inside", "version: 1\nallow: [\n  # a.test\n]\n",
			"version: 1\nallow: [x.test\n  # a.test\n]\n",
		},
		{
			"no value, and comments", "version: 1\nallow: # ours\n  # - a.test\n  # - b.test\n\ndeny: []\n",
			"version: 1\nallow: # ours\n  - x.test\n  # - a.test\n  # - b.test\n\ndeny: []\n",
		},
		{
			"no list", "version: 1\ndeny:\n    - a.test\n# end\n\n",
			"version: 1\ndeny:\n    - a.test\n# end\nallow:\n    - x.test\n\n",
		},
		{
			"no list, and the end of the document marked", "---\nversion: 1\n...\n# end\n",
			"---\nversion: 1\nallow:\n  - x.test\n...\n# end\n",
		},
		{
			"no list, and a last value that keeps its empty lines", "version: 1\naudit:\n  dir: |+\n    /log\n\n\n",
			"version: 1\nallow:\n  - x.test\naudit:\n  dir: |+\n    /log\n\n\n",
		},
		{
			"everything indented", "  version: 1\n  deny: []",
			"  version: 1\n  deny: []\n  allow:\n    - x.test\n",
		},
		{
			"a list of a sandbox above", "version: 1\nsandboxes:\n  - name: ci\n    listen: \"127.0.0.1:1\"\n    allow: [a.test]\nallow:\n  - b.test\n",
			"version: 1\nsandboxes:\n  - name: ci\n    listen: \"127.0.0.1:1\"\n    allow: [a.test]\nallow:\n  - b.test\n  - x.test\n",
		},
		{"braces around the file", "{version: 1, allow: [a.test]}\n", "{version: 1, allow: [a.test, x.test]}\n"},
		{"braces, and an empty list", "{version: 1, allow: []}\n", "{version: 1, allow: [x.test]}\n"},
		{
			"braces, and characters of several bytes before an empty list", "{version: 1, tls: {ca_dir: \"/für/öß\"}, allow: []}\n",
			"{version: 1, tls: {ca_dir: \"/für/öß\"}, allow: [x.test]}\n",
		},
		{"braces, and no list", "{version: 1}\n", "{allow: [x.test], version: 1}\n"},
		{"a quoted key", "version: 1\n\"allow\":\n  - a.test\n", "version: 1\n\"allow\":\n  - a.test\n  - x.test\n"},
	} {
		got, err := AllowText("f", []byte(row.old), opened(t, "x.test")...)
		if err != nil || string(got) != row.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", row.name, err, got, row.want)
		}
		if _, err := Parse("f", got); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

// TestAllowOwnTextKeepsTheLayout adds x.test to the list of the sandbox ci alone.
func TestAllowOwnTextKeepsTheLayout(t *testing.T) {
	for _, row := range []struct{ name, old, want string }{
		{
			"braces", "version: 1\nallow: [a.test]\nsandboxes:\n  - {name: web, listen: \"127.0.0.1:2\", allow: [a.test]} # w\n  - {name: ci, listen: \"127.0.0.1:1\", allow: [a.test]} # c\n",
			"version: 1\nallow: [a.test]\nsandboxes:\n  - {name: web, listen: \"127.0.0.1:2\", allow: [a.test]} # w\n  - {name: ci, listen: \"127.0.0.1:1\", allow: [a.test, x.test]} # c\n",
		},
		{
			"a block before another", "sandboxes:\n  - name: ci\n    allow:\n      - a.test\n    listen: \"127.0.0.1:1\"\n  - name: web\n    listen: \"127.0.0.1:2\"\n    allow:\n      - a.test\nversion: 1\n",
			"sandboxes:\n  - name: ci\n    allow:\n      - a.test\n      - x.test\n    listen: \"127.0.0.1:1\"\n  - name: web\n    listen: \"127.0.0.1:2\"\n    allow:\n      - a.test\nversion: 1\n",
		},
		{
			"an empty list", "version: 1\nsandboxes: [{name: ci, listen: \"127.0.0.1:1\", allow: []}]\n",
			"version: 1\nsandboxes: [{name: ci, listen: \"127.0.0.1:1\", allow: [x.test]}]\n",
		},
	} {
		got, err := AllowOwnText("f", []byte(row.old), "ci", opened(t, "x.test")...)
		if err != nil || string(got) != row.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", row.name, err, got, row.want)
		}
	}
	if _, err := AllowOwnText("f", []byte("version: 1\nsandboxes: [{name: ci, listen: \"127.0.0.1:1\"}]\n"), "web", opened(t, "x.test")...); err == nil {
		t.Error("a line was added to the list of a sandbox that the file does not have")
	}
}

func TestAllowTextQuotesWhatYAMLWouldMisread(t *testing.T) {
	patterns := opened(t, "*.a.test", "a.test:*", "[2606:4700::1111]:443", "2606:4700::", "93.184.216.34:443", "1.e5", "a.test:8000-8999")
	for _, row := range []struct{ old, want string }{
		{"version: 1\n", "version: 1\nallow:\n  - \"*.a.test\"\n  - a.test:*\n  - \"[2606:4700::1111]:443\"\n  - \"2606:4700::\"\n  - 93.184.216.34:443\n  - \"1.e5\"\n  - a.test:8000-8999\n"},
		{"{version: 1, allow: [b.test]}", "{version: 1, allow: [b.test, \"*.a.test\", a.test:*, \"[2606:4700::1111]:443\", \"2606:4700::\", 93.184.216.34:443, \"1.e5\", a.test:8000-8999]}"},
	} {
		got, err := AllowText("f", []byte(row.old), patterns...)
		if err != nil || string(got) != row.want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, row.want)
		}
	}
}

func TestAllowTextWithoutPatterns(t *testing.T) {
	for old, want := range map[string]string{
		"version: 1\n":                                      "version: 1\n",
		"version: 1\nallow: [a.test]\n":                     "version: 1\nallow: [a.test]\n",
		"version: 1\nallow: # ours\n  # - a.test\ndeny: []": "version: 1\nallow: [] # ours\n  # - a.test\ndeny: []",
		"version: 1\n\"allow\" :\n":                         "version: 1\n\"allow\" : []\n",
		"version: 1\nallow: a.test\n":                       "version: 1\nallow: a.test\n", // wrong, and Parse says why
	} {
		got, err := AllowText("f", []byte(old))
		if err != nil || string(got) != want {
			t.Errorf("%q became %q, %v; want %q", old, got, err, want)
		}
	}
}

func TestAllowTextRefusesWhatItCannotRead(t *testing.T) {
	for _, row := range []struct{ name, old, want string }{
		{"no YAML", "version: 1\nallow: [", "f:"},
		{"an empty file", "", "f:1:1: the file is empty"},
		{"a list for a file", "- a.test\n", "f:1:1: the file is a list"},
		{"two documents", "version: 1\n---\nversion: 1\n", "a second document"},
		{"a mapping for a list", "version: 1\nallow: {a: b}\n", "f:2:1: nothing can be added to the list allow as it is written here"},
		{"a word for a list", "version: 1\nallow: a.test\n", "f:2:1: nothing can be added"},
		{"null in letters", "version: 1\nallow: null\n", "f:2:1: nothing can be added"},
	} {
		got, err := AllowText("f", []byte(row.old), opened(t, "x.test")...)
		var all policy.FileError
		if !errors.As(err, &all) || !strings.Contains(err.Error(), row.want) || got != nil {
			t.Errorf("%s: %q, %v; want a FileError with %q", row.name, got, err, row.want)
		}
	}
}

func TestNoGrantIsWiderThanOneRegistrant(t *testing.T) {
	for _, row := range []struct{ pattern, want string }{
		{"evil.test", ""},
		{"*.example.com", ""},
		{"*.example.co.uk:8443", ""},
		{"93.184.216.0/24", ""},
		{"10.0.0.5:8443", ""},
		{"nas.local", ""},
		{"pastebin.com", ""},
		{"*", "* allows every public host"},
		{"*:443", "*:443 allows every public host"},
		{"*.com", "*.com allows every domain that anyone registers there"},
		{"*.co.uk", "anyone registers there"},
		{"*.test", "anyone registers there"},
		{"*.github.io", "*.github.io allows hosts that anyone can rent or make"},
		{"*.s3.amazonaws.com", "anyone can rent or make"},
		{"0.0.0.0/0", "allows a large part of the address space"},
		{"2000::/3", "allows a large part of the address space"},
		{"127.0.0.1:8080", "127.0.0.1:8080 is loopback; no allow rule opens that"},
		{"localhost", "is loopback"},
		{"169.254.169.254", "is metadata"},
		{"metadata.google.internal", "is metadata"},
		{"fe80::/10", "is link-local"},
	} {
		p := mustPatterns(t, row.pattern)[0]
		err := policy.CheckGrant(p)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.pattern, err, row.want)
		}
		if _, errText := AllowText("f", []byte("version: 1\n"), policy.Opening{Pattern: p}); (errText == nil) != (err == nil) {
			t.Errorf("%s is judged otherwise where it is added: %v", row.pattern, errText)
		}
	}
	if policy.CheckGrant(policy.Pattern{}) == nil {
		t.Error("the empty pattern is a grant")
	}
}

// FuzzAllowText: whatever file is read, the one that comes out is read as the
// same with one more rule, and has every character of it but the brackets of
// an empty list.
func FuzzAllowText(f *testing.F) {
	f.Add(string(readSample(f)))
	f.Add("version: 1\nallow: [a.test, # not ]\n  b.test]\n")
	f.Add("version: 1\nallow: [\n  a.test,\n  b.test # why\n]\n")
	f.Add("---\r\nversion: 1\r\nallow: []\r\n...\r\n")
	f.Add("{version: 1, deny: [a.test]}")
	f.Add("version: 1\nallow:\n- host: a.test\n  reason: >-\n    # not\n\n# end\n")
	f.Add("? version\n: 1\n? allow\n: - a.test\n")
	f.Fuzz(func(t *testing.T, text string) {
		grants := mustPatterns(t, "x.test", "*.x.test:8443")
		lines := opened(t, "x.test", "*.x.test:8443")
		old, err := Parse("f", []byte(text))
		if err != nil {
			return
		}
		got, err := AllowText("f", []byte(text), lines...)
		if err != nil {
			return // a layout that is left to people
		}
		file, err := Parse("f", got)
		if err != nil {
			t.Fatalf("%v\n%s", err, got)
		}
		if !slices.Equal(patterns(file.Allow), append(patterns(old.Allow), grants...)) {
			t.Errorf("the rules are %v\n%s", patterns(file.Allow), got)
		}
		if !holdsInOrder(string(got), text) {
			t.Errorf("something of the file is gone:\n%s\nwas\n%s", got, text)
		}
	})
}

// holdsInOrder reports whether the characters of old but blanks and brackets
// stand in text in their order.
func holdsInOrder(text, old string) bool {
	for _, c := range old {
		if strings.ContainsRune(" []", c) {
			continue
		}
		_, rest, found := strings.Cut(text, string(c))
		if !found {
			return false
		}
		text = rest
	}
	return true
}

func patterns(list []policy.Rule) []policy.Pattern {
	all := make([]policy.Pattern, len(list))
	for i, rule := range list {
		all[i] = rule.Pattern
	}
	return all
}

// opened returns openings of all requests to patterns.
func opened(t *testing.T, patterns ...string) []policy.Opening {
	t.Helper()
	return policy.OpeningsOf(mustPatterns(t, patterns...))
}

// TestAllowTextNarrows adds lines for one method and one path, which no later reading widens.
func TestAllowTextNarrows(t *testing.T) {
	at := mustPatterns(t, "a.test:80", "[2606:4700::1111]:80")
	lines := []policy.Opening{
		{Pattern: at[0], Method: "GET", Path: "/a/b"},
		{Pattern: at[0], Method: "POST"},
		{Pattern: at[1], Path: `/{x}:",[y]'`},
	}
	for _, row := range []struct{ old, want string }{
		{"version: 1\n", "version: 1\nallow:\n  - {host: a.test:80, methods: [GET], paths: [/a/b]}\n  - {host: a.test:80, methods: [POST]}\n  - {host: \"[2606:4700::1111]:80\", paths: [\"/{x}:\\\",[y]'\"]}\n"},
		{"{version: 1, allow: [b.test]}", "{version: 1, allow: [b.test, {host: a.test:80, methods: [GET], paths: [/a/b]}, {host: a.test:80, methods: [POST]}, {host: \"[2606:4700::1111]:80\", paths: [\"/{x}:\\\",[y]'\"]}]}"},
	} {
		got, err := AllowText("f", []byte(row.old), lines...)
		if err != nil || string(got) != row.want {
			t.Fatalf("%v\n%s\nwant\n%s", err, got, row.want)
		}
		f, err := Parse("f", got)
		if err != nil {
			t.Fatal(err)
		}
		read := f.Allow[len(f.Allow)-3:]
		for i, o := range lines {
			want := o.Line("")
			if r := read[i]; r.Pattern != want.Pattern || !slices.Equal(r.Methods, want.Methods) || len(r.Paths) != len(want.Paths) || len(r.Paths) > 0 && r.Paths[0].String() != o.Path {
				t.Errorf("%s is read as %+v", o, r)
			}
		}
	}
	for _, o := range []policy.Opening{
		{Pattern: at[0], Method: "get"}, {Pattern: at[0], Method: "GET, POST"}, {Pattern: at[0], Path: "a"}, {Pattern: at[0], Path: "/${HOME}"}, {Pattern: at[0], Path: "/a b"}, {Pattern: at[0], Path: "/a\n"},
	} {
		if got, err := AllowText("f", []byte("version: 1\n"), o); err == nil {
			t.Errorf("%s was added:\n%s", o, got)
		}
	}
}
