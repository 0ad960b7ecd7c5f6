package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// linkNamed returns an unsigned tar file whose one entry is a link with that name.
func linkNamed(t *testing.T, name string) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "x", Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	if w.Close() != nil || z.Close() != nil {
		t.Fatal("not packed")
	}
	return packed.Bytes()
}

// TestAnErrorOfTheServersMakingForgetsNothing has a server, or who is on the way to
// it, answer with what makes for a long error. What is on disk is read afterwards as
// before, so that an older bundle is still refused.
func TestAnErrorOfTheServersMakingForgetsNothing(t *testing.T) {
	key, now := newSigner(t), time.Now()
	older := key.sign(t, "older", now.Add(-time.Hour), 0)
	for name, answer := range map[string]http.HandlerFunc{
		"a name": body(linkNamed(t, strings.Repeat("x", 200_000)), ""),
		"a head": func(w http.ResponseWriter, _ *http.Request) {
			c, out, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(out, "HTTP/1.1 %s x\r\n\r\n", strings.Repeat("\x01", 60_000))
			out.Flush()
		},
		"a Location": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", ":%"+strings.Repeat("\x7f", 60_000))
			w.WriteHeader(http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			s := serve(t, httptest.NewServer, body(key.sign(t, "now", now, 0), ""))
			f := open(t, folder, s.source(key))
			take(t, f)
			s.set(answer)
			_, err := f.Fetch(t.Context())
			if err == nil {
				t.Fatal("accepted")
			}
			if err := f.Fail(err); err != nil {
				t.Error(err)
			}
			f = open(t, folder, s.source(key))
			if _, err := f.Good(); err != nil {
				t.Errorf("after a restart: %v", err)
			}
			s.set(body(older, ""))
			if a, err := f.Fetch(t.Context()); err == nil {
				t.Errorf("rolled back to %q", a.Bundle.Revision)
			}
			if len(f.State().Error) > 2000 {
				t.Errorf("the error has %d bytes", len(f.State().Error))
			}
		})
	}
}

// TestARevisionIsShort has who signs call a bundle something that cannot be kept.
func TestARevisionIsShort(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, body(key.sign(t, "good", time.Now(), 0), ""))
	f := open(t, t.TempDir(), s.source(key))
	take(t, f)
	s.set(body(key.sign(t, strings.Repeat("r", maxStateBytes), time.Now(), 0), ""))
	refuses(t, f, "its revision")
}

// TestAStoreOfOthersIsNotRead has somebody who can write where bundles are kept put
// an older one there, which was good once.
func TestAStoreOfOthersIsNotRead(t *testing.T) {
	key := newSigner(t)
	folder := filepath.Join(t.TempDir(), "bundles")
	s := serve(t, httptest.NewServer, body(key.sign(t, "old", time.Now(), 0), ""))
	f := open(t, folder, s.source(key))
	take(t, f)
	for _, at := range []string{folder, f.store.folder} {
		for _, mode := range []os.FileMode{0o777, 0o720} {
			must(t, os.Chmod(at, mode))
			if err := open(t, folder, s.source(key)).Private(); err == nil || !strings.Contains(err.Error(), "others can write") {
				t.Errorf("%s with mode %o: %v", at, mode, err)
			}
		}
		must(t, os.Chmod(at, 0o700))
	}
	must(t, open(t, folder, s.source(key)).Private())
	must(t, open(t, filepath.Join(folder, "new"), s.source(key)).Private())
}
