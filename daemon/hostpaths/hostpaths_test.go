package hostpaths

import (
	"testing"
)

func TestWithin(t *testing.T) {
	for _, row := range []struct {
		path, folder string
		in           bool
	}{
		{"/a/b", "/a", true}, {"/a", "/a", true}, {"/a", "/", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a/..b", "/a", true},
	} {
		if Within(row.path, row.folder) != row.in {
			t.Errorf("%s in %s: %v", row.path, row.folder, !row.in)
		}
	}
}
