//go:build srt

package run

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
)

// srtVariable names the program srt, of @anthropic-ai/sandbox-runtime; scripts/srt.sh
// installs it.
const srtVariable = "EGRESSD_E2E_SRT"

// settled waits until srt's own forwarder listens in its sandbox, which begins
// beside the program.
const settled = `for i in 1 2 3 4 5 6 7 8 9; do socat -u OPEN:/dev/null TCP:localhost:3128 2>/dev/null && break; sleep 0.3; done; `

// An srtRow is what a program in srt's sandbox does.
type srtRow struct {
	says, script string
	wants        string // in what it prints
	via          string // in the log
	host, action string
}

var srtRows = []srtRow{
	{"HTTP", `curl -sS -m9 http://b.allowed.test/x`, "GET /x", "http", "b.allowed.test", "allow"},
	{"HTTP, denied", `curl -sS -m9 http://evil.test/x`, `"class":"default-deny"`, "http", "evil.test", "deny"},
	{"CONNECT", `curl -sS -m9 --cacert $LAB_CA https://b.allowed.test/x`, "GET /x", "connect", "b.allowed.test", "allow"},
	{"CONNECT, denied", `curl -sS -m9 -v https://evil.test/x 2>&1`, "403 Blocked by egressd: evil.test:443 default-deny", "connect", "evil.test", "deny"},
	{"SOCKS", `curl -sS -m9 --proxy socks5h://localhost:1080 --cacert $LAB_CA https://b.allowed.test/y`, "GET /y", "socks5", "b.allowed.test", "allow"},
	{"SOCKS, denied", `curl -sS -m9 --proxy socks5h://localhost:1080 https://evil.test/y 2>&1`, "curl: (97)", "socks5", "evil.test", "deny"},
	{"ssh, as srt has git use it", `eval "timeout 9 $GIT_SSH_COMMAND -v -o StrictHostKeyChecking=no git@b.allowed.test true" 2>&1`, "remote software version lab", "connect", "b.allowed.test", "allow"},
	{"ssh, denied", `eval "timeout 9 $GIT_SSH_COMMAND -v -o StrictHostKeyChecking=no git@evil.test true" 2>&1`, "Blocked by egressd: evil.test:22", "connect", "evil.test", "deny"},
	{"past the proxy", `curl -sS -m5 --noproxy '*' http://151.101.1.69/ 2>&1; echo done`, "done", "", "", ""},
}

// TestSRTThroughServe has srt send programs to egressd's one port by its settings
// httpProxyPort and socksProxyPort, as docs/how-to/coding-agents.md has them.
func TestSRTThroughServe(t *testing.T) {
	d := world.Start(t, "version: 1\nallow: [\"*.allowed.test\", \"*.allowed.test:22\"]\nlisten: {proxy: [\"127.0.0.1:3128\", \"[::1]:3128\"]}\n")
	settings := filepath.Join(d.Dir, "srt.json")
	if err := os.WriteFile(settings, []byte(testfiles.Block(t, "how-to/coding-agents.md", "json", "## srt")), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := d.World.Origin.Ca.File(t)
	for _, row := range srtRows {
		t.Run(row.says, func(t *testing.T) {
			written, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			mark := d.World.Mark(t)
			words := slices.Concat(world.Users["user"], []string{os.Getenv(srtVariable), "--settings", settings, "-c", settled + row.script})
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Dir = d.Dir
			cmd.Env = append(os.Environ(), "HOME="+d.Dir, "LAB_CA="+ca)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			var exit *exec.ExitError
			if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), row.wants) {
				t.Errorf("printed %q", out.String())
			}
			records, err := d.Log.Since(written)
			if err != nil {
				t.Fatal(err)
			}
			if row.host != "" && !slices.ContainsFunc(records, func(r record.Record) bool {
				return r.Dst != nil && r.Dst.Host == row.host && r.Decision != nil && r.Decision.Action == row.action && (row.via == "" || r.Via == row.via)
			}) {
				t.Errorf("printed %q, recorded %+v", out.String(), records)
			}
			if row.action != "allow" {
				d.World.Silent(t, mark, "127.0.0.1", "::1", "10.98.0.1", "fd98::1")
			}
		})
	}
}

// TestSRTUnderRun runs srt in the sandbox of egressd run: what passes srt's list has
// to pass the policy as well.
func TestSRTUnderRun(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	settings := filepath.Join(d.Dir, "srt.json")
	const own = `{"network": {"allowedDomains": ["*.allowed.test", "evil.test"], "deniedDomains": ["c.allowed.test"]}, "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}`
	if err := os.WriteFile(settings, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LAB_CA", d.World.Origin.Ca.File(t))
	const user = 1338 // somebody else than root, whose /proc/sys egressd run fixes
	if err := d.Chown(user); err != nil {
		t.Fatal(err)
	}
	srt := func(script string) *ran {
		cmd := jailed(t.Context(), d, "root", []string{"--nested"}, os.Getenv(srtVariable), "--settings", "srt.json", "-c", settled+script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}}
		var out, talk bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &talk
		var exit *exec.ExitError
		if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return &ran{out: out.String(), talk: talk.String(), records: lastRun(t, d)}
	}
	if r := srt(`curl -sS -m9 http://b.allowed.test/x; curl -sS -m9 --cacert $LAB_CA https://b.allowed.test/y`); !strings.Contains(r.out, "GET /x") || !strings.Contains(r.out, "GET /y") {
		t.Errorf("allowed by both: %q %q", r.out, r.talk)
	}
	if r := srt(`curl -sS -m9 http://evil.test/x; curl -sS -m9 https://evil.test/x`); !strings.Contains(r.out+r.talk, "default-deny") || r.denied("evil.test", "default-deny") < 2 {
		t.Errorf("allowed by srt alone: %q %q %+v", r.out, r.talk, r.records)
	}
	if r := srt(`curl -sS -m9 http://c.allowed.test/x`); strings.Contains(r.out, "GET /x") || r.denied("c.allowed.test", "default-deny") > 0 {
		t.Errorf("allowed by egressd alone: %q %q", r.out, r.talk)
	}
}
