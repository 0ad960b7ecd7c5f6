package policy_test

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestPathMatches(t *testing.T) {
	for _, row := range []struct {
		path, pattern string
		want          bool
	}{
		{"/repos/acme/x", "/repos/acme/**", true},
		{"/repos/acme", "/repos/acme/**", true},
		{"/repos/acmeevil", "/repos/acme/**", false},
		{"/repos/acme/../evil", "/repos/**", false},
		{"/repos//acme", "/**", false},
		{"/repos/%2e%2e/x", "/**", false},
		{"*", "/**", false},
		{"", "/**", false},
	} {
		got, err := policy.PathMatches(row.path, row.pattern)
		if err != nil || got != row.want {
			t.Errorf("PathMatches(%q, %q) = %v, %v", row.path, row.pattern, got, err)
		}
	}
	for _, pattern := range []string{"", "repos", "/a/../b", "/a**", "/a?b"} {
		if ok, err := policy.PathMatches("/a", pattern); ok || err == nil {
			t.Errorf("PathMatches with pattern %q = %v, %v; want an error", pattern, ok, err)
		}
	}
}

func TestCanonicalPathHasOneReading(t *testing.T) {
	for path, want := range map[string]bool{"/": true, "/a/b": true, "/a//b": false, "/a/./b": false, `/a\b`: false, "*": false} {
		if got := policy.CanonicalPath(path); got != want {
			t.Errorf("CanonicalPath(%q) = %v", path, got)
		}
	}
}

func TestRegistrable(t *testing.T) {
	for name, want := range map[string]string{
		"a.b.example.com": "example.com", "example.co.uk": "example.co.uk", "x.example.co.uk": "example.co.uk",
		"co.uk": "", "com": "", "me.github.io": "me.github.io", "localhost": "",
	} {
		if got := policy.Registrable(name); got != want {
			t.Errorf("Registrable(%q) = %q, want %q", name, got, want)
		}
	}
}
