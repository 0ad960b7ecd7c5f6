package bundle

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func TestTheLastGoodOneOutlivesTheProcess(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", time.Now(), time.Hour), `"1"`))
	folder := t.TempDir()
	f := open(t, folder, s.source(key))
	if _, err := f.Good(); !errors.Is(err, ErrNone) || f.Stale() == "" {
		t.Errorf("before there was one: %v, stale %q", err, f.Stale())
	}
	take(t, f)
	s.Close()
	again := open(t, folder, s.source(key))
	b, err := again.Good()
	if err != nil || b.Revision != "one" || again.Stale() != "" || again.State().ETag != `"1"` {
		t.Errorf("%+v, %v, stale %q, %+v", b, err, again.Stale(), again.State())
	}
	if info, err := os.Stat(again.store.folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v", info, err)
	}
	for _, other := range []func(*Source){
		func(s *Source) { s.URL += "x" },
		func(s *Source) { s.Key.PEM = newSigner(t).public },
	} {
		from := s.source(key)
		other(&from)
		if _, err := open(t, folder, from).Good(); !errors.Is(err, ErrNone) {
			t.Errorf("another source has it too: %v", err)
		}
	}
}

// TestOneAfterTheOtherIsKept has a server without entity tags, so that nothing but
// the bundle is another.
func TestOneAfterTheOtherIsKept(t *testing.T) {
	key := newSigner(t)
	folder := t.TempDir()
	s := serve(t, httptest.NewServer, nil)
	f := open(t, folder, s.source(key))
	for _, revision := range []string{"one", "two"} {
		s.set(body(key.sign(t, revision, time.Now(), 0), ""))
		take(t, f)
		if b, err := open(t, folder, s.source(key)).Good(); err != nil || b.Revision != revision {
			t.Errorf("%+v, %v; want revision %s", b, err, revision)
		}
	}
}

// TestADamagedStoreHoldsNothingGood damages each file in each of some ways. What is
// damaged is fetched again, whole.
func TestADamagedStoreHoldsNothingGood(t *testing.T) {
	key := newSigner(t)
	now := time.Now()
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", now, 0), `"1"`))
	other := newSigner(t).sign(t, "one", now, 0)
	for says, damage := range map[string]func(t *testing.T, state, content string){
		"a bundle that is cut short": func(t *testing.T, _, content string) { must(t, os.Truncate(content, 100)) },
		"a bundle that is empty":     func(t *testing.T, _, content string) { must(t, os.Truncate(content, 0)) },
		"a bundle that is gone":      func(t *testing.T, _, content string) { must(t, os.Remove(content)) },
		"a state that is cut short":  func(t *testing.T, state, _ string) { must(t, os.Truncate(state, 40)) },
		"a state that is empty":      func(t *testing.T, state, _ string) { must(t, os.Truncate(state, 0)) },
		"an older bundle": func(t *testing.T, _, content string) {
			must(t, os.WriteFile(content, key.sign(t, "zero", now.Add(-time.Hour), 0), 0o600))
		},
		"a bundle of somebody else": func(t *testing.T, state, content string) {
			text, err := os.ReadFile(state)
			must(t, err)
			text = []byte(strings.Replace(string(text), strings.TrimSuffix(filepath.Base(content), contentSuffix), sumOf(other), 1))
			must(t, os.WriteFile(state, text, 0o600))
			must(t, os.WriteFile(filepath.Join(filepath.Dir(content), sumOf(other)+contentSuffix), other, 0o600))
		},
	} {
		folder := t.TempDir()
		f := open(t, folder, s.source(key))
		take(t, f)
		damage(t, filepath.Join(f.store.folder, stateName), filepath.Join(f.store.folder, f.State().Content+contentSuffix))
		again := open(t, folder, s.source(key))
		if b, err := again.Good(); err == nil || errors.Is(err, ErrNone) || again.Stale() == "" {
			t.Errorf("%s: %+v, %v, stale %q", says, b, err, again.Stale())
			continue
		}
		if a := take(t, again); !a.Newer || again.Stale() != "" {
			t.Errorf("%s: fetched again: %+v, stale %q", says, a, again.Stale())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestWhatAnEndInTheMiddleLeaves writes what is on disk after each step of a write
// that is never ended: the bundle before is the last good one until the state names
// the new one.
func TestWhatAnEndInTheMiddleLeaves(t *testing.T) {
	key := newSigner(t)
	now := time.Now()
	folder := t.TempDir()
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", now, 0), `"1"`))
	f := open(t, folder, s.source(key))
	take(t, f)
	two := key.sign(t, "two", now, 0)
	holds := func(want string) {
		t.Helper()
		if b, err := open(t, folder, s.source(key)).Good(); err != nil || b.Revision != want {
			t.Errorf("%+v, %v; want revision %s", b, err, want)
		}
	}
	must(t, os.WriteFile(filepath.Join(f.store.folder, ".new-123"), two[:100], 0o600))
	holds("one")
	must(t, os.WriteFile(filepath.Join(f.store.folder, sumOf(two)+contentSuffix), two, 0o600))
	holds("one")
	s.set(body(two, `"2"`))
	take(t, f)
	holds("two")
	names, err := filepath.Glob(filepath.Join(f.store.folder, "*"))
	if hidden, _ := filepath.Glob(filepath.Join(f.store.folder, ".*")); err != nil || len(names) != 2 || len(hidden) != 0 {
		t.Errorf("left are %q and %q, %v", names, hidden, err)
	}
}

// TestNoRollBack holds across a restart, and where the bundle itself was lost.
func TestNoRollBack(t *testing.T) {
	key := newSigner(t)
	now := time.Now()
	folder := t.TempDir()
	s := serve(t, httptest.NewServer, body(key.sign(t, "new", now, 0), ""))
	f := open(t, folder, s.source(key))
	take(t, f)
	s.set(body(key.sign(t, "old", now.Add(-time.Minute), 0), ""))
	refuses(t, f, "issued before the last good one")
	refuses(t, open(t, folder, s.source(key)), "issued before the last good one")
	must(t, os.Remove(filepath.Join(f.store.folder, f.State().Content+contentSuffix)))
	again := open(t, folder, s.source(key))
	if _, err := again.Fetch(t.Context()); !errors.Is(err, ErrOlder) {
		t.Errorf("after the bundle was lost: %v", err)
	}
	s.set(body(key.sign(t, "same second", now, 0), ""))
	if a := take(t, again); !a.Newer {
		t.Error("one of the same second is not older")
	}
}

// TestADiskThatIsFull has the bundle count all the same, and written later.
func TestADiskThatIsFull(t *testing.T) {
	key := newSigner(t)
	folder := t.TempDir()
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", time.Now(), 0), `"1"`))
	f := open(t, folder, s.source(key))
	must(t, os.WriteFile(f.store.folder, nil, 0o600)) // where its folder would be
	a, err := f.Fetch(t.Context())
	must(t, err)
	if err := f.Accept(a); err == nil || !strings.Contains(err.Error(), "not kept on disk") {
		t.Errorf("accepted: %v", err)
	}
	if b, err := f.Good(); err != nil || b.Revision != "one" || f.Stale() != "" {
		t.Errorf("%+v, %v, stale %q", b, err, f.Stale())
	}
	must(t, os.Remove(f.store.folder))
	take(t, f) // 304
	if b, err := open(t, folder, s.source(key)).Good(); err != nil || b.Revision != "one" {
		t.Errorf("later: %+v, %v", b, err)
	}
}

func TestTheGuardDeniesWhatIsStaleAndNamesNoHost(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", time.Now(), 0), ""))
	f := open(t, t.TempDir(), s.source(key))
	ask := func() policy.Decision {
		d, err := f.Guard().Evaluate(t.Context(), &policy.Request{})
		must(t, err)
		return d
	}
	if d := ask(); d.Verdict != policy.Deny || d.Class != policy.PolicyError || !strings.HasPrefix(d.Reason, "the policy's bundle is stale: ") || strings.Contains(d.Reason, "127.0.0.1") {
		t.Errorf("before there was one: %+v", d)
	}
	take(t, f)
	if d := ask(); d.Verdict != policy.Abstain {
		t.Errorf("while it counts: %+v", d)
	}
	s.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	refuses(t, f, "status 502")
	if d := ask(); d.Verdict != policy.Abstain {
		t.Errorf("after one failure: %+v", d)
	}
}
