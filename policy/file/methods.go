package file

import (
	"slices"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
)

// methodNames are the methods of HTTP (RFC 9110, RFC 5789) and WebDAV that rules name.
var methodNames = []string{
	"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY",
	"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH",
}

// misspelt warns of methods that are one letter away from a known one.
func (w *warnings) misspelt(rules []policy.Rule) {
	for i := range rules {
		for _, method := range rules[i].Methods {
			near := slices.IndexFunc(methodNames, func(known string) bool { return spelling.Distance(method, known) == 1 })
			if near >= 0 && !slices.Contains(methodNames, method) {
				w.say(rules[i].At, "%s: %s is no usual method; did you mean %s?", rules[i].ID, printable(method), methodNames[near])
			}
		}
	}
}
