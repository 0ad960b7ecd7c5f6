package inspect

import (
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const realToken = "npm_REALsecretREALsecretREALsecret"

const credentialsPolicy = `version: 1
allow:
  - repo.allowed.test
  - npm.allowed.test
  - pypi.allowed.test
  - api.allowed.test
  - other.allowed.test
credentials:
  - {for: {host: repo.allowed.test, header: Authorization, form: basic}, env: [REPO_TOKEN], from: {file: real.token}}
  - {for: npm, hosts: [npm.allowed.test], from: {file: real.token}}
  - {for: pypi, hosts: [pypi.allowed.test], from: {file: real.token}}
  - {for: {host: api.allowed.test, header: X-Api-Key}, name: api, env: [API_KEY], from: {file: real.token}, foreign: {allow: ["/own/**"]}}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// checking has a site answer those alone that send the real secret, and counts them.
func checking(site http.Handler, served *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if scheme == "Basic" {
			plain, _ := base64.StdEncoding.DecodeString(rest)
			_, rest, _ = strings.Cut(string(plain), ":")
		}
		if rest != realToken && r.Header.Get("X-Api-Key") != realToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
			http.Error(w, "not the real secret", http.StatusUnauthorized)
			return
		}
		served.Add(1)
		site.ServeHTTP(w, r)
	})
}

// TestRealToolsWorkWithPlaceholders runs git, npm, pip and curl against servers that answer the real secret alone. Nothing that
// the sandbox has or gets holds it.
func TestRealToolsWorkWithPlaceholders(t *testing.T) {
	d := world.NewDaemon(t, credentialsPolicy)
	d.PutFile(t, "real.token", realToken+"\n")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	dir := t.TempDir()
	d.World.Origin.Publish(t, dir)
	publishRepository(t, d.World.Origin, filepath.Join(dir, "served"))
	t.Cleanup(func() { // which other tests find as they were
		for _, host := range []string{"repo.allowed.test", "npm.allowed.test", "pypi.allowed.test", "api.allowed.test", "other.allowed.test"} {
			d.World.Origin.Sites.Delete(host)
		}
	})
	var served atomic.Int32
	for _, host := range []string{"repo.allowed.test", "npm.allowed.test", "pypi.allowed.test"} {
		site, _ := d.World.Origin.Sites.Load(host)
		d.World.Origin.Sites.Store(host, checking(site.(http.Handler), &served))
	}
	d.World.Origin.Sites.Store("api.allowed.test", checking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://other.allowed.test/away", http.StatusTemporaryRedirect)
			return
		}
		io.WriteString(w, "you sent "+r.Header.Get("X-Api-Key"))
	}), &served))
	var seen atomic.Value
	d.World.Origin.Sites.Store("other.allowed.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("X-Api-Key"); strings.Contains(got, realToken) {
			t.Errorf("another host was sent the secret: %q", got)
		}
		seen.Store(r.Header.Get("X-Api-Key"))
		io.WriteString(w, "elsewhere")
	}))

	exported, err := exec.Command(world.Egressd.Path(), "env", "--config", d.Config).CombinedOutput()
	if err != nil || strings.Contains(string(exported), realToken) || !strings.Contains(string(exported), "NPM_TOKEN='npm_EGRESSD") {
		t.Fatalf("%v: %s", err, exported)
	}
	var placeholders []string
	for line := range strings.Lines(string(exported)) {
		if strings.Contains(line, "EGRESSD") {
			placeholders = append(placeholders, line)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "vars"), []byte(strings.Join(placeholders, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "npmrc"), []byte("//npm.allowed.test/registry/:_authToken=${NPM_TOKEN}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := d.AuthorityFile()
	for _, row := range []struct {
		says, command, wants string
		works                bool
	}{
		{"git without a token", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://repo.allowed.test/repo.git one && cat one/file", "from the lab", true},
		{"git with the placeholder", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://me:$REPO_TOKEN@repo.allowed.test/repo.git two && cat two/file", "from the lab", true},
		{"git pushes", "cd one && echo more >file && git -c user.name=lab -c user.email=lab@allowed.test commit -qam second && GIT_SSL_CAINFO=$LAB_CA git push -q origin HEAD && echo pushed", "pushed", true},
		{"git with a token of its own", "GIT_SSL_CAINFO=$LAB_CA git -c http.extraHeader='Authorization: Basic bWU6Zm9yZWlnbg==' clone -q https://repo.allowed.test/repo.git three", "credential-refused", false},
		{"npm", "npm_config_userconfig=npmrc npm view demonstration version --registry https://npm.allowed.test/registry/", "3.2.1", true},
		{"npm with a token of its own", "NPM_TOKEN=foreign npm_config_userconfig=npmrc npm view demonstration version --registry https://npm.allowed.test/registry/", "403", false},
		{"npm token", "curl -sS --cacert $LAB_CA -X POST https://npm.allowed.test/-/npm/v1/tokens", `"rule":"credential:npm"`, true},
		{"pip", "pip download -q --no-deps -d wheels --cert $LAB_CA --index-url https://__token__:$TWINE_PASSWORD@pypi.allowed.test/simple demonstration && ls wheels", "demonstration-3.2.1", true},
		{"pip without a token", "pip download -q --no-deps -d more --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls more", "demonstration-3.2.1", true},
		{"curl over HTTP/2, echoed and struck", "curl -sS --http2 --cacert $LAB_CA -H \"X-Api-Key: $API_KEY\" https://api.allowed.test/x", "you sent *****", true},
		{"curl over HTTP/1.1", "curl -sS --http1.1 --cacert $LAB_CA https://api.allowed.test/x", "you sent *****", true},
		{"two credentials over HTTP/2", "curl -sS --http2 --cacert $LAB_CA -H \"X-Api-Key: $API_KEY\" -H 'Authorization: Bearer foreign' https://api.allowed.test/x", `"class":"credential-refused"`, true},
		{"two credentials over HTTP/1.1", "curl -sS --http1.1 --cacert $LAB_CA -H \"X-Api-Key: $API_KEY\" -H 'Cookie: a=b' https://api.allowed.test/x", `"class":"credential-refused"`, true},
		{"a foreign key in the query", "curl -sS --cacert $LAB_CA 'https://api.allowed.test/x?%6bey=foreign'", `"class":"credential-refused"`, true},
		{"a foreign key where one may pass", "curl -sS --cacert $LAB_CA -H 'X-Api-Key: foreign' https://api.allowed.test/own/x", "not the real secret", true},
		{"a redirect to another host", "curl -sSL --cacert $LAB_CA -H \"X-Api-Key: $API_KEY\" https://api.allowed.test/away", "elsewhere", true},
		{"over plain HTTP", "curl -sS http://api.allowed.test/x", `"class":"credential-refused"`, true},
		{"the placeholder elsewhere", "curl -sS -H \"X-Api-Key: $API_KEY\" http://other.allowed.test/x", "", true},
	} {
		t.Run(row.says, func(t *testing.T) {
			out, err := d.Shell(dir, ca, ". "+filepath.Join(dir, "vars")+"; { "+row.command+"; }")
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("%v, printed %q, want %q", err, out, row.wants)
			}
			if strings.Contains(out, realToken) {
				t.Errorf("the sandbox was shown the secret: %q", out)
			}
		})
	}
	if served.Load() < 8 {
		t.Errorf("%d requests had the real secret", served.Load())
	}
	if got, _ := seen.Load().(string); !strings.Contains(got, "EGRESSD") {
		t.Errorf("another host was sent %q", got)
	}
	kinds := func(r record.Record) bool { return r.Kind == record.KindClose && r.Credential == "npm" }
	noted := func(r record.Record) bool {
		return r.Kind == record.KindClose && strings.Contains(r.Note, "placeholder") && r.Dst != nil && r.Dst.Host == "other.allowed.test"
	}
	refused := func(r record.Record) bool { return r.Outcome == record.Outcome(policy.CredentialRefused) }
	if !world.Eventually(world.Settling, func() bool {
		records, _ := d.Log.Since(0)
		return slices.ContainsFunc(records, kinds) && slices.ContainsFunc(records, noted) && slices.ContainsFunc(records, refused)
	}) {
		t.Error("the log does not say which credential went, which was refused, and which placeholder strayed")
	}
	if d.Log.Holds(realToken) || strings.Contains(d.Output.String(), realToken) {
		t.Error("the log or what egressd says holds the secret")
	}
}
