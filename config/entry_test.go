package config

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy/file"
)

// TestWhatTellsASandboxApartIsInItsEntry changes each field of a sandbox in the file. A sandbox
// whose certificate was forgotten would be whoever comes from its address.
func TestWhatTellsASandboxApartIsInItsEntry(t *testing.T) {
	typical := func() *file.SandboxRules {
		return &file.SandboxRules{Name: "ci", TokenFile: "t", Listen: "l", Enter: "e", UIDs: []uint32{1}, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Certificate: "c"}
	}
	itsPolicy := map[string]bool{"Allow": true, "AlsoAllow": true, "Narrowed": true, "Deny": true, "Rego": true, "Project": true, "Mode.Observe": true, "Mode.Until": true}
	for name, s := range fieldtest.Each(typical) {
		if same := reflect.DeepEqual(EntryOf(s), EntryOf(typical())); same != itsPolicy[name] {
			t.Errorf("%s: the entry is the same: %t", name, same)
		}
	}
}
