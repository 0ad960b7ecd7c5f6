package hostpaths

import (
	"slices"
	"testing"
)

// What this user starts by its name alone, no container may write.
func TestMachineHasTheFoldersOfPrograms(t *testing.T) {
	workspace := t.TempDir()
	t.Setenv("PATH", "/srv/tools/bin:"+workspace+"/node_modules/.bin:relative")
	has := Machine(workspace, "", nil).Programs
	if !slices.Contains(has, "/srv/tools/bin") || slices.Contains(has, workspace+"/node_modules/.bin") || slices.Contains(has, "relative") {
		t.Errorf("programs: %q", has)
	}
}

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
