package client

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Ask(t.Context(), http.MethodGet, "/readyz", &struct{}{})
	if err == nil || !strings.Contains(err.Error(), "without an answer") || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("got %v", err)
	}
}
