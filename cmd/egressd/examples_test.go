package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesAreGreen runs the tests of every example policy, and has nothing wrong
// found in it.
func TestExamplesAreGreen(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "..", "examples", "policies", "*", configName))
	if err != nil || len(paths) < 3 {
		t.Fatalf("found %d examples, %v", len(paths), err)
	}
	for _, path := range paths {
		for _, args := range [][]string{
			{"policy", "test", "--config", path},
			{"policy", "check", "--config", path},
			{"policy", "fmt", "-d", filepath.Dir(path) + "/policy"},
		} {
			var stdout, stderr strings.Builder
			if code := run(args, &stdout, &stderr); code != 0 {
				t.Errorf("%q: exit code %d\n%s%s", args, code, &stdout, &stderr)
			}
		}
	}
}
