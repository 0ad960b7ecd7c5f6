package audit

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// TestReadersWaitForNoPipe puts what is no file in the place of each file of a log: a pipe, which
// waits for who writes into it, and a device without end.
func TestReadersWaitForNoPipe(t *testing.T) {
	sorts := map[string]func(path string) error{
		"a pipe":                       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link to what never ends":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"a link to a pipe of somebody": linkToPipe,
	}
	readers := map[string]struct {
		file string
		read func(dir string) error
	}{
		"the first segment": {fileName(1, ".log"), readAll},
		"a later segment":   {fileName(2, ".log"), readAll},
		"checkpoints": {fileName(1, ".ckpt"), func(dir string) error {
			_, err := format.OriginOf(dir)
			return err
		}},
		"the lock": {"lock", func(dir string) error {
			_, err := format.Writing(dir)
			return err
		}},
	}
	for what, r := range readers {
		for says, put := range sorts {
			dir := filepath.Join(t.TempDir(), "log")
			l := create(t, dir, Options{})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, r.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- r.read(dir) }()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("%s is %s: it was read", what, says)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s is %s: it is read still", what, says)
			}
		}
	}
}

func linkToPipe(path string) error {
	elsewhere := path + ".elsewhere"
	return errors.Join(syscall.Mkfifo(elsewhere, 0o600), os.Symlink(elsewhere, path))
}

func readAll(dir string) error {
	r, err := NewReader(dir, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	for err == nil {
		_, err = r.Next()
	}
	if err == io.EOF {
		return nil
	}
	return err
}
