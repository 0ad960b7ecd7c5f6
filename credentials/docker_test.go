package credentials

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/http1"
)

func TestScopesAreThoseOfThePath(t *testing.T) {
	for ask, want := range map[string]string{
		"GET /v2/":                                        "",
		"GET /v2/acme/app/manifests/latest":               "repository:acme/app:pull",
		"HEAD /v2/acme/app/manifests/sha256:00ff":         "repository:acme/app:pull",
		"PUT /v2/acme/app/manifests/v1.0_x":               "repository:acme/app:pull,push",
		"DELETE /v2/acme/app/manifests/sha256:00":         "repository:acme/app:delete",
		"GET /v2/library/node/blobs/sha256:00":            "repository:library/node:pull",
		"POST /v2/acme/app/blobs/uploads/":                "repository:acme/app:pull,push",
		"PATCH /v2/acme/app/blobs/uploads/0a-b_c=":        "repository:acme/app:pull,push",
		"GET /v2/acme/app/blobs/uploads/0a":               "repository:acme/app:pull,push",
		"DELETE /v2/acme/app/blobs/uploads/0a":            "repository:acme/app:pull,push",
		"GET /v2/a/tags/list":                             "repository:a:pull",
		"GET /v2/a/b/c/referrers/sha256:00":               "repository:a/b/c:pull",
		"GET /v2/a/manifests/b/manifests/latest":          "repository:a/manifests/b:pull", // as the registry's router reads it
		"GET /v2/a/../b/manifests/latest":                 "none",                          // case 23
		"GET /v2/a/%2e%2e/b/manifests/latest":             "none",
		"GET /v2/a%2Fb/manifests/latest":                  "none",
		"GET /v2/A/manifests/latest":                      "none",
		"GET /v2//a/manifests/latest":                     "none",
		"GET /v2/a/manifests/latest/":                     "none",
		"GET /v2/a/manifests/b:pull repository:evil:push": "none",
		"GET /v2/_catalog":                                "none",
		"GET /v1/search":                                  "none",
		"GET /token":                                      "none",
	} {
		method, path, _ := strings.Cut(ask, " ")
		scope, ok := scopeOf(method, path)
		if !ok {
			scope = "none"
		}
		if scope != want {
			t.Errorf("%s: %q, want %q", ask, scope, want)
		}
	}
}

// dockerCredential has the secret of a registry, and a token service if a service is named. asked are the questions to it.
func dockerCredential(t *testing.T, service string) (c *Credential, asked *[]string) {
	t.Helper()
	c = credentialOf(t, Docker, "REALpasswordREAL")
	c.Docker, asked = &DockerSpec{User: "acme"}, new([]string)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		*asked = append(*asked, user+":"+password+" "+r.FormValue("service")+" "+r.FormValue("scope"))
		if strings.Contains(r.FormValue("scope"), "broken") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"token": "REALtoken-for-" + r.FormValue("scope")})
	}))
	t.Cleanup(server.Close)
	if service != "" {
		c.Docker.Service = TokenService{server.URL + "/token", service}
	}
	c.Servers = tokens.New(rootsOf(server), atLoopback)
	return c, asked
}

// TestRegistriesGetTokens asks the token service once for each scope, and never for what the client says.
func TestRegistriesGetTokens(t *testing.T) {
	c, asked := dockerCredential(t, "registry.test")
	set := NewSet(Key{1}, []*Credential{c})
	ask := func(method, target string, fields ...string) (Answer, error) {
		r := &Request{Sandbox: "ci", Rule: "hub", Host: "registry-1.docker.io", Method: method, Fields: fieldsOf(fields)}
		r.Target.Path, r.Target.Query, r.Target.HasQuery = strings.Cut(target, "?")
		a := set.Apply(r)
		if a.Fetch == nil {
			return a, nil
		}
		if err := a.Fetch(t.Context(), "ci"); err != nil {
			return a, err
		}
		return set.Apply(r), nil
	}
	for range 2 {
		a, err := ask("GET", "/v2/acme/app/manifests/latest")
		if err != nil || a.Refused != "" || a.Kind != Docker || a.Fields.Get("Authorization") != "Bearer REALtoken-for-repository:acme/app:pull" || a.Added == nil {
			t.Fatalf("%+v %v", a, err)
		}
	}
	if len(*asked) != 1 || (*asked)[0] != "acme:REALpasswordREAL registry.test repository:acme/app:pull" {
		t.Errorf("asked %v", *asked)
	}
	if a, _ := ask("POST", "/v2/acme/app/blobs/uploads/?mount=sha256:00&from=acme/other"); a.Fields.Get("Authorization") != "Bearer REALtoken-for-repository:acme/app:pull,push" {
		t.Errorf("a mount: %+v", a)
	}
	for _, fields := range [][]string{{"Authorization: Bearer foreign"}, {"Authorization: " + basicOf("me:foreign")}, {"Authorization: Bearer a", "Authorization: Bearer b"}, {"Cookie: a=b"}} {
		if a, _ := ask("GET", "/v2/acme/app/manifests/latest", fields...); a.Refused == "" || a.Kind != "" {
			t.Errorf("%v: %+v", fields, a)
		}
	}
	if a, _ := ask("GET", "/v2/a/../b/manifests/latest"); a.Refused == "" {
		t.Errorf("case 23: %+v", a)
	}
	if a, err := ask("GET", "/v2/broken/manifests/latest"); err == nil || strings.Contains(err.Error(), "REAL") || a.Fields.Has("Authorization") {
		t.Errorf("%+v %v", a, err)
	}
	if a := set.Apply(&Request{Sandbox: "ci", Host: "registry-1.docker.io", Method: "GET", Target: http1.Target{Path: "/v2/"}}); a.Fetch != nil || a.Kind != "" || len(a.Fields) > 0 {
		t.Errorf("without a rule: %+v", a)
	}
	c.tokens.keep("repository:acme/app:pull", keptToken{nil, time.Now().Add(time.Second)})
	if a, _ := ask("GET", "/v2/acme/app/manifests/latest"); a.Added == nil || len(*asked) != 4 {
		t.Errorf("one that ends: %+v, asked %v", a, *asked)
	}
}

// TestARegistryWithoutATokenServiceGetsBasic has one that is no kind's host.
func TestARegistryWithoutATokenServiceGetsBasic(t *testing.T) {
	c, asked := dockerCredential(t, "")
	a := NewSet(Key{1}, []*Credential{c}).Apply(&Request{Sandbox: "ci", Rule: "hub", Host: "registry-1.docker.io", Method: "GET", Target: http1.Target{Path: "/v2/"}})
	if a.Refused != "" || a.Fetch != nil || a.Fields.Get("Authorization") != basicOf("acme:REALpasswordREAL") || len(*asked) > 0 {
		t.Errorf("%+v", a)
	}
}
