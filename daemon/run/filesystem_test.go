package run

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheFoldersOfFS(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(base, "home", "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(project, link); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(base, "home")
	for _, row := range []struct {
		says, work, home string
		kept             string // the home of what comes out; "-" where nothing does
	}{
		{"a project in the home", project, home, home},
		{"by a link", link, home, home},
		{"a project elsewhere", base, filepath.Join(base, "nowhere"), ""},
		{"no home", project, "", ""},
		{"the root for a home", project, "/", ""},
		{"the home", home, home, "-"},
		{"above the home", base, home, "-"},
		{"the root", "/", home, "-"},
		{"the system", "/etc", home, "-"},
		{"above the system", "/", "", "-"},
	} {
		t.Chdir(row.work)
		t.Setenv("HOME", row.home)
		a, _, err := (&Options{Apart: true}).fileSystem()
		switch {
		case row.kept == "-" && err == nil:
			t.Errorf("%s: %+v", row.says, a)
		case row.kept != "-" && (err != nil || a.Home != row.kept):
			t.Errorf("%s: %+v, %v", row.says, a, err)
		case row.says == "by a link" && a.Work != project:
			t.Errorf("%s: works in %s", row.says, a.Work)
		}
	}
	if a, _, err := new(Options).fileSystem(); a != nil || err != nil {
		t.Errorf("nobody asked for %+v, %v", a, err)
	}
}
