package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/testfiles"
)

const regoProject = "version: 1\nrego: [policy, one.rego]\n"

func TestReadTree(t *testing.T) {
	dir := testfiles.FilesIn(t, map[string]string{
		".egressd/project.yaml": regoProject, ".egressd/policy/a.rego": "package egress.project\n", ".egressd/policy/below/b.json": "{}",
		".egressd/policy/.hidden.rego": "no", ".egressd/policy/readme.md": "no", ".egressd/one.rego": "package x\n", ".egressd/other.rego": "no",
	})
	found, err := ReadTree(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "project.yaml policy/a.rego policy/below/b.json one.rego" {
		t.Errorf("it read %s", got)
	}
	if again, err := ReadTree(dir, found); err != nil || !again.Equal(found) || again.Digest() != found.Digest() {
		t.Errorf("the same tree is another one: %v", err)
	}
	moved := append(Tree{}, found...)
	moved[1], moved[2] = TreeText{found[1].Name, found[2].Text}, TreeText{found[2].Name, found[1].Text}
	if moved.Equal(found) || moved.Digest() == found.Digest() {
		t.Error("texts that changed places are the same tree")
	}
}

func TestWhatNoTreeMayHold(t *testing.T) {
	outside := testfiles.FilesIn(t, map[string]string{"secret.rego": "package x\n", "project.yaml": "version: 1\n"})
	for name, row := range map[string]struct {
		spoil func(folder string) error
		want  string
	}{
		"a link to a file outside": {func(f string) error {
			return replaced(filepath.Join(f, "one.rego"), filepath.Join(outside, "secret.rego"))
		}, "one.rego is a link"},
		"a link to a file inside": {func(f string) error { return replaced(filepath.Join(f, "one.rego"), "policy/a.rego") }, "one.rego is a link"},
		"a link for the file": {func(f string) error {
			return replaced(filepath.Join(f, "project.yaml"), filepath.Join(outside, "project.yaml"))
		}, "project.yaml is a link"},
		"a link to a folder outside":     {func(f string) error { return replaced(filepath.Join(f, "policy"), outside) }, "policy is a link"},
		"a link in a folder":             {func(f string) error { return os.Symlink(outside, filepath.Join(f, "policy", "more")) }, "policy/more is a link"},
		"a link with a name that counts": {func(f string) error { return os.Symlink("a.rego", filepath.Join(f, "policy", "b.rego")) }, "policy/b.rego is a link"},
		"a link for the whole":           {func(f string) error { return replaced(f, outside) }, ".egressd is a link"},
		"a FIFO":                         {func(f string) error { return syscall.Mkfifo(filepath.Join(f, "policy", "b.rego"), 0o600) }, "policy/b.rego is no plain file"},
		"a socket":                       {socketAt, "policy/s.rego is no plain file"},
		"a folder named as a file":       {func(f string) error { return os.MkdirAll(filepath.Join(f, "one.rego.d"), 0o700) }, ""},
		"a folder for the file": {func(f string) error {
			return errors.Join(os.Remove(filepath.Join(f, "project.yaml")), os.Mkdir(filepath.Join(f, "project.yaml"), 0o700))
		}, "project.yaml is a folder"},
		"a file that is too large":  {func(f string) error { return os.Truncate(filepath.Join(f, "policy", "a.rego"), 1<<40) }, "larger than 4 MiB together"},
		"too many files":            {manyFiles, "more than 500 files"},
		"too many entries":          {manyEntries, "policy holds too many entries"},
		"folders that are too deep": {func(f string) error { return os.MkdirAll(filepath.Join(f, "policy", "1/2/3/4/5/6/7/8/9"), 0o700) }, "more than 8 folders deep"},
		"an ending in upper case":   {func(f string) error { return os.WriteFile(filepath.Join(f, "policy", "D.REGO"), nil, 0o600) }, ""},
		"a named file that is gone": {func(f string) error { return os.Remove(filepath.Join(f, "one.rego")) }, "no such file"},
		"a folder without a policy": {func(f string) error { return os.Remove(filepath.Join(f, "policy", "a.rego")) }, "policy holds no file that ends in .rego"},
		"no folder":                 {os.RemoveAll, "no such file"},
	} {
		dir := testfiles.FilesIn(t, map[string]string{".egressd/project.yaml": regoProject, ".egressd/policy/a.rego": "package egress.project\n", ".egressd/one.rego": "package x\n"})
		if err := row.spoil(filepath.Join(dir, ".egressd")); err != nil {
			t.Fatal(err)
		}
		_, err := ReadTree(dir, nil)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
	if _, err := ReadTree(t.TempDir(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where there is no project: %v", err)
	}
}

func replaced(path, target string) error {
	return errors.Join(os.RemoveAll(path), os.Symlink(target, path))
}

func socketAt(folder string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, "policy", "s.rego")})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func manyFiles(folder string) error {
	for i := range maxTreeFiles {
		if err := os.WriteFile(filepath.Join(folder, "policy", fmt.Sprintf("%d.rego", i)), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func manyEntries(folder string) error {
	for i := range 4 * maxTreeFiles {
		if err := os.WriteFile(filepath.Join(folder, "policy", fmt.Sprintf("%d.md", i)), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// TestATreeThatNobodyTrustedIsNotLookedAt names what would be refused, had it been
// looked at.
func TestATreeThatNobodyTrustedIsNotLookedAt(t *testing.T) {
	dir := testfiles.FilesIn(t, map[string]string{".egressd/project.yaml": "version: [\nrego: [/etc/shadow]"})
	found, err := ReadTree(dir, Tree{{TreeFile, []byte("version: 1\n")}})
	if err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestATrustStoreThatOthersCouldWriteIsRefused(t *testing.T) {
	store := TrustStore(filepath.Join(t.TempDir(), "trust"))
	files := Tree{{TreeFile, []byte("version: 1\n")}}
	put := func() string {
		t.Helper()
		if err := store.Put(&Pin{Dir: "/home/me/tree", Digest: files.Digest(), Files: files}); err != nil {
			t.Fatal(err)
		}
		return store.path("/home/me/tree")
	}
	for name, spoil := range map[string]func(path string) error{
		"readable by others": func(path string) error { return os.Chmod(path, 0o644) },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
		"half of it": func(path string) error { return os.Truncate(path, 30) },
		"another text": func(path string) error {
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, []byte(strings.Replace(string(text), `"text":"d`, `"text":"e`, 1)), 0o600))
		},
		"that of another tree": func(path string) error { return os.Rename(path, store.path("/home/me/other")) },
	} {
		path := put()
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		dir := "/home/me/tree"
		if name == "that of another tree" {
			dir = "/home/me/other"
		}
		if p, err := store.Find(dir); err == nil || p != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
		if err := os.RemoveAll(string(store)); err != nil {
			t.Fatal(err)
		}
	}
	put()
	if p, err := store.Find("/home/me/tree"); err != nil || p == nil || !p.Files.Equal(files) {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := store.Find("/no/project"); err != nil || p != nil {
		t.Errorf("%v, %v", p, err)
	}
}

// TestATrustedProjectThatIsWrongIsAnError has one that another version could have
// trusted.
func TestATrustedProjectThatIsWrongIsAnError(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := testfiles.FilesIn(t, map[string]string{"egressd.yaml": "version: 1\nsandboxes: [{name: app, token_file: t, project: .}]\n", ".egressd/project.yaml": "version: 2\n"})
	store, err := OpenTrustStore()
	if err != nil {
		t.Fatal(err)
	}
	files := Tree{{TreeFile, []byte("version: 2\n")}}
	if err := store.Put(&Pin{Dir: dir, Digest: files.Digest(), Files: files}); err != nil {
		t.Fatal(err)
	}
	c, err := LoadUnder(filepath.Join(dir, FileName), filepath.Join(dir, "none"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compile(); err == nil || !strings.Contains(err.Error(), "the trusted project of sandbox app: ") {
		t.Errorf("%v", err)
	}
}
