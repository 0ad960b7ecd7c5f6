package policy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// narrowOrganisation leaves out of its ceiling much of what people allow, and denies and opens something itself.
const narrowOrganisation = `version: 1
allow: [wiki.corp.test]
deny: ["*.upload.test"]
ceiling: [docs.test, "*.api.test", registry.npmjs.org, github.com, {host: reads.test, methods: [GET]}]
tests: [allow wiki.corp.test, deny x.upload.test]
`

// tenUsers are files as people have them. Each is right by itself. cut are the lines or presets about which policy check
// and doctor warn under the narrow organisation.
var tenUsers = []struct {
	name, text string
	cut        []string
}{
	{"as init writes it", "", []string{"preset claude-code", "preset pypi", `the test "allow POST https://api.anthropic.com/v1/messages"`}},
	{"nothing cut", "version: 1\nallow: [docs.test, x.api.test]\ntests: [allow docs.test, deny other.test]\n", nil},
	{"one host cut", "version: 1\nallow: [docs.test, other.test]\ntests: [allow other.test]\n", []string{"allow[1]", `the test "allow other.test"`}},
	{"a wildcard that is too wide", "version: 1\nallow: ['*.test']\ntests: [allow a.api.test, allow b.test]\n", []string{"allow[0]", `the test "allow b.test"`}},
	{"more methods", "version: 1\nallow: [{host: reads.test, methods: [GET, POST], id: rw}]\ntests: ['allow POST https://reads.test/']\n", []string{"rw allows", `the test "allow POST https://reads.test/"`}},
	{"everything but", "version: 1\ndefault: allow\ndeny: [evil.test]\ntests: [allow other.test, deny evil.test]\n", []string{`the test "allow other.test"`}},
	{"what the organisation denies", "version: 1\nallow: [in.upload.test]\ntests: [allow in.upload.test]\n", []string{"allow[0]", `the test "allow in.upload.test"`}},
	{"what the organisation opens", "version: 1\nallow: [docs.test]\ntests: [deny wiki.corp.test]\n", []string{`the test "deny wiki.corp.test"`}},
	{"a private address", "version: 1\nallow: ['10.0.0.5:8443']\ntests: ['allow 10.0.0.5:8443']\n", []string{"allow[0]", `the test "allow 10.0.0.5:8443"`}},
	{"Rego and presets", "version: 1\npresets: [npm]\nrego: [policy.rego]\ntests: ['allow https://registry.npmjs.org/', deny other.test]\n", []string{"preset npm"}},
}

// TestEveryCommandWorksUnderAnOrganisationsCeiling: what a user's file allows and the organisation does not is a warning, and
// no command fails for it.
func TestEveryCommandWorksUnderAnOrganisationsCeiling(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	if err := os.WriteFile(filepath.Join(above, "organisation.yaml"), []byte(narrowOrganisation), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, user := range tenUsers {
		t.Run(user.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			policy := filepath.Join(home, "config", "egressd", "egressd.yaml")
			// egressd runs a command with these arguments, and returns its exit code and all that it wrote.
			egressd := func(args ...string) (int, string) {
				c := underEtc(above, append([]string{world.Egressd.Path()}, args...)...)
				c.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home+"/config", "XDG_STATE_HOME="+home+"/state", "XDG_RUNTIME_DIR=", "HOME="+home, "NO_COLOR=1")
				c.Dir = home
				out, err := c.CombinedOutput()
				if _, exited := err.(*exec.ExitError); err != nil && !exited {
					t.Fatal(err)
				}
				return c.ProcessState.ExitCode(), string(out)
			}
			if user.text == "" {
				if code, out := egressd("init"); code != 0 || !strings.Contains(out, "warning: "+policy+":") {
					t.Errorf("init: %d: %s", code, out)
				}
			} else {
				putFile(t, policy, user.text)
				putFile(t, filepath.Join(filepath.Dir(policy), "policy.rego"), "package egress\n\ndeny contains {\"rule\": \"no-ssh\"} if input.destination.port == 22\n")
			}
			for _, row := range []struct {
				code int
				args []string
			}{
				{0, []string{"policy", "check"}},
				{0, []string{"policy", "test"}},
				{0, []string{"policy", "ls"}},
				{1, []string{"check", "nowhere.example:8443"}},
				{0, []string{"check", "wiki.corp.test"}},
				{1, []string{"check", "-v", "nowhere.example:8443"}},
				{0, []string{"allow", "new.api.test", "--save"}},
				{0, []string{"policy", "test"}},
				{0, []string{"run", "--", "true"}},
			} {
				if code, out := egressd(row.args...); code != row.code {
					t.Errorf("%q: exit code %d: %s", row.args, code, out)
				}
			}
			_, checked := egressd("policy", "check")
			_, doctor := egressd("doctor")
			for _, cut := range user.cut {
				for name, out := range map[string]string{"policy check": checked, "doctor": doctor} {
					if !strings.Contains(out, cut) {
						t.Errorf("%s does not warn of %s: %s", name, cut, out)
					}
				}
			}
			if n := strings.Count(checked, "organisation.yaml keeps ") + strings.Count(checked, "organisation.yaml lets ") + strings.Count(checked, "with /etc/egressd/organisation.yaml: "); user.text != "" && n != len(user.cut) {
				t.Errorf("%d warnings instead of %d: %s", n, len(user.cut), checked)
			}
			if !strings.Contains(doctor, "✓ rules: ") || strings.Contains(doctor, "✗ rules: ") || strings.Contains(doctor, "✗ policy: ") {
				t.Errorf("doctor: %s", doctor)
			}
			putFile(t, policy, "version: 1\nallow: [docs.test]\ntests: [deny docs.test]\n")
			code, _ := egressd("check", "docs.test")
			_, doctor = egressd("doctor")
			if code != 2 || !strings.Contains(doctor, "✗ rules: ") {
				t.Errorf("of a red test, check says %d and doctor %s", code, doctor)
			}
		})
	}
}

func putFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(fmt.Errorf("write %s: %w", path, err))
	}
}
