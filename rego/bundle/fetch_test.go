package bundle

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnETagSavesTheSecondDownload(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewTLSServer, body(key.sign(t, "one", time.Now(), 0), `"1"`))
	f := open(t, t.TempDir(), s.source(key))
	if a := take(t, f); !a.Newer || a.Bundle.Revision != "one" || !a.Bundle.Signed {
		t.Errorf("the first: %+v", a)
	}
	if a := take(t, f); a.Newer || a.Bundle.Revision != "one" {
		t.Errorf("the second: %+v", a)
	}
	if got := s.requests()[1].Header.Get("If-None-Match"); got != `"1"` {
		t.Errorf("If-None-Match %q", got)
	}
	s.set(body(key.sign(t, "two", time.Now(), 0), `"2"`))
	if a := take(t, f); !a.Newer || f.State().Revision != "two" || f.State().ETag != `"2"` {
		t.Errorf("the third: %+v, %+v", a, f.State())
	}
}

// TestTheSameBundleAgainIsHeard has a server without entity tags.
func TestTheSameBundleAgainIsHeard(t *testing.T) {
	key := newSigner(t)
	same := key.sign(t, "one", time.Now(), 0)
	s := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) { w.Write(same) })
	f := open(t, t.TempDir(), s.source(key))
	take(t, f)
	fetched := f.State().Fetched
	if a := take(t, f); a.Newer || !f.State().Fetched.Equal(fetched) || f.State().Heard.Before(fetched) {
		t.Errorf("%+v, %+v", a, f.State())
	}
}

func TestWhatIsNoGoodBundleIsRefused(t *testing.T) {
	key, other := newSigner(t), newSigner(t)
	now := time.Now()
	good := key.sign(t, "two", now, 0)
	whole := func(b []byte) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.Write(b) } }
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, strings.Repeat("rubbish", 1000))
	z.Close()
	s := serve(t, httptest.NewTLSServer, body(key.sign(t, "one", now.Add(-time.Hour), 0), `"1"`))
	f := open(t, t.TempDir(), s.source(key))
	take(t, f)
	for because, answer := range map[string]http.HandlerFunc{
		"not signed with this key":             whole(other.sign(t, "two", now, 0)),
		"is not signed":                        whole(unsigned(t, "two")),
		"has expired":                          whole(key.sign(t, "two", now.Add(-2*time.Hour), time.Hour)),
		"issued before the last good one":      whole(key.sign(t, "zero", now.Add(-2*time.Hour), 0)),
		"which is yet to come":                 whole(key.sign(t, "two", now.Add(time.Hour), 0)),
		"what is no bundle (content type \"te": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>Sign in to continue</html>") },
		"what is no bundle (content type \"\"": whole(nil),
		"bundle: ":                             whole(packed.Bytes()),
		"it is no gzipped tar file":            whole([]byte{0x1f, 0x8b, 0}),
		"status 404":                           http.NotFound,
		"status 206":                           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(206); w.Write(good) },
		"in the encoding \"gzip\"": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(good)
		},
		"ended before it was whole": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99999"); w.Write(good) },
		"larger than 16384 KiB":     whole(append([]byte{0x1f, 0x8b}, make([]byte, maxBundleBytes)...)),
		"unexpected EOF":            whole(good[:len(good)/2]),
		"something follows":         whole(append(bytes.Clone(good), "more"...)),
	} {
		s.set(answer)
		refuses(t, f, because)
	}
	s.set(whole(good))
	if a := take(t, f); !a.Newer || f.State().Error != "" {
		t.Errorf("a good one after all these: %+v, %+v", a, f.State())
	}
}

// TestNotModifiedAnswersOnlyAQuestion: who has no bundle cannot be told that it is
// still the same.
func TestNotModifiedAnswersOnlyAQuestion(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	refuses(t, open(t, t.TempDir(), s.source(key)), "status 304")
}

func TestARedirectStaysWithTheServer(t *testing.T) {
	key := newSigner(t)
	good := body(key.sign(t, "one", time.Now(), 0), `"1"`)
	elsewhere := serve(t, httptest.NewTLSServer, good)
	plain := serve(t, httptest.NewServer, good)
	s := serve(t, httptest.NewTLSServer, nil)
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/there.tar.gz" {
				good(w, r)
				return
			}
			http.Redirect(w, r, to, http.StatusFound)
		}
	}
	from := s.source(key)
	from.CA = append(from.CA, elsewhere.ca()...)
	for to, because := range map[string]string{
		elsewhere.URL + "/there.tar.gz":                       "redirects to another server",
		plain.URL + "/there.tar.gz":                           "redirects to another server",
		strings.Replace(s.URL, "https", "http", 1):            "redirects to another server",
		strings.Replace(s.URL, "https://", "https://u:p@", 1): "redirects to another server",
		"/b.tar.gz": "redirects more than 3 times",
	} {
		s.set(redirect(to))
		refuses(t, open(t, t.TempDir(), from), because)
	}
	if n := len(s.requests()); n != 4+1+maxRedirects {
		t.Errorf("it was asked %d times", n)
	}
	if n := len(elsewhere.requests()) + len(plain.requests()); n > 0 {
		t.Errorf("the other servers were asked %d times", n)
	}
	s.set(redirect("/there.tar.gz"))
	if a := take(t, open(t, t.TempDir(), from)); !a.Newer {
		t.Error("a redirect to another path was not followed")
	}
}

// TestNothingElseSteersAFetch has proxies in the environment, and a server that
// sets cookies and asks for them.
func TestNothingElseSteersAFetch(t *testing.T) {
	proxy := serve(t, httptest.NewServer, http.NotFound)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	key := newSigner(t)
	good := body(key.sign(t, "one", time.Now(), 0), "")
	s := serve(t, httptest.NewTLSServer, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "who=me")
		good(w, r)
	})
	f := open(t, t.TempDir(), s.source(key))
	take(t, f)
	take(t, f)
	if len(proxy.requests()) > 0 {
		t.Error("the proxy of the environment was asked")
	}
	for _, r := range s.requests() {
		if r.Header.Get("Cookie") != "" || r.Header.Get("Authorization") != "" || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("asked with %v", r.Header)
		}
	}
	if transport := f.client.Transport.(*http.Transport); transport.Proxy != nil {
		t.Error("the transport looks for proxies") // loopback is never proxied, so that the server alone would not show it
	}
}

func TestTheTokenIsReadForEachFetchAndNeverSaid(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewTLSServer, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer second" {
			http.Error(w, r.Header.Get("Authorization"), http.StatusForbidden)
			return
		}
		body(key.sign(t, "one", time.Now(), 0), "")(w, r)
	})
	from := s.source(key)
	from.TokenFile = filepath.Join(t.TempDir(), "token")
	f := open(t, t.TempDir(), from)
	refuses(t, f, "its token: open ")
	for text, because := range map[string]string{"": "does not hold one word", "two words": "does not hold one word", "sesame\n": "status 403"} {
		if err := os.WriteFile(from.TokenFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, f, because)
		if strings.Contains(f.State().Error, "sesame") || strings.Contains(f.State().Error, "words\"") {
			t.Errorf("the error holds the token: %s", f.State().Error)
		}
	}
	if err := os.WriteFile(from.TokenFile, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	take(t, f)
}

func TestAnotherAuthorityIsNotTrusted(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewTLSServer, body(key.sign(t, "one", time.Now(), 0), ""))
	from := s.source(key)
	from.CA = nil
	refuses(t, open(t, t.TempDir(), from), "certificate")
}

func TestAServerThatIsNotThere(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, http.NotFound)
	f := open(t, t.TempDir(), s.source(key))
	s.Close()
	refuses(t, f, "connection refused")
	said := f.State().Error
	refuses(t, f, "connection refused")
	if f.State().Error != said {
		t.Errorf("one failure is said in two ways: %q, %q", said, f.State().Error)
	}
}

// TestAConnectionThatBreaks is said in the same words each time, without the ports
// of that connection.
func TestAConnectionThatBreaks(t *testing.T) {
	s := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	})
	f := open(t, t.TempDir(), s.source(newSigner(t)))
	refuses(t, f, "connection reset by peer")
	if strings.Contains(f.State().Error, "127.0.0.1:") {
		t.Errorf("the error names a port: %s", f.State().Error)
	}
}

func TestSourcesFromWhichNothingIsFetched(t *testing.T) {
	key := newSigner(t)
	for because, change := range map[string]func(*Source){
		"no key":                          func(s *Source) { s.Key.PEM = nil },
		"neither https, http nor oci":     func(s *Source) { s.URL = "ftp://host/b" },
		"has no host":                     func(s *Source) { s.URL = "https:///b" },
		"or userinfo":                     func(s *Source) { s.URL = "https://me:secret@host/b" },
		"cannot be read":                  func(s *Source) { s.URL = "https://ho st/b" },
		"not sent over http":              func(s *Source) { s.URL, s.TokenFile = "http://host/b", "t" },
		"holds no certificate":            func(s *Source) { s.CA = []byte("none") },
		"it is not oci://host/repository": func(s *Source) { s.URL = "oci://host/UPPER:tag" },
	} {
		s := Source{URL: "https://host/b", Key: Key{PEM: key.public}, Refresh: time.Minute, MaxAge: time.Hour}
		change(&s)
		if _, err := Open(t.TempDir(), "", s); err == nil || !strings.Contains(err.Error(), because) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", because, err)
		}
	}
}
