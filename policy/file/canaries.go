package file

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// A CanaryFile names a planted text, such as a false credential. A program that sends
// the text is searching for secrets, so the request is refused.
type CanaryFile struct {
	// Name stands in records: 1 to 64 letters, digits, ".", "-", "_".
	Name string

	// File holds the text; one newline at its end does not count. A relative path is
	// relative to the folder of the configuration.
	File string
}

// canaries reads the list "canaries".
func (r *reader) canaries(into *[]CanaryFile) func(*yaml.Node) {
	return func(n *yaml.Node) {
		names := map[string]bool{}
		for i, item := range r.items(n, "canaries") {
			what := fmt.Sprintf("canaries[%d]", i)
			var c CanaryFile
			before := len(r.problems)
			r.mapping(item, what, fields{
				"name": r.checked(what+".name", &c.Name, problemOfCanaryName),
				"file": r.path(what+".file", &c.File),
			})
			switch {
			case len(r.problems) > before:
			case c.Name == "":
				r.fail(item, "%s has no name; add \"name: aws-key\" or the like", what)
			case c.File == "":
				r.fail(item, "%s has no file; add \"file: canary.txt\", with the text in it", what)
			case names[c.Name]:
				r.fail(item, "%s is named %s, and so is another; give each its own", what, c.Name)
			default:
				names[c.Name] = true
				*into = append(*into, c)
			}
		}
	}
}

func problemOfCanaryName(name string) string {
	plain := func(c rune) bool { return c < 0x80 && policy.Unreserved(byte(c)) && c != '~' }
	if len(name) > 64 || strings.ContainsFunc(name, func(c rune) bool { return !plain(c) }) {
		return "is not 1 to 64 letters, digits, dots, hyphens and underscores; write one like aws-key"
	}
	return ""
}
