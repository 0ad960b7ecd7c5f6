package hostfiles

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestResolveLinks has links to what is not there, in a circle, and with parts that are not there.
func TestResolveLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.MkdirAll(in("a/b"), 0o700), os.Symlink("/nowhere/x", in("a/far")), os.Symlink("../gone", in("a/near")), os.Symlink("near/z", in("a/twice")),
		os.Symlink("b", in("a/to-b")), os.Symlink("round", in("round"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		in("a/b/c"): in("a/b/c"), in("a/to-b/c"): in("a/b/c"), in("a/far"): "/nowhere/x", in("a/far/y"): "/nowhere/x/y",
		in("a/near"): in("gone"), in("a/near/y"): in("gone/y"), in("a/twice"): in("gone/z"), in("none/y"): in("none/y"),
	} {
		if got := ResolveLinks(path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	ResolveLinks(in("round/x")) // it ends
}

// TestClimbs has .. behind links, behind folders, and behind what somebody could make a link.
func TestClimbs(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o700), os.Symlink("a/b", filepath.Join(dir, "far")), os.Symlink("a", filepath.Join(dir, "near"))); err != nil {
		t.Fatal(err)
	}
	for path, climbs := range map[string]bool{
		"/a/b/c": false, "/a/../a": false, "/far/c": false, "/far/..": true, "/far/../x": true, "/near/../x": false, "/near/b/../../x": false, "/far/c/../..": true,
		"/none/../a": false, "/w/../a": false, "/w/x/../a": true, "/w/./../a": false, "/w/x/y": false, "": false,
	} {
		if Climbs(dir+path, filepath.Join(dir, "w")) != climbs {
			t.Errorf("%s: %v", path, !climbs)
		}
	}
}
