package run

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/sandbox/jail"
)

// TestWhatIsTrustedIsKeptFromAProgramThatSharesTheUser: it could trust itself.
func TestWhatIsTrustedIsKeptFromAProgramThatSharesTheUser(t *testing.T) {
	state, home := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("HOME", home)
	c, _, err := configtest.Layered(t, map[string]string{
		"egressd.yaml":            "version: 1\nsandboxes: [{name: web, token_file: t, rego: [web.rego]}]\n",
		"t":                       "a-token-of-the-sandbox",
		"web.rego":                "package egress.web\ndeny contains {\"rule\": \"d\"} if input.destination.port == 22\n",
		"above/organisation.yaml": "version: 1\nrego: [org.rego]\n",
		"above/org.rego":          "package egress\ndeny contains {\"rule\": \"d\"} if input.destination.port == 22\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	r := runner{Daemon: &daemon.Daemon{Path: c.Path, Config: c}, jail: new(jail.Jail)}
	r.hideFiles(c, filepath.Join(state, "runs"))
	for _, made := range []string{filepath.Join(state, "egressd", "trust"), filepath.Join(state, "egressd"), filepath.Join(home, ".local/state/egressd")} {
		if info, err := os.Stat(made); err != nil || !info.IsDir() || !slices.Contains(r.hidden, made) {
			t.Errorf("%v; hidden are %q", err, r.hidden)
		}
	}
	folder := filepath.Dir(c.Path)
	for _, path := range []string{"egressd.yaml", "web.rego", "above/organisation.yaml", "above/org.rego"} {
		if !slices.Contains(new(runner).fixed(c), filepath.Join(folder, path)) {
			t.Errorf("%s can be changed; fixed are %q", path, new(runner).fixed(c))
		}
	}
}

// TestBundlesAreKeptFromAProgramThatSharesTheUser: it could write one that is a file, or
// turn one that was fetched back to an older one.
func TestBundlesAreKeptFromAProgramThatSharesTheUser(t *testing.T) {
	state, folder := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("HOME", t.TempDir())
	path := filepath.Join(folder, "egressd.yaml")
	text := `version: 1
rego:
  - {bundle: own.tar.gz}
  - {bundle: "https://policy.example/egress.tar.gz", key: key.pem, token_file: fetch.token}
`
	c, err := config.New(path, []byte(text), filepath.Join(folder, "absent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := runner{Daemon: &daemon.Daemon{Path: path, Config: c}, jail: new(jail.Jail)}
	r.hideFiles(c, filepath.Join(state, "runs"))
	kept := filepath.Join(state, "egressd", "bundles")
	if info, err := os.Stat(kept); err != nil || !info.IsDir() {
		t.Errorf("there is no folder that the program could not make: %v", err)
	}
	for _, path := range []string{kept, filepath.Join(folder, "fetch.token")} {
		if !slices.Contains(r.hidden, path) {
			t.Errorf("%s can be seen; hidden are %q", path, r.hidden)
		}
	}
	want := []string{folder, path, filepath.Join(folder, "own.tar.gz"), filepath.Join(folder, "key.pem")}
	if fixed := new(runner).fixed(c); !slices.Equal(fixed, want) {
		t.Errorf("fixed are %q, not %q", fixed, want)
	}
}

// TestTokensOfTheOperatorAreKeptFromAProgramThatSharesTheUser: also one of a daemon that
// starts during the run, of whatever policy, or makes it anew.
func TestTokensOfTheOperatorAreKeptFromAProgramThatSharesTheUser(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "egressd.yaml")
	for _, text := range []string{"version: 1\n", "version: 1\nlisten: {admin: \"127.0.0.1:9464\"}\n"} {
		c, err := config.New(path, []byte(text), filepath.Join(filepath.Dir(path), "absent.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		r := runner{Daemon: &daemon.Daemon{Path: path, Config: c}, jail: new(jail.Jail)}
		if err := r.hideFiles(c, filepath.Join(state, "runs")); err != nil {
			t.Fatal(err)
		}
		c.File.Listen.Admin = "127.0.0.1:9464"
		token, err := c.AdminToken()
		if err != nil || !slices.Contains(r.hidden, filepath.Dir(token)) {
			t.Errorf("%q: %s can be seen (%v); hidden are %q", text, token, err, r.hidden)
		}
		if info, err := os.Stat(filepath.Dir(token)); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%q: its folder is not there to be hidden: %v, %v", text, info, err)
		}
	}
}

// TestSecretsOfTokenServersAreKeptFromAProgram: also a refresh token that egressd replaces while the program runs, whose folder is
// hidden, since a new file under its name would be seen.
func TestSecretsOfTokenServersAreKeptFromAProgram(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	c, _, err := configtest.Layered(t, map[string]string{
		"egressd.yaml": `version: 1
allow: [a.test, api.github.com]
credentials:
  - {for: {host: a.test, header: X-Key}, from: {oauth: {token_url: "https://id.test/token", client_id: x, client_secret: {env: CLIENT_SECRET}, refresh_token: {file: own/refresh}}}}
  - {for: github, from: {github_app: {id: 1, installation: 2, private_key: {file: app.pem}}}}
`,
		"own/refresh": "token\n", "app.pem": "key\n", "above/organisation.yaml": "version: 1\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	r := runner{Daemon: &daemon.Daemon{Path: c.Path, Config: c}, jail: new(jail.Jail)}
	if err := r.hideFiles(c, filepath.Join(t.TempDir(), "runs")); err != nil {
		t.Fatal(err)
	}
	if err := r.hideNamedFiles(c); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(c.Path)
	for _, path := range []string{filepath.Join(folder, "own"), filepath.Join(folder, "app.pem")} {
		if !slices.Contains(r.hidden, path) {
			t.Errorf("%s can be seen; hidden are %q", path, r.hidden)
		}
	}
	if !slices.Contains(r.cut, "CLIENT_SECRET") {
		t.Errorf("the variable can be seen; cut are %q", r.cut)
	}
}
