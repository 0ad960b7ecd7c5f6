package file

import (
	"fmt"
	"strings"
	"testing"
)

// TestALongListOfOneHostIsNoLoopsBusiness counts rules by the host that they are about: a long file
// of many hosts is asked at once.
func TestALongListOfOneHostIsNoLoopsBusiness(t *testing.T) {
	list := func(n int, rule string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, rule, i)
		}
		return b.String()
	}
	const oneHost, manyHosts = "  - {host: api.test, methods: [GET], paths: [\"/%d\"]}\n", "  - h%d.test\n"
	for says, row := range map[string]struct {
		text   string
		atOnce bool
	}{
		"many hosts":               {"version: 1\nallow:\n" + list(2000, manyHosts), true},
		"some rules of one host":   {"version: 1\nallow:\n" + list(100, oneHost), true},
		"many rules of one host":   {"version: 1\nallow:\n" + list(300, oneHost), false},
		"with those of a wildcard": {"version: 1\nallow:\n" + list(200, oneHost) + "deny:\n" + list(100, "  - {host: \"*.test\", methods: [POST], paths: [\"/%d\"]}\n"), false},
		"the list of a sandbox":    {"version: 1\nallow: [\"*\"]\nsandboxes:\n - name: one\n   source: [192.0.2.0/24]\n   allow:\n" + list(300, "  "+oneHost), false},
		"a ceiling":                {"version: 1\nallow: [\"*.test\"]\nceiling:\n" + list(300, "  - {host: api.test, methods: [GET], paths: [\"/%d\"]}\n"), false},
	} {
		t.Run(says, func(t *testing.T) {
			file, err := Parse("test.yaml", []byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			p, err := file.Compile(Environment{Inspection: true})
			if err != nil {
				t.Fatal(err)
			}
			if p.AnswersAtOnce() != row.atOnce {
				t.Errorf("an event loop may ask it: %v", p.AnswersAtOnce())
			}
		})
	}
}
