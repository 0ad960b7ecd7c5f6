package client

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/hint"
)

// TestWhoIsTurnedAwayLearnsWhy: the operator's listener closes the connection of somebody in another network without a
// word, so the command has to know.
func TestWhoIsTurnedAwayLearnsWhy(t *testing.T) {
	dir := t.TempDir()
	socket, path := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "egressd.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nlisten: {admin: \"unix:"+socket+"\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-closed })
	c, err := Dial(Place{Config: path})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Ask(t.Context(), http.MethodGet, "/readyz", &struct{}{})
	if err == nil || !strings.Contains(err.Error(), "without an answer") || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("got %v", err)
	}
}

// TestAClosedFolderOfTheSystemIsNotTheFault: nothing listens at the user's own socket. The system's folder, which the user
// may not open, is named only beside that.
func TestAClosedFolderOfTheSystemIsNotTheFault(t *testing.T) {
	c := &Client{At: "unix:/home/u/admin.sock", path: "/home/u/egressd.yaml"}
	for _, row := range []struct {
		failed      []error
		says, hints string
	}{
		{[]error{fs.ErrNotExist, fs.ErrNotExist}, "is not running", "egressd serve --config /home/u/egressd.yaml"},
		{[]error{fs.ErrNotExist, fs.ErrPermission}, "is not running: nothing listens at unix:/home/u/admin.sock", "egressd serve --config /home/u/egressd.yaml; if root runs egressd serve for this file: the same command as root"},
		{[]error{fs.ErrPermission, fs.ErrNotExist}, "ask egressd serve at unix:/home/u/admin.sock: permission denied", "the same command as root, or as the user of egressd serve"},
		{[]error{fs.ErrPermission, fs.ErrPermission}, "ask egressd serve at unix:/home/u/admin.sock: permission denied", "the same command as root, or as the user of egressd serve"},
	} {
		var got *hint.Error
		if err := c.explain(whyNone(row.failed)); !errors.As(err, &got) || !strings.Contains(got.Error(), row.says) || got.Hint != row.hints {
			t.Errorf("%v: %v, hint %+v", row.failed, err, got)
		}
	}
}
