package daemon

import (
	"os"
	"path/filepath"
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
