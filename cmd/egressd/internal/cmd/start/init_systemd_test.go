package start

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
)

// everyListener is a policy with listeners of each kind.
const everyListener = `version: 1
listen:
  proxy: ["127.0.0.1:3128", "tls:127.0.0.1:3443", "unix:/run/egressd/users.sock"]
  dns: ["127.0.0.1:53", "[::1]:53"]
  transparent: ["127.0.0.1:3129", "tproxy:[::1]:3129"]
  admin: "unix:/run/egressd/admin.sock"
sandboxes:
  - {name: users, uid: [1000]}
  - {name: own, listen: "unix:/run/egressd/own.sock"}
`

// TestUnits has systemd itself judge them.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "egressd.yaml")
	if err := os.WriteFile(config, []byte(everyListener), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, talk bytes.Buffer
	args := []string{"init", "systemd", "--config", config, "--output", dir, "--program", "/bin/true"}
	if code := clitest.Run(newInit(), args, &out, &talk); code != 0 {
		t.Fatalf("%d: %s", code, talk.String())
	}
	var units []string
	for name, lines := range map[string]string{
		"egressd.socket":        "ListenStream=127.0.0.1:3128\nListenStream=127.0.0.1:3443\nListenStream=/run/egressd/own.sock\nSocketMode=0660\n",
		"egressd-users.socket":  "ListenStream=/run/egressd/users.sock\nSocketMode=0666\n",
		"egressd-inner.socket":  "ListenStream=127.0.0.1:53\nListenStream=[::1]:53\nListenStream=127.0.0.1:3129\nListenDatagram=127.0.0.1:53\nListenDatagram=[::1]:53\nBindIPv6Only=ipv6-only\n",
		"egressd-tproxy.socket": "ListenStream=[::1]:3129\nBindIPv6Only=ipv6-only\nTransparent=yes\n",
		"egressd-admin.socket":  "ListenStream=/run/egressd/admin.sock\nSocketMode=0600\n",
		"egressd.service":       "Sockets=egressd.socket egressd-users.socket egressd-inner.socket egressd-tproxy.socket egressd-admin.socket\nExecStart=/bin/true serve --config " + config + "\n",
	} {
		path := filepath.Join(dir, name)
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), lines) {
			t.Errorf("%s (%v):\n%s", name, err, text)
		}
		units = append(units, path)
	}
	const exposure = "20" // tenths
	if said, err := exec.Command("systemd-analyze", "--no-pager", "security", "--offline=true", "--threshold="+exposure, filepath.Join(dir, "egressd.service")).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, said)
	}
	if said, err := exec.Command("systemd-analyze", append([]string{"--man=no", "verify"}, units...)...).CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, said)
	}

	// A unit that somebody has changed is theirs.
	if err := os.WriteFile(units[0], []byte("[Unit]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	talk.Reset()
	if code := clitest.Run(newInit(), args, &out, &talk); code != 1 || !strings.Contains(talk.String(), "was left as it is") {
		t.Errorf("%d: %s", code, talk.String())
	}
	if text, err := os.ReadFile(units[0]); err != nil || string(text) != "[Unit]\n" {
		t.Errorf("it was replaced: %s, %v", text, err)
	}
}
