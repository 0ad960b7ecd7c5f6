package bundle

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/rego"
)

// A signer signs bundles, and is known by its public key.
type signer struct{ private, public []byte }

func newSigner(t *testing.T) signer {
	t.Helper()
	private, public := testpki.KeyPair(t)
	return signer{private, public}
}

// unsigned returns a bundle of that revision.
func unsigned(t *testing.T, revision string) []byte {
	t.Helper()
	module := "package egress\n\nallow contains {\"rule\": \"" + revision + "\"} if host.matches(input.destination.host, \"a.example\")\n"
	tarball, err := Build([]rego.Source{{Name: "egress.rego", Text: []byte(module)}}, BuildOptions{Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	return tarball
}

// sign returns a bundle of that revision that was signed when and is good for valid.
func (s signer) sign(t *testing.T, revision string, when time.Time, valid time.Duration) []byte {
	t.Helper()
	tarball, err := Sign(unsigned(t, revision), SignOptions{KeyPEM: s.private, Now: when, Valid: valid})
	if err != nil {
		t.Fatal(err)
	}
	return tarball
}

// A server answers with what it was last told to, and keeps what it was asked.
type server struct {
	*httptest.Server
	more   *server // another one that is trusted, too
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []*http.Request
}

func serve(t *testing.T, over func(http.Handler) *httptest.Server, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{answer: answer}
	s.Server = over(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		answer := s.answer
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) set(answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *server) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) ca() []byte {
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if s.more != nil {
		own = append(own, s.more.ca()...)
	}
	return own
}

// body answers with a bundle, under an entity tag.
func body(tarball []byte, etag string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", etag)
		w.Header().Set("Content-Type", "application/gzip")
		if etag != "" && r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Write(tarball)
	}
}

func (s *server) source(key signer) Source {
	from := Source{URL: s.URL + "/b.tar.gz", Key: Key{PEM: key.public}, Refresh: time.Minute, MaxAge: time.Hour}
	if s.TLS != nil {
		from.CA = s.ca()
	}
	return from
}

func open(t *testing.T, folder string, s Source) *Feed {
	t.Helper()
	f, err := Open(folder, "test", s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

// take fetches and accepts what the server has.
func take(t *testing.T, f *Feed) *Update {
	t.Helper()
	a, err := f.Fetch(t.Context())
	if err == nil {
		err = f.Accept(a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refuses has the next fetch fail for a reason, and the last good bundle stay.
func refuses(t *testing.T, f *Feed, because string) {
	t.Helper()
	before, _ := f.Good()
	a, err := f.Fetch(t.Context())
	if err == nil || !strings.Contains(err.Error(), because) {
		t.Errorf("fetched %+v, error %v; want an error with %q", a, err, because)
		return
	}
	if err := f.Fail(err); err != nil {
		t.Error(err)
	}
	if after, _ := f.Good(); after != before {
		t.Errorf("after %q the last good bundle is another one", because)
	}
	if f.State().Error != err.Error() {
		t.Errorf("the state says %q of %q", f.State().Error, err)
	}
}
