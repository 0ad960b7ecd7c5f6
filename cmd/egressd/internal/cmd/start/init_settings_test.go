//go:build linux

package start

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/compose"
	"github.com/egressd/egressd/integrations/devcontainer"
	"golang.org/x/sys/unix"
)

// terminal returns both ends of one: what a person types goes into the first.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

func TestOnATerminalSomebodyIsAsked(t *testing.T) {
	for typed, want := range map[string]bool{"y\n": true, "Yes\n": true, "\n": false, "n\n": false, "yy\n": false, "\x04": false} {
		t.Setenv("HOME", t.TempDir())
		t.Setenv("CLAUDE_CONFIG_DIR", "")
		person, program := terminal(t)
		if _, err := person.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		o := integrationOptions{planOptions: &planOptions{}, of: programs[0], listen: "127.0.0.1:3128"}
		err := o.run(program, program, program)
		_, missing := os.Stat(filepath.Join(os.Getenv("HOME"), ".claude", "settings.json"))
		if (err == nil) != want || (missing == nil) != want {
			t.Errorf("%q: %v, %v, want it written: %t", typed, err, missing, want)
		}
	}
}

func TestNobodyIsAskedWithoutATerminal(t *testing.T) {
	person, program := terminal(t)
	if _, err := person.WriteString("y\ny\n"); err != nil { // to be read where it is asked all the same
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	o := integrationOptions{planOptions: &planOptions{}, of: programs[0]}
	if o.agreed(null, program) == nil || o.agreed(program, null) == nil {
		t.Error("it was taken for a yes")
	}
}

// TestNobodyIsWaitedFor has FIFOs where a project's files are looked for.
func TestNobodyIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	fifo := func(parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), unix.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	claude := fifo(".claude", "settings.json")
	container := fifo("a", ".devcontainer", "devcontainer.json")
	composeFile := fifo("compose.yaml")
	planned := planOptions{}
	for name, try := range map[string]func() error{
		"init claude": func() error {
			o := integrationOptions{planOptions: &planOptions{}, of: programs[0], listen: "127.0.0.1:3128", project: true}
			return o.run(nil, io.Discard, io.Discard)
		},
		"settings that are replaced": func() error { return replaceSettings(&integrations.File{Path: claude, Old: []byte("x")}) },
		"init devcontainer": func() error {
			_, err := devcontainer.Merge(devcontainer.Options{Folder: filepath.Join(dir, "a")})
			return err
		},
		"the files of its Feature": func() error { _, err := readBeside(container); return err },
		"init compose":             func() error { _, err := compose.Read(dir); return err },
		"a file that is planned": func() error {
			return planned.carryOut(io.Discard, io.Discard, integrations.Set{Files: []integrations.Made{{Path: composeFile, Text: "x"}}})
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "is no plain file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSettingsThatChangedMeanwhileStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.json")
	if err := errors.Join(os.WriteFile(path, []byte("theirs"), 0o640), os.Chmod(path, 0o640)); err != nil { // whatever the umask
		t.Fatal(err)
	}
	for _, old := range []string{"", "mine"} {
		file := integrations.File{Path: path, New: []byte("new")}
		if old != "" {
			file.Old = []byte(old)
		}
		if err := replaceSettings(&file); err == nil {
			t.Errorf("%q was replaced", old)
		}
	}
	if err := replaceSettings(&integrations.File{Path: path, Old: []byte("theirs"), New: []byte("new")}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is not what it was: %v %v", info.Mode(), err)
	}
}
