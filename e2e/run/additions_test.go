package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// TestRunAllowsMore has --allow open one host, --preset another set, and neither what a rule of the file denies.
func TestRunAllowsMore(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"a.allowed.test\"]\ndeny: [\"x.denied.test\"]\n")
	const script = `for u in a.allowed.test b.allowed.test evil.test x.denied.test; do curl -sS -m9 -o reply -w '%{http_code} ' http://$u/; done`
	alone := runAs(t, d, "user", script)
	more := runAs(t, d, "user", script, "--allow", "b.allowed.test,x.denied.test")
	if alone.out != "200 403 403 403 " || more.out != "200 200 403 403 " {
		t.Errorf("without %q, with %q: %s", alone.out, more.out, more.talk)
	}
	if !strings.Contains(more.talk, "warning: --allow x.denied.test") {
		t.Errorf("it did not say what stays denied: %q", more.talk)
	}
	by := func(r *ran, host string) (rule, digest string) {
		for _, one := range r.records {
			if one.Dst != nil && one.Dst.Host == host && one.Decision != nil && one.Decision.Policy != "" {
				return one.Decision.Rule, one.Decision.Policy
			}
		}
		return "", ""
	}
	rule, digest := by(more, "b.allowed.test")
	if _, before := by(alone, "a.allowed.test"); rule != "--allow b.allowed.test" || digest == before || before == "" {
		t.Errorf("rule %q, policies %s and %s", rule, digest, before)
	}
	npm := runAs(t, d, "user", `getent ahostsv4 registry.npmjs.org >&2; curl -sS -m9 -o reply http://registry.npmjs.org/; true`, "--preset", "npm")
	if npm.denied("registry.npmjs.org", policy.DefaultDeny) > 0 {
		t.Errorf("the preset is not there: %+v", npm.records)
	}
}

// TestRunWithoutAFile starts on a machine that has no policy, and allows for good what was denied.
func TestRunWithoutAFile(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\n")
	home := filepath.Join(d.Dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	egressd := func(words ...string) (out, said string, code int) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), world.Egressd.Path(), words...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = home, &stdout, &stderr
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "XDG_STATE_HOME=" + filepath.Join(home, "state"), "HTTP_PROXY=http://proxy.corp.test:3128", "https_proxy=127.0.0.1:1", "npm_config_proxy=x"}
		err := d.World.Gateway.Run(cmd)
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	if _, said, code := egressd("run", "--", "true"); code != 125 || !strings.Contains(said, "run --allow HOST") {
		t.Errorf("without a word of what to allow: %d %q", code, said)
	}
	out, said, code := egressd("run", "--allow", "a.allowed.test", "--", "sh", "-c", `env | grep -ci proxy; curl -s -m9 -o reply http://registry.npmjs.org/; curl -s -m9 -o reply -w '%{http_code}' http://evil.test/`)
	if code != 0 || out != "0\n403" || !strings.Contains(said, "registry.npmjs.org:80 (default-deny") || !strings.Contains(said, "HTTP_PROXY") || !strings.Contains(said, "connects directly") {
		t.Errorf("%d %q %q", code, out, said)
	}
	_, fix, found := strings.Cut(said, "to allow it: egressd ")
	fix, _, _ = strings.Cut(fix, "\n")
	if _, said, code := egressd(strings.Fields(fix)...); !found || code != 0 {
		t.Fatalf("%q: %d %q", fix, code, said)
	}
	if _, said, code := egressd("check", "evil.test:80"); code != 0 {
		t.Errorf("the fix allows nothing: %d %q", code, said)
	}
	if _, said, code := egressd("check", "gist.github.com"); code != 1 {
		t.Errorf("the fix allows more: %d %q", code, said)
	}
	if _, said, code := egressd("run", "--", "true"); code != 0 {
		t.Errorf("the file that was made does not serve: %d %q", code, said)
	}
}

// TestRunLeavesOtherProxiesAlone has a proxy at a port that the program is given, and settings of git that are none
// of a proxy's.
func TestRunLeavesOtherProxiesAlone(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\n")
	t.Setenv("GIT_CONFIG_COUNT", "2")
	t.Setenv("GIT_CONFIG_KEY_0", "http.proxy")
	t.Setenv("GIT_CONFIG_VALUE_0", "http://127.0.0.1:3128")
	t.Setenv("GIT_CONFIG_KEY_1", "user.name")
	t.Setenv("GIT_CONFIG_VALUE_1", "me")
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:8888")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
	r := runAs(t, d, "user", `echo "$HTTP_PROXY,$HTTPS_PROXY,$(git config http.proxy),$(git config user.name)"`, "--host-port", "8888")
	if r.out != "http://127.0.0.1:8888,,,me\n" {
		t.Errorf("%q %q", r.out, r.talk)
	}
}
