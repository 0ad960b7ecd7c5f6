package policy

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/rego/bundle"
	"github.com/google/go-containerregistry/pkg/registry"
)

// TestPolicyPush pushes to a registry that wants a login, which is docker's or in a file.
func TestPolicyPush(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	private, public, err := newKeys("ES256")
	if err != nil {
		t.Fatal(err)
	}
	sign := func(name string, when time.Time) {
		t.Helper()
		packed, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n")}}, bundle.BuildOptions{Revision: name})
		if err == nil {
			packed, err = bundle.Sign(packed, bundle.SignOptions{KeyPEM: private, Now: when})
		}
		if err != nil {
			t.Fatal(err)
		}
		write(name, packed)
	}
	now := time.Now()
	sign("one", now)
	sign("two", now.Add(time.Second))
	login := base64.StdEncoding.EncodeToString([]byte("ci:sesame"))
	inside := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Basic "+login {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inside.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := server.Listener.Addr().String()
	write("pub.pem", public)
	write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	write("config.json", []byte(`{"auths": {"`+host+`": {"auth": "`+login+`"}}}`))
	if err := os.Mkdir("broken", 0o700); err != nil {
		t.Fatal(err)
	}
	write("broken/config.json", []byte(`{"auths": 7}`))
	to := "oci://" + host + "/team/policy:stable"
	for _, row := range []struct {
		says     string
		docker   string // folder of docker's logins
		args     []string
		code     int
		replaced string
	}{
		{"no login", "none", []string{"one", to, "--key", "pub.pem", "--ca", "ca.pem"}, cli.ExitFailed, ""},
		{"docker's login", ".", []string{"one", to, "--key", "pub.pem", "--ca", "ca.pem"}, 0, ""},
		{"a newer one", ".", []string{"two", to, "--key", "pub.pem", "--ca", "ca.pem"}, 0, "one"},
		{"set back", ".", []string{"one", to, "--key", "pub.pem", "--ca", "ca.pem"}, cli.ExitFailed, ""},
		{"again", ".", []string{"two", to, "--key", "pub.pem", "--ca", "ca.pem"}, 0, "two"},
		{"another authority", ".", []string{"two", to, "--key", "pub.pem"}, cli.ExitFailed, ""},
		{"no key", ".", []string{"two", to, "--ca", "ca.pem"}, cli.ExitUsage, ""},
		{"no registry", ".", []string{"two", "https://" + host + "/team/policy:stable", "--key", "pub.pem"}, cli.ExitUsage, ""},
		{"no tag", ".", []string{"two", "--key", "pub.pem"}, cli.ExitUsage, ""},
		{"logins that are none", "broken", []string{"two", to, "--key", "pub.pem", "--ca", "ca.pem"}, cli.ExitUsage, ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", row.docker)
			var stdout, stderr strings.Builder
			code := clitest.Run(newPolicy(), append([]string{"policy", "push", "--json"}, row.args...), &stdout, &stderr)
			if code != row.code {
				t.Fatalf("exit code %d\n%s%s", code, &stdout, &stderr)
			}
			if strings.Contains(stderr.String(), "sesame") || code != 0 && !strings.Contains(stderr.String(), "egressd: hint: ") {
				t.Errorf("it said\n%s", &stderr)
			}
			if code != 0 {
				return
			}
			var got struct {
				Digest, Revision, Replaced string
				Signed                     bool
			}
			if err := json.Unmarshal([]byte(stdout.String()), &got); err != nil || got.Revision != row.args[0] || got.Replaced != row.replaced || !got.Signed || !strings.HasPrefix(got.Digest, "sha256:") {
				t.Errorf("%v, %s", err, &stdout)
			}
		})
	}
}
