package daemon

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
)

// TestOthersReachASocketWhateverTheUmask looks at what openListener makes in a
// process that serve has confined: the sandboxes of a socket have users of
// their own.
func TestOthersReachASocketWhateverTheUmask(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(run, "sandboxes", "web.sock")
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	l, err := openListener("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for made, want := range map[string]os.FileMode{run: 0o755, filepath.Dir(path): 0o755, path: 0o660} {
		if info, err := os.Stat(made); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v; want %v", made, info.Mode().Perm(), err, want)
		}
	}
}

// TestABusyPortNamesItsHolderAndLeavesNoLog has this process listen where the daemon is to.
func TestABusyPortNamesItsHolderAndLeavesNoLog(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	path, audit := filepath.Join(dir, "egressd.yaml"), filepath.Join(dir, "audit")
	writeFile(t, path, fmt.Sprintf("version: 1\nlisten: {proxy: [%q]}\naudit: {dir: %q, key_dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\n", l.Addr(), audit, filepath.Join(dir, "keys")))
	var said strings.Builder
	d, err := New(&said, path, Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Begin(t.Context())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d has it", os.Getpid())) {
		t.Errorf("the error is %v", err)
	}
	d.Close()
	if _, err := os.Stat(audit); !errors.Is(err, fs.ErrNotExist) || strings.Contains(said.String(), "new log") {
		t.Errorf("a log is left (%v), and was announced: %s", err, said.String())
	}
	l.Close()
	if d, err = New(&said, path, Tailoring{}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "egressd: new log in "+audit) {
		t.Errorf("said %s", said.String())
	}
}
