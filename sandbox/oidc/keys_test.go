package oidc

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A keyServer answers with what it was last told to.
type keyServer struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[http.HandlerFunc]
}

func newKeyServer(t *testing.T, answer http.HandlerFunc) *keyServer {
	t.Helper()
	s := new(keyServer)
	s.answers(answer)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *keyServer) answers(how http.HandlerFunc) { s.answer.Store(&how) }

func says(text []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }
}

// A fetching is a verifier with keys at a URL, and a clock.
type fetching struct {
	*Verifier
	trusted *Issuers
	ahead   atomic.Int64 // of now
	mu      sync.Mutex
	said    []string
}

func newFetching(t *testing.T, s *keyServer) *fetching {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	f := new(fetching)
	var err error
	if f.trusted, err = Open([]Issuer{{issuer, s.URL + "/acme/.well-known/jwks"}}, pool); err != nil {
		t.Fatal(err)
	}
	f.Verifier = New(func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.said = append(f.said, err.Error())
	})
	f.now = func() time.Time { return now.Add(time.Duration(f.ahead.Load())) }
	f.Use(f.trusted)
	t.Cleanup(f.Close)
	return f
}

func (f *fetching) pass(d time.Duration) { f.ahead.Add(int64(d)) }

func (f *fetching) complaints() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.said, "\n")
}

// settled waits for the fetch that is under way.
func (f *fetching) settled() { f.fetches.Wait() }

func tokenOf(t *testing.T, id string) string {
	return signed(t, headerOf("ES256", id), claims(fieldsOf{"exp": at(100 * time.Hour)}), withEC(t, ecKey()))
}

func TestKeysAreFetchedWhenATokenNeedsThem(t *testing.T) {
	first := keySetText(t, ecJWK("a", &ecKey().PublicKey))
	both := keySetText(t, ecJWK("a", &ecKey().PublicKey), ecJWK("b", &ecKey().PublicKey))
	s := newKeyServer(t, says(first))
	f := newFetching(t, s)
	if s.asked.Load() != 0 {
		t.Error("keys were fetched before anybody asked")
	}
	if _, err := f.Verify(t.Context(), signed(t, headerOf("ES256", "a"), claims(fieldsOf{"iss": s.URL}), withEC(t, ecKey()))); !errors.Is(err, ErrIssuer) || s.asked.Load() != 0 {
		t.Errorf("a token of an unknown issuer: %v, asked %d times", err, s.asked.Load())
	}
	var together sync.WaitGroup
	for range 20 {
		together.Go(func() {
			if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
				t.Errorf("the first token: %v", err)
			}
		})
	}
	together.Wait()
	s.answers(says(both))
	for range 20 {
		if _, err := f.Verify(t.Context(), tokenOf(t, "b")); !errors.Is(err, ErrKey) {
			t.Errorf("a new key at once: %v", err)
		}
	}
	if n := s.asked.Load(); n != 1 {
		t.Errorf("asked %d times within a minute", n)
	}
	f.pass(fetchEvery)
	if _, err := f.Verify(t.Context(), tokenOf(t, "b")); err != nil || s.asked.Load() != 2 {
		t.Errorf("a new key after a minute: %v, asked %d times", err, s.asked.Load())
	}
	for _, id := range []string{"c", "../a", "a?x", strings.Repeat("k", 4000)} {
		if _, err := f.Verify(t.Context(), tokenOf(t, id)); !errors.Is(err, ErrKey) {
			t.Errorf("the key %.10q: %v", id, err)
		}
	}
	if n := s.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

func TestKeysThatWereTakenBackDoNotCount(t *testing.T) {
	s := newKeyServer(t, says(keySetText(t, ecJWK("a", &ecKey().PublicKey))))
	f := newFetching(t, s)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
		t.Fatal(err)
	}
	s.answers(says(keySetText(t, ecJWK("b", &ecKey().PublicKey))))
	f.pass(renewAfter - time.Second)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil || s.asked.Load() != 1 {
		t.Errorf("within the hour: %v, asked %d times", err, s.asked.Load())
	}
	f.pass(time.Second)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
		t.Errorf("a token does not wait for keys to be renewed: %v", err)
	}
	f.settled()
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); !errors.Is(err, ErrKey) {
		t.Errorf("a key that was taken back: %v", err)
	}
	if _, err := f.Verify(t.Context(), tokenOf(t, "b")); err != nil {
		t.Errorf("the key in its place: %v", err)
	}
}

// TestAServerOfKeysThatFails has keys at hand first: they stay. Then it has none.
func TestAServerOfKeysThatFails(t *testing.T) {
	good := keySetText(t, ecJWK("a", &ecKey().PublicKey))
	elsewhere := newKeyServer(t, says(good))
	for _, row := range []struct {
		says   string
		answer http.HandlerFunc
		want   string
	}{
		{"an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "answered with status 500"},
		{"an error with keys", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); _, _ = w.Write(good) }, "answered with status 404"},
		{"a way elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, "answered with status 302"},
		{"a page", says([]byte("<html>secret</html>")), "they are no JSON Web Key Set"},
		{"no keys", says([]byte(`{"keys":[]}`)), "they hold no public key"},
		{"a secret for a key", says(keySetText(t, fieldsOf{"kty": "oct", "kid": "a", "k": "AAAA"})), "they hold no public key"},
		{"too much", func(w http.ResponseWriter, _ *http.Request) {
			for range maxKeysBytes {
				if _, err := w.Write([]byte("  ")); err != nil {
					return
				}
			}
			_, _ = w.Write(good)
		}, "the answer is larger than 256 KiB"},
		{"half of it", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000")
			_, _ = w.Write(good)
		}, "the server broke off"},
		{"nothing", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "the server broke off"},
	} {
		t.Run(row.says, func(t *testing.T) {
			s := newKeyServer(t, says(good))
			f := newFetching(t, s)
			if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
				t.Fatal(err)
			}
			s.answers(row.answer)
			f.pass(renewAfter)
			_, err := f.Verify(t.Context(), tokenOf(t, "a"))
			f.settled()
			if _, again := f.Verify(t.Context(), tokenOf(t, "a")); err != nil || again != nil || s.asked.Load() != 2 {
				t.Errorf("keys that were there: %v, %v, asked %d times", err, again, s.asked.Load())
			}
			f.pass(fetchEvery)
			if _, err := f.Verify(t.Context(), tokenOf(t, "b")); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("a key that was not: %v, want %s", err, row.want)
			}
			if said := f.complaints(); strings.Count(said, "could not be fetched") != 1 || !strings.Contains(said, row.want) || strings.Contains(said, "secret") {
				t.Errorf("said %q", said)
			}
			s.answers(says(good))
			f.pass(fetchEvery)
			if _, err := f.Verify(t.Context(), tokenOf(t, "b")); !errors.Is(err, ErrKey) {
				t.Errorf("after it works again: %v", err)
			}

			fresh := newFetching(t, s)
			s.answers(row.answer)
			if _, err := fresh.Verify(t.Context(), tokenOf(t, "a")); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("no keys: %v, want %s", err, row.want)
			}
		})
	}
	if n := elsewhere.asked.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

func TestAServerOfKeysThatIsSlow(t *testing.T) {
	good := keySetText(t, ecJWK("a", &ecKey().PublicKey))
	s := newKeyServer(t, says(good))
	f := newFetching(t, s)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
		t.Fatal(err)
	}
	begun, release := make(chan struct{}, 1), make(chan struct{})
	s.answers(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	f.pass(fetchEvery)
	ctx, leave := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := f.Verify(ctx, tokenOf(t, "b"))
		waited <- err
	}()
	<-begun
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
		t.Errorf("a known key waits: %v", err)
	}
	leave()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left: %v", err)
	}
	began := time.Now()
	_, err := f.Verify(t.Context(), tokenOf(t, "b"))
	if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "did not answer within 5s") || took > fetchWithin+10*time.Second {
		t.Errorf("%v after %s", err, took)
	}
}

func TestACertificateThatNobodyTrusts(t *testing.T) {
	s := newKeyServer(t, says(keySetText(t, ecJWK("a", &ecKey().PublicKey))))
	trusted, err := Open([]Issuer{{issuer, s.URL}}, x509.NewCertPool())
	if err != nil {
		t.Fatal(err)
	}
	v := New(func(error) {})
	defer v.Close()
	v.Use(trusted)
	if _, err := v.Verify(t.Context(), tokenOf(t, "a")); err == nil || !strings.Contains(err.Error(), "an authority that is not trusted") {
		t.Error(err)
	}
}

// TestKeysOutliveAReload has the same issuer trusted anew, and then at another place.
func TestKeysOutliveAReload(t *testing.T) {
	s := newKeyServer(t, says(keySetText(t, ecJWK("a", &ecKey().PublicKey))))
	f := newFetching(t, s)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil {
		t.Fatal(err)
	}
	again, err := Open([]Issuer{{issuer, s.URL + "/acme/.well-known/jwks"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Use(again)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err != nil || s.asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, s.asked.Load())
	}
	other, err := Open([]Issuer{{issuer, s.URL + "/other"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Use(other)
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); err == nil {
		t.Error("keys of another place count")
	}
	f.Use(new(Issuers))
	if _, err := f.Verify(t.Context(), tokenOf(t, "a")); !errors.Is(err, ErrIssuer) {
		t.Errorf("an issuer that is no longer trusted: %v", err)
	}
}

func TestCloseEndsWhatIsFetched(t *testing.T) {
	begun := make(chan struct{}, 1)
	s := newKeyServer(t, func(_ http.ResponseWriter, r *http.Request) { begun <- struct{}{}; <-r.Context().Done() })
	f := newFetching(t, s)
	waited := make(chan error)
	go func() {
		_, err := f.Verify(t.Context(), tokenOf(t, "a"))
		waited <- err
	}()
	<-begun
	f.Close()
	if err := <-waited; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if said := f.complaints(); said != "" {
		t.Error(said)
	}
}
