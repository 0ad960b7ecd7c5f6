package doors

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
0000000000000000: 00000002 00000000 00010000 0001 01 1008 /run/packets
`

func TestSocketsThatTakeSomething(t *testing.T) {
	if got, want := boundIn(strings.NewReader(table)), []string{"/run/a b.sock", "/run/packets", "/run/datagrams"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestSocketsOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for _, name := range []string{"service", "agent", "S.gpg-agent", "S.dirmngr", "nobody's"} {
		path := filepath.Join(dir, name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		paths = append(paths, path)
	}
	if err := os.Remove(paths[4]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[4], nil, 0o600); err != nil { // as the path of one in another mount namespace
		t.Fatal(err)
	}
	got := slices.DeleteFunc(listening(paths[1]), func(path string) bool { return filepath.Dir(path) != dir })
	slices.Sort(got)
	if want := []string{paths[3], paths[0]}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
