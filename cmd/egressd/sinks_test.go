package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSinksFollowThePolicy has a daemon whose sinks change while it runs, and its
// last record in the file of the last one.
func TestSinksFollowThePolicy(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	write := func(sinks string) {
		t.Helper()
		text := fmt.Sprintf("version: 1\nlisten: {proxy: [\"127.0.0.1:0\"]}\naudit: {dir: %q, key_dir: %q, sinks: [%s]}\nupstream: {dns: [\"127.0.0.1:9\"]}\n",
			filepath.Join(dir, "audit"), filepath.Join(dir, "keys"), sinks)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{name: a, type: file, path: a.json, format: ecs}")
	d, err := newDaemon(io.Discard, path, tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for began := false; !began; time.Sleep(time.Millisecond) { // until then a new list could take its place
		text, _ := os.ReadFile(filepath.Join(dir, "a.json"))
		began = bytes.Contains(text, []byte(`"action":"start"`))
	}
	write("{name: a, type: otlp, url: \"http://127.0.0.1:9/\", headers_file: absent}")
	if err := d.apply(t.Context(), "test"); err == nil {
		t.Error("headers that are not there are taken")
	}
	if err := os.WriteFile(filepath.Join(dir, "wrong"), []byte("Authorization Bearer hidden\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("{name: a, type: otlp, url: \"http://127.0.0.1:9/\", headers_file: wrong}")
	if err := d.apply(t.Context(), "test"); err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("headers that are none: %v", err)
	}
	write("{name: b, type: file, path: b.json, format: ocsf}")
	if err := d.apply(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := d.stop(0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a.json": `"action":"start"`, "b.json": `"activity_name":"Stop"`} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s has no %s: %v", name, want, err)
		}
	}
}
