package peers

import (
	"slices"
	"testing"
)

func TestARemovedKindSaysWhatToDoInstead(t *testing.T) {
	for _, kind := range []string{"cilium", "cloudflare", "gh-aw", "init-firewall", "microsandbox", "opa-envoy", "opensandbox", "pipelock", "squid"} {
		if Removed(kind) == "" {
			t.Errorf("%s was removed, and nothing says what to do instead", kind)
		}
	}
	for _, kind := range slices.Concat(Names(kinds), Names(targets), []string{"nobody"}) {
		if Removed(kind) != "" {
			t.Errorf("%s was not removed", kind)
		}
	}
}
