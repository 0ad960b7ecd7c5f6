package hostpaths

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// What this user starts by its name alone, no container may write.
func TestMachineHasTheFoldersOfPrograms(t *testing.T) {
	workspace := t.TempDir()
	t.Setenv("PATH", "/srv/tools/bin:"+workspace+"/node_modules/.bin:relative")
	has := Machine(workspace, "", nil).Programs
	if builders := filepath.Join(os.TempDir(), "devcontainercli-"); !slices.ContainsFunc(has, func(one string) bool { return strings.HasPrefix(one, builders) }) {
		t.Errorf("programs: %q", has)
	}
	if !slices.Contains(has, "/srv/tools/bin") || slices.Contains(has, workspace+"/node_modules/.bin") || slices.Contains(has, "relative") {
		t.Errorf("programs: %q", has)
	}
}

// In the folder for temporary files egressd has the socket that Compose asks: whoever reaches it asks the engine.
func TestMachineHasTheFolderOfTheFront(t *testing.T) {
	t.Setenv("TMPDIR", "/srv/tmp")
	m := Machine("", "", nil)
	for path, refused := range map[string]bool{"/srv/tmp": true, "/srv": true, "/srv/tmp/mine": false, "/srv/other": false} {
		if why, _ := m.JudgePath(path, false); (why != "") != refused {
			t.Errorf("%s: %q", path, why)
		}
	}
}

// Names and labels by which a policy tells containers are no project's to give.
func TestProjectMachineKeepsWhatTellsContainers(t *testing.T) {
	var c config.Config
	c.File = &file.File{Sandboxes: []file.SandboxRules{{Name: "web", Docker: policy.Containers{Name: "shop-web-1"}}, {Name: "builds", Docker: policy.Containers{Label: "team=builds"}}}}
	m := ProjectMachine(t.TempDir(), "", &c)
	if !slices.Equal(m.Names, []string{"shop-web-1"}) || !slices.Equal(m.Labels, []string{"egressd", "team"}) {
		t.Errorf("%q and %q", m.Names, m.Labels)
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

// TestLinksThatAProgramCouldHaveMade has links of this user on the way to a file, and none.
func TestLinksThatAProgramCouldHaveMade(t *testing.T) {
	dir := Real(t.TempDir())
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.MkdirAll(at("real/sub"), 0o700), os.WriteFile(at("real/sub/file"), nil, 0o600), os.Symlink("real", at("link")),
		os.Symlink(at("real/sub/file"), at("last")), os.Symlink("last", at("second")), os.Symlink("loop", at("loop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		at("real/sub/file"): "", at("link/sub/file"): at("link"), dir + "/link/../real/sub": at("link"), at("last"): at("last"), at("second"): at("second"),
		at("loop"): at("loop"), at("real/missing"): "", at("link/missing"): at("link"), "/": "", "/var": "",
	} {
		if got := OwnLink(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	t.Chdir(at("link"))
	for path, want := range map[string]string{"sub/file": "", ".": "", "../last": at("last"), "../link": at("link"), at("link") + "/sub": at("link")} {
		if got := OwnLink(path); got != want {
			t.Errorf("%s in a folder by a link: %q, want %q", path, got, want)
		}
	}
}
