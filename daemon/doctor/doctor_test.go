package doctor

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/egressd/egressd/sandbox/jail"
)

// textOf returns findings as egressd doctor prints them.
func textOf(all []Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// symptomsOf has doctor look at a policy and variables, without the machine.
func symptomsOf(t *testing.T, path string, variables map[string]string, now time.Time) string {
	t.Helper()
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	out.WriteString(textOf(Configuration(cfg, func(name string) string { return variables[name] }, now)))
	return out.String()
}

func TestDoctorFinds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const plain = "version: 1\nallow: [a.test]\nlisten: {proxy: [\"127.0.0.1:3128\"]}\naudit: {dir: log}\n"
	write(plain)
	for _, row := range []struct {
		says      string
		prepare   func()
		variables map[string]string
		later     time.Duration
		want      string
	}{
		{"nothing", func() {}, nil, 0, "✓ policy: " + path},
		{"our proxy", func() {}, map[string]string{"HTTPS_PROXY": "http://user:pw@127.0.0.1:3128", "NO_PROXY": "localhost,127.0.0.1"}, 0, "✓ variables: none leads elsewhere"},
		{"another proxy", func() {}, map[string]string{"https_proxy": "http://127.0.0.1:8080"}, 0, "✗ variables: https_proxy does not lead"},
		{"ways around it", func() {}, map[string]string{"HTTPS_PROXY": "http://127.0.0.1:3128", "no_proxy": "localhost, evil.test"}, 0, "✗ variables: no_proxy leads past egressd for evil.test"},
		{"a clock that is behind", func() {}, nil, -time.Hour, "✗ clock: it is behind the last change of " + path},
		{"a log that others read", func() { os.Mkdir(filepath.Join(dir, "log"), 0); os.Chmod(filepath.Join(dir, "log"), 0o755) }, nil, 0, "fix: chmod 700 " + filepath.Join(dir, "log")},
		{"a policy that others write", func() { os.Chmod(path, 0o666) }, nil, 0, "fix: chmod go-w " + path},
		{"a folder that others write", func() { os.Chmod(path, 0o600); os.Chmod(dir, 0o777) }, nil, 0, "fix: chmod go-w " + dir},
		{"the working directory", func() { os.Chmod(dir, 0o700); t.Chdir(dir) }, nil, 0, "✗ policy: " + path + " lies in the working directory"},
		{"the user's own place, in the working directory", func() { t.Setenv("XDG_CONFIG_HOME", dir) }, nil, 0, "✓ policy: " + path},
		{"inspection, behind a proxy", func() {
			write(strings.Replace(plain, "[a.test]", "[{host: a.test, methods: [GET]}]", 1))
		}, map[string]string{"HTTPS_PROXY": "http://127.0.0.1:3128"}, 0, "python3 may not read the system's bundle, and REQUESTS_CA_BUNDLE names none"},
	} {
		row.prepare()
		if got := symptomsOf(t, path, row.variables, time.Now().Add(row.later)); !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", row.says, got, row.want)
		}
	}
}

func TestDoctorFindsSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if all := socketFindings([]string{path, "/nowhere"}); len(all) != 1 || !strings.Contains(all[0].Says, path) || all[0].Fix == "" {
		t.Errorf("%+v", all)
	}
	if all := socketFindings(others([]string{path}, path)); all[0].Fix != "" {
		t.Errorf("egressd's own socket is found: %+v", all)
	}
	if all := socketFindings([]string{os.DevNull}); all[0].Fix != "" {
		t.Errorf("%+v", all)
	}
}

// TestAnEscapeIsSaid has something get out, which no sandbox here lets.
func TestAnEscapeIsSaid(t *testing.T) {
	tried := []jail.WayOut{{Name: "raw sockets"}, {Name: "keys", Escaped: "request_key"}}
	if err := exits.Escaped(tried); err == nil || !strings.Contains(err.Error(), "keys: request_key") {
		t.Errorf("run would start: %v", err)
	}
	if err := exits.Escaped(tried[:1]); err != nil {
		t.Error(err)
	}
}

// TestAFixMovesNoFileOverAnother names a place for a policy file that nobody has yet.
func TestAFixMovesNoFileOverAnother(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	if got := ownName("/src/my corp.yaml"); got != "egressd.yaml" {
		t.Errorf("in an empty folder: %s", got)
	}
	if err := os.MkdirAll(filepath.Join(home, "egressd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "egressd", "egressd.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ownName("/src/my corp.yaml"); got != "'my corp.yaml'" {
		t.Errorf("beside a policy: %s", got)
	}
}
