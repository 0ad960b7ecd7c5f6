package containers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	realRegistryPassword = "dckr_pat_REALsecretREALsecretREAL"
	registryPolicy       = `version: 1
allow:
  - {host: registry.allowed.test, paths: ["/v2/", "/v2/acme/app/**", "/v2/acme/broken/**"]}
  - auth.allowed.test
credentials:
  - {for: docker, hosts: [registry.allowed.test], user: acme, realm: "https://auth.allowed.test/token", service: lab, from: {file: real.password}}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`
)

// A tokenService hands out tokens that the registry takes, to whoever has the real password.
type tokenService struct {
	key  *ecdsa.PrivateKey
	cert []byte

	mu     sync.Mutex
	scopes []string
	wrong  int // questions without the password
}

func newTokenService(t *testing.T) *tokenService {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab tokens"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tokenService{key: key, cert: cert}
}

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if user, password, _ := r.BasicAuth(); user != "acme" || password != realRegistryPassword {
		s.wrong++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	scope := r.URL.Query().Get("scope")
	s.scopes = append(s.scopes, scope)
	access := []map[string]any{}
	if parts := strings.Split(scope, ":"); len(parts) == 3 {
		access = append(access, map[string]any{"type": parts[0], "name": parts[1], "actions": strings.Split(parts[2], ",")})
	}
	now := time.Now()
	part := func(v any) string {
		text, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.cert)}}) + "." +
		part(map[string]any{"iss": "lab", "sub": "acme", "aud": r.URL.Query().Get("service"), "nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "jti": "1", "access": access})
	sum := sha256.Sum256([]byte(text))
	a, b, _ := ecdsa.Sign(rand.Reader, s.key, sum[:])
	signature := make([]byte, 64)
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	json.NewEncoder(w).Encode(map[string]any{"token": text + "." + base64.RawURLEncoding.EncodeToString(signature), "expires_in": 300})
}

// startRegistry starts docker-registry, which sends clients to another realm than that of the policy, and returns what leads there.
func startRegistry(t *testing.T, s *tokenService) http.Handler {
	t.Helper()
	dir := t.TempDir()
	at, bundle := filepath.Join(dir, "registry.sock"), filepath.Join(dir, "bundle.pem")
	config := fmt.Sprintf(`version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: %s/data}, delete: {enabled: true}}
http: {net: unix, addr: "%s", relativeurls: true, secret: lab}
auth: {token: {realm: "https://evil.allowed.test/token", service: lab, issuer: lab, rootcertbundle: %s}}
`, dir, at, bundle)
	for path, text := range map[string]string{bundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert})), filepath.Join(dir, "config.yml"): config} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("docker-registry: %v (scripts/setup.sh installs it)", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", at) }
	if !world.Eventually(world.Settling, func() bool {
		c, err := dial(t.Context(), "", "")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("the registry does not listen")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "registry"})
	proxy.Transport = &http.Transport{DialContext: dial}
	return proxy
}

// TestDockerPushesAndPullsWithoutASecret has Docker's engine behind egressd log in with nothing, push and pull. The registry takes tokens of the
// token service alone, and names another realm, which nobody asks.
func TestDockerPushesAndPullsWithoutASecret(t *testing.T) {
	d := world.NewDaemon(t, registryPolicy)
	d.PutFile(t, "real.password", realRegistryPassword+"\n")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	tokens := newTokenService(t)
	var evil sync.Map
	for host, site := range map[string]http.Handler{
		"registry.allowed.test": startRegistry(t, tokens), "auth.allowed.test": tokens,
		"evil.allowed.test": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { evil.Store(r.URL.String(), true) }),
	} {
		d.World.Origin.Sites.Store(host, site)
		t.Cleanup(func() { d.World.Origin.Sites.Delete(host) })
	}
	e, err := engine.Start(func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Env, "HTTPS_PROXY=http://"+d.Address(), "SSL_CERT_FILE="+d.AuthorityFile())
		return d.World.Sandbox.Start(cmd)
	}, world.Probe.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return e.Docker(ctx, args...)
	}
	const image = "registry.allowed.test/acme/app:1"
	for _, row := range []struct {
		args  []string
		works bool
	}{
		{[]string{"login", "-u", "anybody", "-p", "anything", "registry.allowed.test"}, true},
		{[]string{"tag", engine.Shell, image}, true},
		{[]string{"push", image}, true},
		{[]string{"rmi", image}, true},
		{[]string{"pull", image}, true},
		{[]string{"tag", engine.Shell, "registry.allowed.test/acme/other:1"}, true},
		{[]string{"push", "registry.allowed.test/acme/other:1"}, false},
		{[]string{"pull", "registry.allowed.test/acme/other:1"}, false},
	} {
		out, err := run(row.args...)
		if (err == nil) != row.works || strings.Contains(out+fmt.Sprint(err), "REAL") {
			t.Errorf("docker %s: %v: %s\n%s", strings.Join(row.args, " "), err, out, e.Log())
		}
	}
	out, err := d.Shell(t.TempDir(), d.AuthorityFile(), "curl -sS --cacert $LAB_CA 'https://auth.allowed.test/token?service=lab&scope=repository:acme/app:push'; curl -sS --cacert $LAB_CA -H 'Authorization: Bearer foreign' https://registry.allowed.test/v2/acme/app/tags/list")
	if err != nil || !strings.Contains(out, `"rule":"credential:docker"`) || !strings.Contains(out, `"class":"credential-refused"`) {
		t.Errorf("%v: %s", err, out)
	}
	evil.Range(func(key, _ any) bool { t.Errorf("the registry's realm was asked: %v", key); return true }) // case 22
	tokens.mu.Lock()
	if slices.ContainsFunc(tokens.scopes, func(scope string) bool { return scope != "" && !strings.HasPrefix(scope, "repository:acme/app:") }) || len(tokens.scopes) > 5 || tokens.wrong > 0 {
		t.Errorf("the token service was asked for %q, and %d times without the password", tokens.scopes, tokens.wrong)
	}
	tokens.mu.Unlock()
	records, _ := d.Log.Since(0)
	if !slices.ContainsFunc(records, func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Credential == "docker" && r.Note != ""
	}) ||
		!slices.ContainsFunc(records, func(r record.Record) bool { return r.Outcome == record.Outcome(policy.CredentialRefused) }) {
		t.Error("the log does not say that a token was asked for, and what was refused")
	}
	if d.Log.Holds("REAL") || strings.Contains(d.Output.String(), "REAL") || strings.Contains(e.Log(), "REAL") {
		t.Error("the log, what egressd says or the engine holds the password")
	}
}
