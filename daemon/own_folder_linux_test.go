package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/lab"
)

// TestNobodyElsesLinkLeadsToTheOperatorsFolder has links that lead to others.
func TestNobodyElsesLinkLeadsToTheOperatorsFolder(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	const other = 65534
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Mkdir(at("real"), 0o700), os.Mkdir(at("users"), 0o700), os.Mkdir(at("theirs"), 0o755), os.Mkdir(at("sticky"), 0), os.Chmod(at("sticky"), 0o777|os.ModeSticky),
		os.Symlink(at("real"), at("theirs/link")), os.Lchown(at("theirs/link"), other, other), os.Lchown(at("theirs"), other, other), os.Lchown(at("users"), other, other),
		os.Symlink(at("theirs/link"), at("mine")), os.Symlink("real", at("relative")), os.Symlink("./sticky/../relative/", at("two")), os.Symlink("loop", at("loop")),
		os.Symlink(at("real"), at("sticky/their-link")), os.Lchown(at("sticky/their-link"), other, other), os.Symlink("sticky/their-link", at("behind")),
		os.Symlink("../real", at("sticky/own")), os.Symlink("theirs/../real", at("through")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, row := range map[string]struct {
		user int
		why  string
	}{
		"real":              {0, ""},
		"relative":          {0, ""},
		"two":               {0, ""},
		"sticky/own":        {0, ""},
		"real/../real/.":    {0, ""},
		"real/..":           {0, ""},
		"users":             {other, ""},
		"theirs/link":       {other, ""},
		"mine":              {0, "theirs belongs to another user"},
		"through":           {0, "theirs belongs to another user"},
		"behind":            {0, "sticky/their-link is a link of another user"},
		"sticky/their-link": {0, "is a link of another user"},
		"sticky":            {0, "others may write in"},
		"loop":              {0, "too many links"},
		"absent":            {0, "no such file"},
	} {
		err := OwnFolder(at("")+"/"+name, row.user)
		if row.why == "" && err != nil || row.why != "" && (err == nil || !strings.Contains(err.Error(), row.why)) {
			t.Errorf("%s of uid %d: %v, want %q", name, row.user, err, row.why)
		}
	}
	if err := OwnFolder(at("users"), 1); err == nil {
		t.Error("another's folder is a user's own")
	}
}
