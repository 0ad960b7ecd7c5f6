//go:build linux

package start

import (
	"slices"
	"testing"
)

// TestOnlyEgressdAllowIsRunByAnOffer has commands that a shell would read in another way.
func TestOnlyEgressdAllowIsRunByAnOffer(t *testing.T) {
	for command, want := range map[string][]string{
		"egressd allow a.test --save":             {"egressd", "allow", "a.test", "--save"},
		`egressd allow '*.a.test' --config 'a b'`: {"egressd", "allow", "*.a.test", "--config", "a b"},
		`egressd allow a.test --config 'it'\''s'`: {"egressd", "allow", "a.test", "--config", "it's"},
		"egressd allow a.test; rm x":              nil,
		"egressd allow $(rm x)":                   nil,
		"egressd allow 'a.test":                   nil,
		"egressd cut 1":                           nil,
		"/tmp/x allow a.test":                     nil,
		"":                                        nil,
	} {
		words, ok := wordsOf(command)
		if ok != (want != nil) || ok && !slices.Equal(words, want) {
			t.Errorf("%s: %q, %t", command, words, ok)
		}
	}
}
