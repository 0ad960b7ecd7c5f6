package daemon

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
)

// writesSinks returns what writes the policy file of dir with a list of sinks, beside what
// else is said of the log.
func writesSinks(t *testing.T, dir, rest string) func(sinks string) {
	return func(sinks string) {
		t.Helper()
		writeFile(t, filepath.Join(dir, "egressd.yaml"), fmt.Sprintf("version: 1\nlisten: {proxy: [\"127.0.0.1:0\"]}\naudit: {dir: %q, key_dir: %q, %ssinks: [%s]}\nupstream: {dns: [\"127.0.0.1:9\"]}\n",
			filepath.Join(dir, "audit"), filepath.Join(dir, "keys"), rest, sinks))
	}
}

// TestSinksFollowThePolicy has a daemon whose sinks change while it runs, and its
// last record in the file of the last one.
func TestSinksFollowThePolicy(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	write := writesSinks(t, dir, "")
	write("{name: a, type: file, path: a.json, format: ecs}")
	d := started(t, io.Discard, path)
	for began := false; !began; time.Sleep(time.Millisecond) { // until then a new list could take its place
		text, _ := os.ReadFile(filepath.Join(dir, "a.json"))
		began = bytes.Contains(text, []byte(`"action":"start"`))
	}
	write("{name: a, type: otlp, url: \"http://127.0.0.1:9/\", headers_file: absent}")
	if err := d.reloads.apply(t.Context(), "test"); err == nil {
		t.Error("headers that are not there are taken")
	}
	writeFile(t, filepath.Join(dir, "wrong"), "Authorization Bearer hidden\n")
	write("{name: a, type: otlp, url: \"http://127.0.0.1:9/\", headers_file: wrong}")
	if err := d.reloads.apply(t.Context(), "test"); err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("headers that are none: %v", err)
	}
	write("{name: b, type: file, path: b.json, format: ocsf}")
	if err := d.reloads.apply(t.Context(), "test"); err != nil {
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

// TestRetentionOfADaemonWaitsForItsSinks has a daemon with a receiver that is never
// there, and then no longer wanted.
func TestRetentionOfADaemonWaitsForItsSinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	write := writesSinks(t, dir, "segment_bytes: 65536, durability: process, retain: {segments: 2, sinks: {age: 720h}}, ")
	write("{name: siem, type: unix, path: nobody.sock, format: json}")
	d := started(t, io.Discard, path)
	record := []byte(`{"kind":"note","note":"` + strings.Repeat("x", 4000) + `"}`)
	fill := func() (oldest string) {
		t.Helper()
		for range 100 {
			if _, err := d.Log.Append(record); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Log.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		segments, err := audit.Segments(filepath.Join(dir, "audit"))
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(segments[0])
	}
	if oldest := fill(); oldest != "00000001.log" {
		t.Errorf("the log begins with %s, and nothing was sent", oldest)
	}
	write("")
	if err := d.reloads.apply(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if oldest := fill(); oldest == "00000001.log" {
		t.Error("without sinks the log keeps all")
	}
}
