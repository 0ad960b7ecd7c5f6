package bundle

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A shelf is what a registry has that answers as it likes: manifests under tags, and blobs.
type shelf struct {
	manifests map[string][]byte
	blobs     map[string][]byte
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (sh *shelf) put(t *testing.T, tag string, tarball []byte, change func(*ocispec.Manifest)) string {
	t.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageLayer, Digest: "sha256:00", Size: 1},
		{MediaType: layerType, Digest: digest.FromBytes(tarball), Size: int64(len(tarball))},
	}}
	if change != nil {
		change(&m)
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	of := digestOf(text)
	sh.manifests[tag], sh.manifests[of], sh.blobs[digestOf(tarball)] = text, text, tarball
	return of
}

func (sh *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/team/policy/"), "/"); {
	case kind == "manifests" && sh.manifests[name] != nil && r.Header.Get("Accept") == ocispec.MediaTypeImageManifest:
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Write(sh.manifests[name])
	case kind == "blobs" && sh.blobs[name] != nil:
		w.Write(sh.blobs[name])
	default:
		http.NotFound(w, r)
	}
}

func registryOf(t *testing.T, key signer) (*shelf, *server, Source) {
	sh := &shelf{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	s := serve(t, httptest.NewTLSServer, sh.ServeHTTP)
	return sh, s, s.at(key, "v1")
}

// at returns the source of a tag in a registry.
func (s *server) at(key signer, tag string) Source {
	from := s.source(key)
	from.URL = "oci://" + s.Listener.Addr().String() + "/team/policy:" + tag
	return from
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
	for because, change := range map[string]func(*ocispec.Manifest){
		"manifest: its media type":            func(m *ocispec.Manifest) { m.MediaType = "application/vnd.oci.image.index.v1+json" },
		"manifest: it has no layer":           func(m *ocispec.Manifest) { m.Layers = m.Layers[:1] },
		"manifest: it has several layers":     func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[1]) },
		"manifest: its layer has no digest":   func(m *ocispec.Manifest) { m.Layers[1].Digest = "sha256:../../x" },
		"has no digest sha256:…, or is too l": func(m *ocispec.Manifest) { m.Layers[1].Size = maxBundleBytes + 1 },
		"layer: ":                             func(m *ocispec.Manifest) { m.Layers[1].Size-- },
		"layer: the registry has nothing":     func(m *ocispec.Manifest) { m.Layers[1].Digest = "sha256:" + digest.Digest(strings.Repeat("0", 64)) },
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
	refuses(t, f, "layer: ")
	sh.manifests[digest] = []byte("{}")
	from.URL = strings.Replace(from.URL, ":v1", "@"+digest, 1)
	refuses(t, open(t, t.TempDir(), from), "manifest: ")
	sh.put(t, "v1", newSigner(t).sign(t, "one", time.Now(), 0), nil)
	refuses(t, f, "not signed with this key")
}

// realRegistry is the registry of go-containerregistry, in memory, behind a door.
func realRegistry(t *testing.T, door func(w http.ResponseWriter, r *http.Request) (open bool)) *server {
	t.Helper()
	inside := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	return serve(t, httptest.NewTLSServer, func(w http.ResponseWriter, r *http.Request) {
		if door == nil || door(w, r) {
			inside.ServeHTTP(w, r)
		}
	})
}

// push pushes a bundle that is signed with key, by a login in the form of a token file.
func push(t *testing.T, s *server, key signer, tag, token string, tarball []byte) (string, error) {
	t.Helper()
	from := s.at(key, tag)
	login, err := loginFromFile(token)
	must(t, err)
	place, err := OpenRegistry(from.URL, s.ca(), login)
	must(t, err)
	p, err := place.Push(t.Context(), tarball, &from.Key)
	if err != nil {
		return "", err
	}
	return p.Digest, nil
}

// TestWhatIsPushedIsPulled pushes to a registry that others wrote. A feed finds each bundle that the tag comes to name, by the tag
// and by the digest.
func TestWhatIsPushedIsPulled(t *testing.T) {
	key := newSigner(t)
	s := realRegistry(t, nil)
	if _, err := open(t, t.TempDir(), s.at(key, "v1")).Fetch(t.Context()); !errors.Is(err, ErrNotThere) {
		t.Errorf("before there is one: %v", err)
	}
	one, two := key.sign(t, "one", time.Now(), 0), key.sign(t, "two", time.Now(), 0)
	first, err := push(t, s, key, "v1", "", one)
	must(t, err)
	f := open(t, t.TempDir(), s.at(key, "v1"))
	if a := take(t, f); a.Bundle.Revision != "one" || f.State().ETag != first {
		t.Errorf("%+v, %+v", a.Bundle, f.State())
	}
	second, err := push(t, s, key, "v1", "", two)
	must(t, err)
	if a := take(t, f); a.Bundle.Revision != "two" || f.State().ETag != second {
		t.Errorf("%+v, %+v", a.Bundle, f.State())
	}
	before := len(s.requests())
	if again, err := push(t, s, key, "v1", "", two); err != nil || again != second {
		t.Errorf("pushed again: %s, %v", again, err)
	}
	for _, r := range s.requests()[before:] {
		if strings.Contains(r.URL.Path, "/uploads/") {
			t.Errorf("sent again: %s", r.URL.Path)
		}
	}
	from := s.at(key, "v1")
	from.URL = strings.Replace(from.URL, ":v1", "@"+first, 1)
	if a := take(t, open(t, t.TempDir(), from)); a.Bundle.Revision != "one" {
		t.Errorf("by its digest: %+v", a)
	}
	place, err := OpenRegistry(from.URL, s.ca(), Login{})
	must(t, err)
	if _, err := place.Push(t.Context(), two, &from.Key); err == nil {
		t.Error("pushed under a digest")
	}
}

// TestWhatNoMachineWouldTakeIsNotPushed has a bundle of another key, one that has expired, one without a signature, and one that is
// older than what the tag names.
func TestWhatNoMachineWouldTakeIsNotPushed(t *testing.T) {
	key, other := newSigner(t), newSigner(t)
	s := realRegistry(t, nil)
	now := time.Now()
	for says, row := range map[string]struct {
		tarball []byte
		is      error
	}{
		"of another key": {other.sign(t, "one", now, 0), ErrWrongKey},
		"expired":        {key.sign(t, "one", now.Add(-2*time.Hour), time.Hour), ErrExpired},
		"not signed":     {unsigned(t, "one"), ErrNotSigned},
	} {
		if _, err := push(t, s, key, "v1", "", row.tarball); !errors.Is(err, row.is) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if n := len(s.requests()); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
	two, err := push(t, s, key, "v1", "", key.sign(t, "two", now, 0))
	must(t, err)
	if _, err := push(t, s, key, "v1", "", key.sign(t, "one", now.Add(-time.Minute), 0)); !errors.Is(err, ErrOlder) {
		t.Errorf("an older one: %v", err)
	}
	f := open(t, t.TempDir(), s.at(key, "v1"))
	if take(t, f); f.State().ETag != two {
		t.Errorf("the tag names %+v", f.State())
	}
	if _, err := push(t, s, other, "v1", "", other.sign(t, "one", now.Add(-time.Minute), 0)); err != nil {
		t.Errorf("with a new key: %v", err)
	}
}

// wants answers 401 unless a request has the authorization.
func wants(authorization, challenge string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == authorization {
			return true
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
}

// TestLoginsOfARegistry pushes and pulls by Basic, by a Bearer token, and by a token that another server grants for name and password,
// with each form of a token file.
func TestLoginsOfARegistry(t *testing.T) {
	key := newSigner(t)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("robot$ci:s:esame"))
	grants := serve(t, httptest.NewTLSServer, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.Header.Get("Authorization") != basic || q.Get("service") != "here" || !strings.HasPrefix(q.Get("scope"), "repository:team/policy:pull") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"token": "granted"}`)
	})
	bearer := `Bearer realm="` + grants.URL + `/token",service="here"`
	for _, row := range []struct {
		says, token, authorization, challenge string
		good                                  bool
	}{
		{"name and password", "robot$ci:s:esame", basic, `Basic realm="here"`, true},
		{"another password", "robot$ci:open", basic, `Basic realm="here"`, false},
		{"nothing", "", basic, `Basic realm="here"`, false},
		{"a token", "sesame", "Bearer sesame", `Bearer realm="https://here.test/token"`, true},
		{"another token", "other", "Bearer sesame", `Bearer realm="https://here.test/token"`, false},
		{"a token of another server", "robot$ci:s:esame", "Bearer granted", bearer, true},
		{"another password there", "robot$ci:open", "Bearer granted", bearer, false},
		{"docker's file", `{"auths": {"HOST": {"auth": "` + strings.TrimPrefix(basic, "Basic ") + `"}}}`, "Bearer granted", bearer, true},
		{"docker's file about another host", `{"auths": {"other.test": {"auth": "` + strings.TrimPrefix(basic, "Basic ") + `"}}}`, "Bearer granted", bearer, false},
		{"a server of tokens without TLS", "robot$ci:s:esame", "Bearer granted", strings.Replace(bearer, "https://", "http://", 1), false},
	} {
		t.Run(row.says, func(t *testing.T) {
			s := realRegistry(t, wants(row.authorization, row.challenge))
			s.more = grants
			token := strings.Replace(row.token, "HOST", s.Listener.Addr().String(), 1)
			_, err := push(t, s, key, "v1", token, key.sign(t, "one", time.Now(), 0))
			if (err == nil) != row.good {
				t.Fatalf("pushed: %v", err)
			}
			from := s.at(key, "v1")
			if token != "" {
				from.TokenFile = filepath.Join(t.TempDir(), "token")
				must(t, os.WriteFile(from.TokenFile, []byte(token+"\n"), 0o600))
			}
			a, err := open(t, t.TempDir(), from).Fetch(t.Context())
			if (err == nil) != row.good {
				t.Errorf("fetched %+v, %v", a, err)
			}
			for _, secret := range []string{"s:esame", "sesame", "open", "granted"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error has the login: %v", err)
				}
			}
		})
	}
}

// TestContentElsewhere has a registry that sends for blobs to another server, which gets no login, and whose signed URL is in no
// error.
func TestContentElsewhere(t *testing.T) {
	key := newSigner(t)
	tarball := key.sign(t, "one", time.Now(), 0)
	storage := serve(t, httptest.NewTLSServer, body(tarball, ""))
	var to string
	basic := wants("Basic "+base64.StdEncoding.EncodeToString([]byte("ci:sesame")), `Basic realm="here"`)
	s := realRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !basic(w, r) {
			return false
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, to+"/blob?signature=hidden", http.StatusTemporaryRedirect)
			return false
		}
		return true
	})
	s.more = storage
	_, err := push(t, s, key, "v1", "ci:sesame", tarball)
	must(t, err)
	from := s.at(key, "v1")
	from.TokenFile = filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(from.TokenFile, []byte("ci:sesame"), 0o600))
	f := open(t, t.TempDir(), from)
	fails := func(says string) {
		t.Helper()
		if a, err := f.Fetch(t.Context()); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %+v, %v", says, a, err)
		}
	}
	for says, answer := range map[string]http.HandlerFunc{
		"it is not there": http.NotFound,
		"it is another":   body(key.sign(t, "two", time.Now(), 0), ""),
		"it is cut":       body(tarball[:100], ""),
		"it fails":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"it is locked":    wants401,
	} {
		storage.set(answer)
		to = storage.URL
		fails(says)
	}
	storage.set(body(tarball, ""))
	to = serve(t, httptest.NewServer, body(tarball, "")).URL
	fails("without TLS")
	to = storage.URL
	if a := take(t, f); a.Bundle.Revision != "one" {
		t.Errorf("%+v", a)
	}
	for _, r := range storage.requests() {
		if r.Header.Get("Authorization") != "" {
			t.Error("the login went to the server of content")
		}
	}
}

func wants401(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("WWW-Authenticate", `Basic realm="storage"`)
	w.WriteHeader(http.StatusUnauthorized)
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
			got = r.Repository + " " + r.Reference
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
