//go:build linux

package hostsockets

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 1001 /run/a b.sock
0000000000000000: 00000003 00000000 00000000 0001 03 1002 /run/connected.sock
0000000000000000: 00000002 00000000 00010000 0005 01 1003 /run/packets
0000000000000000: 00000002 00000000 00000000 0002 01 1004 /run/datagrams
0000000000000000: 00000002 00000000 00010000 0001 01 1005 @/tmp/abstract
0000000000000000: 00000002 00000000 00010000 0001 01 1006 relative.sock
0000000000000000: 00000002 00000000 00010000 0001 01 1007
`

func TestSocketsThatTakeSomething(t *testing.T) {
	if got, want := boundIn(strings.NewReader(table)), []boundSocket{{path: "/run/a b.sock"}, {path: "/run/packets"}, {path: "/run/datagrams"}}; !slices.Equal(got, want) {
		t.Errorf("found %+v, want %+v", got, want)
	}
}

// foundIn are the listening sockets of a folder.
func foundIn(dir string, folders ...string) []string {
	return slices.DeleteFunc(listening(folders...), func(path string) bool { return !strings.HasPrefix(path, dir+"/") })
}

func listen(t *testing.T, path string) string {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	return path
}

func TestSocketsOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for _, name := range []string{"S.dirmngr", "S.gpg-agent", "agent", "service", "z, nobody's"} {
		paths = append(paths, listen(t, filepath.Join(dir, name)))
	}
	if err := os.Remove(paths[4]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[4], nil, 0o600); err != nil { // as the path of one in another mount namespace
		t.Fatal(err)
	}
	if got, want := foundIn(dir), paths[:4]; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// TestSocketsThatGotAnotherName has sockets whose name is not the one that was bound.
func TestSocketsThatGotAnotherName(t *testing.T) {
	for name, row := range map[string]struct {
		move func(from, to string) error
		to   string
		want []string
	}{
		"renamed":                     {os.Rename, "to", []string{"to"}},
		"linked":                      {os.Link, "to", []string{"from", "to"}},
		"linked, without the old one": {linkAndRemove, "to", []string{"to"}},
		"renamed into another folder": {os.Rename, "deep/er/to", []string{"deep/er/to"}},
		"linked into another folder":  {os.Link, "deep/er/to", []string{"deep/er/to", "from"}},
		"replaced by another socket":  {replace(t), "to", []string{"from", "to"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "deep/er"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := row.move(listen(t, filepath.Join(dir, "from")), filepath.Join(dir, row.to)); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, name := range row.want {
				want = append(want, filepath.Join(dir, name))
			}
			if got := foundIn(dir); !slices.Equal(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}

func linkAndRemove(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}

func replace(t *testing.T) func(from, to string) error {
	return func(from, to string) error {
		if err := os.Rename(from, to); err != nil {
			return err
		}
		listen(t, from)
		return nil
	}
}

// TestSocketsBoundByARelativePath has the kernel know only a part of the path.
func TestSocketsBoundByARelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	listen(t, "relative")
	if got, want := foundIn(dir, dir), []string{filepath.Join(dir, "relative")}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// TestSearchEnds has a folder with more entries than are looked at.
func TestSearchEnds(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		listen(t, filepath.Join(dir, name))
	}
	if entries, err := entriesOf(dir, 2); err != nil || len(entries) != 2 {
		t.Errorf("%d entries, want 2: %v", len(entries), err)
	}
}
