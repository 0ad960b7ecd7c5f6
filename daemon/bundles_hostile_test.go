package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
)

// TestWhatLapsesDuringAReloadIsCut has a bundle expire while a reload waits for the
// server of another one. The tunnels that it allowed do not go on until the daemon
// happens to look again.
func TestWhatLapsesDuringAReloadIsCut(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	key := newBundleSigner(t)
	tarball := key.sign(t, packed(t, "one", "one.test"), 7*time.Second) // enough to begin in
	expired, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	late := time.Now().Add(8*time.Second + lookEvery*9/10)
	slow := serveBundle(t, func(w http.ResponseWriter, r *http.Request) {
		<-expired.Done()
		http.NotFound(w, r)
	})
	w := serveRego(t, "rego: [{bundle: policy.tar.gz, key: key.pem}]\n", map[string]string{"key.pem": string(key.public), "policy.tar.gz": string(tarball)})
	far := silent(t)
	c, answer := w.tunnel(t, "one.test:"+far)
	if c == nil {
		t.Fatalf("no tunnel: %q", answer)
	}
	defer c.Close()
	text, err := os.ReadFile(filepath.Join(w.dir, "egressd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "egressd.yaml", string(text[:len(text)-len("]\n")])+fmt.Sprintf(", {bundle: %q, key: key.pem}]\n", slow.URL))
	c.SetReadDeadline(late)
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the tunnel was not cut")
	}
}

// TestOneBundleHasOneAge refuses to have a bundle kept by two feeds: each would remove
// what the other has on disk, and put the older time of issue in its place.
func TestOneBundleHasOneAge(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	rego := func(refresh string) string {
		return fmt.Sprintf("rego:\n- {bundle: %[1]q, key: key.pem, refresh: 1h}\n- {bundle: %[1]q, key: key.pem, refresh: %s, mode: shadow}\n", s.URL, refresh)
	}
	w := serveRego(t, rego("1h"), map[string]string{"key.pem": string(key.public)})
	if len(w.Config.Feeds) != 1 {
		t.Errorf("one bundle has %d feeds", len(w.Config.Feeds))
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "egressd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "egressd.yaml", strings.Replace(string(text), rego("1h"), rego("2h"), 1))
	w.hear(t, "is there already, with another ca, token_file, refresh or max_age")
}

// TestAStoreOfOthersDoesNotDecide has a folder of bundles in which others can write.
func TestAStoreOfOthersDoesNotDecide(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveRego(t, fetchedLine(s), map[string]string{"key.pem": string(key.public)})
	folder, err := config.BundlesDir()
	if err == nil {
		err = os.Chmod(folder, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := (&config.Config{Path: w.Config.Path, File: w.Config.File}).OpenFeeds(nil); err == nil || !strings.Contains(err.Error(), "others can write in "+folder) {
		t.Errorf("opened: %v", err)
	}
}
