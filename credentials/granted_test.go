package credentials

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/http1"
)

const clientSecret, accessToken = "s3cret-of-the-client", "access-REALsecretREALsecret"

// A tokenServer hands out tokens as RFC 6749 and GitHub say, to whoever has the real secrets.
type tokenServer struct {
	mu      sync.Mutex
	key     *rsa.PublicKey
	refresh string // that is good now
	given   int
	expires int    // seconds
	says    string // instead of a token
	status  int
	asked   []string // bodies
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if s.says != "" {
		w.Header().Set("Location", "https://evil.test/")
		w.WriteHeader(s.status)
		io.WriteString(w, s.says)
		return
	}
	if id, found := strings.CutPrefix(r.URL.Path, "/app/installations/"); found {
		s.installation(w, r, id)
		return
	}
	r.ParseForm()
	s.asked = append(s.asked, r.PostForm.Encode())
	id, secret, basic := r.BasicAuth()
	good := basic && id == "client" && secret == clientSecret
	switch grant := r.PostForm.Get("grant_type"); {
	case r.Method != "POST" || !good || grant == "refresh_token" && r.PostForm.Get("refresh_token") != s.refresh:
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":"invalid_client","error_description":"`+clientSecret+`"}`)
	default:
		s.given++
		answer := map[string]any{"access_token": fmt.Sprint(accessToken, s.given), "token_type": "Bearer"}
		if s.expires != 0 {
			answer["expires_in"] = s.expires
		}
		if grant == "refresh_token" {
			s.refresh = fmt.Sprint("refresh-", s.given)
			answer["refresh_token"] = s.refresh
		}
		json.NewEncoder(w).Encode(answer)
	}
}

func (s *tokenServer) installation(w http.ResponseWriter, r *http.Request, id string) {
	body, _ := io.ReadAll(r.Body)
	s.asked = append(s.asked, string(body))
	var claims jwt.RegisteredClaims
	_, err := jwt.ParseWithClaims(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), &claims, func(*jwt.Token) (any, error) { return s.key, nil }, jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(), jwt.WithIssuedAt())
	if err != nil || claims.Issuer != "123" || id != "7/access_tokens" || r.Method != "POST" || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > 10*time.Minute {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(map[string]any{"token": "ghs_" + accessToken, "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
}

// atServer returns a credential that is read from the server.
func atServer(t *testing.T, s *tokenServer, from func(url, dir string) Source) (*Credential, string) {
	t.Helper()
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	c := New(Spec{Name: "key", Places: []Place{{Host: "api.test", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"}}, From: from(server.URL, dir)}, nil, func(path string) string { return filepath.Join(dir, path) })
	c.Servers = tokens.New(rootsOf(server), atLoopback)
	for name, text := range map[string]string{"secret": clientSecret + "\n", "refresh": "refresh-0\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, dir
}

func rootsOf(server *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return pool
}

func atLoopback(context.Context, string, uint16) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// sends returns the Authorization that a request gets.
func sends(c *Credential) string {
	c.Spec.Name = "key"
	a := NewSet(Key{}, []*Credential{c}).Apply(&Request{Sandbox: "s", Rule: "r", Host: "api.test", Target: http1.Target{Path: "/"}})
	return a.Fields.Get("Authorization") + a.Refused
}

func TestATokenByClientCredentials(t *testing.T) {
	s := &tokenServer{expires: 3600}
	c, _ := atServer(t, s, func(url, _ string) Source {
		return Source{OAuth: &OAuth{TokenURL: url + "/token", ClientID: "client", ClientSecret: &Source{File: "secret"}, Scopes: []string{"a", "b"}}}
	})
	if err := c.Read(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := sends(c); got != "Bearer "+accessToken+"1" {
		t.Errorf("a request has %q", got)
	}
	if len(s.asked) != 1 || s.asked[0] != "grant_type=client_credentials&scope=a+b" {
		t.Errorf("asked with %q", s.asked)
	}
	if next := c.Next(); next < 54*time.Minute || next > 56*time.Minute {
		t.Errorf("the next token is fetched in %v", next)
	}
	s.expires = 0
	if err := c.Read(context.Background()); err != nil || c.Next() != grantedAgain || sends(c) != "Bearer "+accessToken+"2" {
		t.Errorf("%v, again in %v", err, c.Next())
	}
}

// TestARefreshTokenIsReplaced: the next one is in the file before the access token is used, also with two egressd at a time.
func TestARefreshTokenIsReplaced(t *testing.T) {
	s := &tokenServer{expires: 60, refresh: "refresh-0"}
	c, dir := atServer(t, s, func(url, _ string) Source {
		return Source{OAuth: &OAuth{TokenURL: url + "/token", ClientID: "client", ClientSecret: &Source{File: "secret"}, RefreshToken: "refresh"}}
	})
	other := New(c.Spec, nil, c.relative)
	other.Servers = c.Servers
	var both sync.WaitGroup
	for _, one := range []*Credential{c, other} {
		both.Go(func() {
			for range 5 {
				if err := one.Read(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "refresh"))
	info, _ := os.Stat(filepath.Join(dir, "refresh"))
	if err != nil || string(text) != "refresh-10\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %q, %v", text, err)
	}
	if got := sends(c); !strings.HasPrefix(got, "Bearer "+accessToken) {
		t.Errorf("a request has %q", got)
	}
}

// TestARefreshTokenIsNotSpent where the next one cannot be kept.
func TestARefreshTokenIsNotSpent(t *testing.T) {
	s := &tokenServer{expires: 60, refresh: "Linux"}
	c, _ := atServer(t, s, func(url, dir string) Source {
		return Source{OAuth: &OAuth{TokenURL: url + "/token", ClientID: "client", ClientSecret: &Source{File: filepath.Join(dir, "secret")}, RefreshToken: "/proc/sys/kernel/ostype"}}
	})
	c.relative = func(path string) string { return path } // there not even root makes files
	if err := c.Read(context.Background()); err == nil || s.given != 0 {
		t.Errorf("%v, %d tokens", err, s.given)
	}
}

func TestATokenOfAGitHubApp(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s := &tokenServer{key: &key.PublicKey}
	c, dir := atServer(t, s, func(url, _ string) Source {
		return Source{GitHubApp: &GitHubApp{API: url, ID: "123", Installation: "7", PrivateKey: &Source{File: "app.pem"}, Repositories: []string{"app"}, Permissions: map[string]string{"contents": "write"}}}
	})
	if err := os.WriteFile(filepath.Join(dir, "app.pem"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Read(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := sends(c); got != "Bearer ghs_"+accessToken {
		t.Errorf("a request has %q", got)
	}
	if len(s.asked) != 1 || s.asked[0] != `{"repositories":["app"],"permissions":{"contents":"write"}}` {
		t.Errorf("asked with %q", s.asked)
	}
	if next := c.Next(); next < 54*time.Minute || next > 56*time.Minute {
		t.Errorf("the next token is fetched in %v", next)
	}
}

// TestARefusedTokenSaysNoSecret: whatever goes wrong, no secret stands in the error, none is sent elsewhere, and requests are
// refused.
func TestARefusedTokenSaysNoSecret(t *testing.T) {
	for says, s := range map[string]*tokenServer{
		"a refusal":   {says: `{"error":"` + clientSecret + `","error_description":"` + clientSecret + `"}`, status: 400},
		"an error":    {says: clientSecret, status: 500},
		"a redirect":  {says: `{}`, status: 307},
		"no JSON":     {says: "access_token", status: 200},
		"no token":    {says: `{"token_type":"Bearer"}`, status: 200},
		"an old one":  {expires: -5},
		"JSON twice":  {says: `{"access_token":""}`, status: 200},
		"a long text": {says: `{"access_token":"` + strings.Repeat("x", 2<<20), status: 200},
	} {
		for _, kind := range []string{"oauth", "app"} {
			c, dir := atServer(t, s, func(url, _ string) Source {
				if kind == "app" {
					return Source{GitHubApp: &GitHubApp{API: url, ID: "123", Installation: "7", PrivateKey: &Source{File: "secret"}}}
				}
				return Source{OAuth: &OAuth{TokenURL: url + "/token", ClientID: "client", ClientSecret: &Source{File: "secret"}}}
			})
			err := c.Read(context.Background())
			if err == nil || strings.Contains(err.Error(), clientSecret) || strings.Contains(err.Error(), dir) {
				t.Errorf("%s of %s: %v", says, kind, err)
			}
			if c.Held() || strings.HasPrefix(sends(c), "Bearer") {
				t.Errorf("%s of %s: a request has %q", says, kind, sends(c))
			}
		}
	}
	c, _ := atServer(t, &tokenServer{}, func(url, _ string) Source {
		return Source{OAuth: &OAuth{TokenURL: strings.Replace(url, "https:", "http:", 1), ClientID: "client", ClientSecret: &Source{File: "secret"}}}
	})
	if err := c.Read(context.Background()); err == nil {
		t.Error("a secret goes over plain HTTP")
	}
	c, _ = atServer(t, &tokenServer{}, func(url, _ string) Source {
		return Source{OAuth: &OAuth{TokenURL: url, ClientID: "client", ClientSecret: &Source{File: "secret"}}}
	})
	c.Servers = tokens.New(x509.NewCertPool(), atLoopback)
	if err := c.Read(context.Background()); err == nil {
		t.Error("a secret goes to a server of an unknown authority")
	}
}
