package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A heard is what a daemon says.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(p)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// TestACanaryIsAnAlarm has a daemon stop requests that hold one, and tell the operator,
// who is not told of thousands.
func TestACanaryIsAnAlarm(t *testing.T) {
	const text = "AKIAQ3EGALARMS77EXAMPLE0"
	dir := t.TempDir()
	path, file := filepath.Join(dir, "egressd.yaml"), filepath.Join(dir, "canary.txt")
	writeFile(t, file, text+"\n")
	head := fmt.Sprintf("version: 1\nlisten: {proxy: [%q]}\naudit: {dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\nallow: [\"a.example\"]\n", "unix:"+filepath.Join(dir, "p"), filepath.Join(dir, "audit"))
	writeFile(t, path, head+"canaries: [{name: aws-key, file: canary.txt}]\n")
	said := new(heard)
	d := started(t, said, path)
	defer d.stop(0)
	ask := func() string {
		c, err := net.Dial("unix", filepath.Join(dir, "p"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET http://a.example/?k="+strings.ToLower(text)+" HTTP/1.1\r\nHost: a.example\r\n\r\n")
		b, _ := io.ReadAll(c)
		return string(b)
	}
	for range 100 {
		if got := ask(); !strings.HasPrefix(got, "HTTP/1.1 403 ") || !strings.Contains(got, `"class":"canary"`) {
			t.Fatalf("answered %s", got)
		}
	}
	d.alarms.end()
	alarms := strings.Count(said.String(), "ALARM: default")
	if alarms == 0 || alarms > 30 || !strings.Contains(said.String(), "the canary aws-key to a.example, in its query (lower case); it was stopped") {
		t.Errorf("%d alarms:\n%s", alarms, said)
	}
	d.Gate.Records.Settle()
	log, err := os.ReadFile(filepath.Join(dir, "audit", "00000001.log"))
	if err != nil || bytes.Contains(bytes.ToLower(log), bytes.ToLower([]byte(text))) || bytes.Count(log, []byte(`"kind":"signal"`)) == 0 {
		t.Errorf("%v, in the log:\n%s", err, log)
	}
	for says, broken := range map[string]func(){
		"absent":             func() { os.Remove(file) },
		"short":              func() { writeFile(t, file, "AKIA") },
		"readable by others": func() { writeFile(t, file, text); os.Chmod(file, 0o644) },
	} {
		broken()
		if err := d.reloads.apply(context.Background(), "test"); err == nil || strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", says, err)
		}
		os.Remove(file)
	}
	if got := ask(); !strings.Contains(got, `"class":"canary"`) {
		t.Errorf("after a change that was refused: %s", got)
	}
	writeFile(t, path, head)
	if err := d.reloads.apply(context.Background(), "test"); err != nil {
		t.Fatal(err)
	}
	if got := ask(); strings.Contains(got, `"class":"canary"`) {
		t.Errorf("without canaries: %s", got)
	}
}
