package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A shelf is what a registry has: manifests under tags, and blobs. Who asks has to
// hold its grant, where it has one.
type shelf struct {
	manifests map[string][]byte
	blobs     map[string][]byte
	grant     string
	challenge string
}

func (sh *shelf) put(t *testing.T, tag string, tarball []byte, change func(*imageManifest)) string {
	t.Helper()
	sum := sha256.Sum256(tarball)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	m := imageManifest{MediaType: manifestType, Layers: []descriptor{
		{"application/vnd.oci.image.layer.v1.tar", "sha256:00", 1},
		{layerType, digest, int64(len(tarball))},
	}}
	if change != nil {
		change(&m)
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	sum = sha256.Sum256(text)
	of := "sha256:" + hex.EncodeToString(sum[:])
	sh.manifests[tag], sh.manifests[of], sh.blobs[digest] = text, text, tarball
	return of
}

func (sh *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/team/policy/"), "/"); {
	case r.URL.Path == "/token":
		sh.token(w, r)
	case sh.grant != "" && r.Header.Get("Authorization") != "Bearer "+sh.grant:
		w.Header().Set("WWW-Authenticate", sh.challenge)
		w.WriteHeader(http.StatusUnauthorized)
	case kind == "manifests" && sh.manifests[name] != nil && r.Header.Get("Accept") == manifestType:
		w.Write(sh.manifests[name])
	case kind == "blobs" && sh.blobs[name] != nil:
		w.Write(sh.blobs[name])
	default:
		http.NotFound(w, r)
	}
}

func (sh *shelf) token(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if r.Header.Get("Authorization") != "Bearer sesame" || q.Get("service") != "here" || q.Get("scope") != "repository:team/policy:pull" || len(q) != 2 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	fmt.Fprintf(w, `{"access_token": %q}`, sh.grant)
}

func registryOf(t *testing.T, key signer) (*shelf, *server, Source) {
	sh := &shelf{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	s := serve(t, httptest.NewTLSServer, sh.ServeHTTP)
	from := s.source(key)
	from.URL = "oci://" + s.Listener.Addr().String() + "/team/policy:v1"
	return sh, s, from
}

func TestABundleComesFromARegistry(t *testing.T) {
	key := newSigner(t)
	sh, s, from := registryOf(t, key)
	sh.put(t, "v1", key.sign(t, "one", time.Now(), 0), nil)
	f := open(t, t.TempDir(), from)
	if a := take(t, f); !a.Newer || a.Bundle.Revision != "one" {
		t.Errorf("%+v", a)
	}
	if a := take(t, f); a.Newer || len(s.requests()) != 3 {
		t.Errorf("%+v after %d requests; the second time, the manifest is enough", a, len(s.requests()))
	}
	digest := sh.put(t, "v1", key.sign(t, "two", time.Now(), 0), nil)
	if a := take(t, f); !a.Newer || f.State().ETag != digest {
		t.Errorf("%+v, %+v", a, f.State())
	}
	from.URL = strings.Replace(from.URL, ":v1", "@"+digest, 1)
	if a := take(t, open(t, t.TempDir(), from)); a.Bundle.Revision != "two" {
		t.Errorf("by its digest: %+v", a)
	}
}

func TestWhatARegistryMayNotSay(t *testing.T) {
	key := newSigner(t)
	sh, _, from := registryOf(t, key)
	good := key.sign(t, "one", time.Now(), 0)
	f := open(t, t.TempDir(), from)
	for because, change := range map[string]func(*imageManifest){
		"manifest: its media type":              func(m *imageManifest) { m.MediaType = "application/vnd.oci.image.index.v1+json" },
		"manifest: it has no layer":             func(m *imageManifest) { m.Layers = m.Layers[:1] },
		"manifest: it has several layers":       func(m *imageManifest) { m.Layers = append(m.Layers, m.Layers[1]) },
		"manifest: its layer has no digest":     func(m *imageManifest) { m.Layers[1].Digest = "sha256:../../x" },
		"has no digest sha256:…, or is too l":   func(m *imageManifest) { m.Layers[1].Size = maxBundleBytes + 1 },
		"layer: it does not have the size and ": func(m *imageManifest) { m.Layers[1].Size-- },
		"layer: the server answered with statu": func(m *imageManifest) { m.Layers[1].Digest = "sha256:" + strings.Repeat("0", 64) },
	} {
		sh.put(t, "v1", good, change)
		refuses(t, f, because)
	}
	sh.manifests["v1"] = []byte("<html>")
	refuses(t, f, "manifest: it is not one")
	digest := sh.put(t, "v1", good, nil)
	for blob := range sh.blobs {
		sh.blobs[blob] = key.sign(t, "other", time.Now(), 0)
	}
	refuses(t, f, "layer: it does not have the size and the digest")
	sh.manifests[digest] = []byte("{}")
	from.URL = strings.Replace(from.URL, ":v1", "@"+digest, 1)
	refuses(t, open(t, t.TempDir(), from), "manifest: it does not have the digest")
	sh.put(t, "v1", newSigner(t).sign(t, "one", time.Now(), 0), nil)
	refuses(t, f, "not signed with this key")
}

// TestATokenOfTheRegistry has the operator's token exchanged for one of the
// registry's, on the same server alone.
func TestATokenOfTheRegistry(t *testing.T) {
	key := newSigner(t)
	sh, s, from := registryOf(t, key)
	sh.put(t, "v1", key.sign(t, "one", time.Now(), 0), nil)
	sh.grant = "granted"
	elsewhere := serve(t, httptest.NewTLSServer, sh.token)
	from.CA = append(from.CA, elsewhere.ca()...)
	from.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(from.TokenFile, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, t.TempDir(), from)
	for challenge, because := range map[string]string{
		`Basic realm="here"`: "not by a Bearer token",
		"":                   "not by a Bearer token",
		`Bearer realm="` + elsewhere.URL + `/token",service="here"`:                        "sends for a token to another server",
		`Bearer realm="` + strings.Replace(s.URL, "https", "http", 1) + `",service="here"`: "sends for a token to another server",
		`Bearer service="here"`:                              "sends for a token to another server",
		`Bearer realm="` + s.URL + `/token",service="there"`: "token: the server answered with status 403",
		`Bearer realm="` + s.URL + `/v2",service="here"`:     "token: the server answered with status",
	} {
		sh.challenge = challenge
		refuses(t, f, because)
	}
	if len(elsewhere.requests()) > 0 {
		t.Error("the other server was asked for a token")
	}
	sh.challenge = `Bearer realm="` + s.URL + `/token",service="here",scope="repository:everything:push,pull"`
	if a := take(t, f); a.Bundle.Revision != "one" {
		t.Errorf("%+v", a)
	}
}

func TestReferences(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		"oci://h/a/b:v1": "a/b v1",
		"oci://h:5000/a": "a latest", "oci://h/a:" + strings.Repeat("v", 128): "a " + strings.Repeat("v", 128),
		"oci://h/a_b/c-d@" + digest: "a_b/c-d " + digest,
		"oci://h/":                  "", "oci://h/A": "", "oci://h/a:": "", "oci://h/a@sha256:0": "", "oci://h/a/../b": "", "oci://h/a:b/c": "",
		"oci://h/a?x=y": "", "oci://h//a": "", "oci://h/a:v1@" + digest: "", "oci://h/a%2e%2e": "", "oci://h/a:" + strings.Repeat("v", 129): "",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if r, err := parseReference(u); err == nil {
			got = r.repository + " " + r.version
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
