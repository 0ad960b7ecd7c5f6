package jailinit

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWaysOutThatAreOpenAreFound tries outside of a jail what is tried in one.
func TestWaysOutThatAreOpenAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		says string
		try  func(Program) string
		p    Program
		want string
	}{
		{"calls", tryCalls, Program{}, ": "},
		{"a terminal", tryTerminal, Program{}, "ioctl"},
		{"a family", tryFamilies, Program{}, "socket("},
		{"mounts", tryMounts, Program{}, "unshare: "},
		{"mounts that are wanted", tryMounts, Program{Nested: true}, ""},
		{"the parent", tryParent, Program{}, ""},
		{"privileges", tryPrivileges, Program{}, "s"},
		{"a file that is hidden", tryFiles, Program{Hidden: []string{file}}, file},
		{"a folder that is hidden", tryFiles, Program{Hidden: []string{filepath.Dir(file)}}, file},
		{"a file that is fixed", tryFiles, Program{Fixed: []string{file}}, file + " can be written"},
		{"a file that is covered", tryFiles, Program{Covered: map[string][]byte{file: nil}}, file + " can be written"},
	} {
		if got := row.try(row.p); !strings.Contains(got, row.want) || (got == "" && row.want != "") {
			t.Errorf("%s: %q, want %q", row.says, got, row.want)
		}
	}
	if got := tryFiles(Program{Hidden: []string{file + "x", os.DevNull}, Fixed: []string{file + "y"}}); got != "" {
		t.Errorf("what is closed: %q", got)
	}
}

// TestASocketThatIsMadeAnewIsNoHiddenOne has a service remove its socket and make it again without pause, so that the kernel would give
// both the same inode number and time.
func TestASocketThatIsMadeAnewIsNoHiddenOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	bind := func() (end func()) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		return func() { l.Close() } // which removes the file, and frees its number unless somebody has it open
	}
	for range 100 {
		end := bind()
		was, err := openHidden(path)
		if err != nil {
			t.Fatal(err)
		}
		p := Program{hidden: map[string]hiddenSocket{path: was}}
		if got := tryFiles(p); got != path {
			t.Fatalf("the socket itself: %q", got)
		}
		end()
		end = bind()
		if got := tryFiles(p); got != "" {
			t.Fatalf("another one: %q", got)
		}
		end()
		unix.Close(was.fd)
	}
}
