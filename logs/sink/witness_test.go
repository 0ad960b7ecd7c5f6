//go:build linux

package sink

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/internal/lab/witness"
)

// A witnessed is a witness and where it listens.
type witnessed struct {
	*witness.Witness
	*httptest.Server
}

func newWitnessServer(t *testing.T) *witnessed {
	t.Helper()
	w := witness.New()
	s := httptest.NewServer(w)
	t.Cleanup(s.Close)
	return &witnessed{w, s}
}

// cosignedBy is a log whose checkpoints a witness cosigns, that knows it already.
func cosignedBy(t *testing.T, w *witnessed, every time.Duration) *anchored {
	t.Helper()
	a := newAnchored(t)
	origin, _ := a.log.Origin()
	identity, _, err := audit.OpenIdentity(a.dir, "", origin)
	if err != nil {
		t.Fatal(err)
	}
	w.Trust(identity.Public())
	a.ask(w, every)
	return a
}

func (a *anchored) ask(w *witnessed, every time.Duration) {
	a.Helper()
	if err := a.anchors.Apply(nil, []Witness{{URL: w.URL + "/prefix/", Key: w.Public(), Every: every}}); err != nil {
		a.Fatal(err)
	}
}

// cosigned returns for how many records of the log the witness vouches, -1 where the
// log is not good or not cosigned.
func (a *anchored) cosigned(w *witnessed) int64 {
	a.Helper()
	k, err := verify.ParseWitnessKey(w.Public())
	if err != nil {
		a.Fatal(err)
	}
	r, err := verify.LogWith(a.dir, a.key, nil, verify.Witnessed{By: []verify.WitnessKey{k}, Within: time.Minute})
	if err != nil || r.Code != verify.Good {
		return -1
	}
	return r.Records - r.Unvouched
}

func (a *anchored) heardOf(text string) func() bool {
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return strings.Contains(strings.Join(a.heard, "\n"), text)
	}
}

// TestWitnessCosigns follows a log over several segments and epochs, a start of
// egressd, and a witness that was away.
func TestWitnessCosigns(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	for n := range int64(5) {
		a.write(3)
		a.until("a cosignature", func() bool { return a.cosigned(w) == 3*(n+1) })
	}
	w.Instead(status(http.StatusServiceUnavailable))
	a.write(9)
	a.until("word of the outage", a.heardOf("the witness answered 503"))
	if n := a.cosigned(w); n != 15 {
		t.Errorf("%d records are cosigned during the outage", n)
	}
	w.Instead(nil)
	a.until("what was missed", func() bool { return a.cosigned(w) == 24 })
	a.until("word that it works", func() bool { _, well := a.said(); return well > 0 })
	if n := w.Answers(http.StatusConflict); n != 0 {
		t.Errorf("the witness had to contradict %d times", n)
	}
	if s, err := AnchorStateOf(a.dir, w.URL+"/prefix/"); err != nil || s.Failing {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestWitnessOfAReopenedLog: keys change, the witness knows the log all the same.
func TestWitnessOfAReopenedLog(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	for n := range int64(3) {
		a.write(4)
		a.reopen(w)
		a.until("a cosignature", func() bool { return a.cosigned(w) == 4*(n+1) })
	}
	a.write(4)
	a.end()                                                               // the goroutine of the anchors writes into their folder until then
	if err := os.RemoveAll(filepath.Join(a.dir, "anchors")); err != nil { // where it was is not known any more
		t.Fatal(err)
	}
	a.begin(w)
	a.until("a cosignature", func() bool { return a.cosigned(w) == 16 })
	w.Forget() // it has lost what it knew
	a.write(4)
	a.until("a cosignature", func() bool { return a.cosigned(w) == 20 })
}

// reopen ends the log and its anchors, and begins them again, as two starts of egressd do.
func (a *anchored) reopen(w *witnessed) {
	a.Helper()
	a.end()
	a.begin(w)
}

func (a *anchored) end() {
	a.Helper()
	if err := a.log.Close(); err != nil {
		a.Fatal(err)
	}
	a.anchors.Stop(10 * time.Second)
}

func (a *anchored) begin(w *witnessed) {
	a.Helper()
	a.log = a.open(a.dir, a.anchors)
	a.anchors.Send(a.log.Newest())
	a.ask(w, time.Millisecond)
}

func (a *anchored) open(dir string, anchors *Anchors) *audit.Log {
	a.Helper()
	l, err := audit.Open(dir, audit.Options{Durability: audit.Process, Anchor: anchors.Send, SegmentBytes: 1000})
	if err != nil {
		a.Fatal(err)
	}
	return l
}

// TestWitnessIsAskedSeldom: of many checkpoints it gets the first at once, and the last
// when egressd stops.
func TestWitnessIsAskedSeldom(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Hour)
	a.write(1)
	a.until("the first", func() bool { return w.Size() == 1 })
	a.write(9)
	a.anchors.Stop(10 * time.Second)
	if n := w.Answers(http.StatusOK); n != 2 || a.cosigned(w) != 10 {
		t.Errorf("%d checkpoints were cosigned, the last of %d records", n, w.Size())
	}
}

// TestWitnessSignsAgain: a log in which nothing happens is cosigned once more, so that
// its cosignature does not get old.
func TestWitnessSignsAgain(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	a.write(1)
	a.until("the first", func() bool { return a.cosigned(w) == 1 })
	target, err := newWitnessTarget(&Witness{URL: w.URL + "/prefix", Key: w.Public()}, a.dir, "", testOrigin, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := &runningAnchor{anchor: a.anchors.newAnchor("witness", w.URL), ended: make(chan struct{})}
	again.target, again.again = target, time.Millisecond
	a.anchors.mu.Lock()
	a.anchors.start(w.URL, again)
	a.anchors.mu.Unlock()
	before := w.Answers(http.StatusOK)
	a.until("more cosignatures", func() bool { return w.Answers(http.StatusOK) >= before+5 })
	if w.Size() != 1 {
		t.Errorf("the witness has %d records", w.Size())
	}
}

// TestWitnessKnowsACutLog: a log that was put back to an earlier state is not cosigned,
// and egressd says why, also once it has grown again.
func TestWitnessKnowsACutLog(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	a.write(3)
	a.until("a cosignature", func() bool { return a.cosigned(w) == 3 })
	a.log.Close()
	a.anchors.Stop(10 * time.Second)
	before := filepath.Join(t.TempDir(), "log")
	keys, keysBefore := filepath.Join(filepath.Dir(a.dir), "log-keys"), filepath.Join(filepath.Dir(before), "log-keys")
	copyFolder(t, a.dir, before)
	copyFolder(t, keys, keysBefore)
	origin, _, _ := strings.Cut(a.key, "+")
	for _, extension := range []string{".key", ".witness"} {
		if err := os.Chmod(filepath.Join(keysBefore, strings.TrimPrefix(origin, "egressd/")+extension), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.log = a.open(a.dir, a.anchors)
	a.ask(w, time.Millisecond)
	a.write(5)
	a.until("a cosignature", func() bool { return a.cosigned(w) == 8 })

	b := &anchored{T: t, dir: before, key: a.key}
	b.anchors = NewAnchors(b.dir, testOrigin, func(err error) { b.note(&b.heard, err.Error()) }, func(s string) { b.note(&b.wellSaid, s) })
	b.anchors.backoff, b.anchors.settle = quick, 50*time.Millisecond
	b.log = b.open(before, b.anchors)
	t.Cleanup(func() { b.log.Close(); b.anchors.Stop(0) })
	b.write(1)
	b.ask(w, time.Millisecond)
	b.until("word of it", b.heardOf("the witness has cosigned 8 records of this log, and it has 4"))
	b.write(10)
	b.until("word of what it is now", func() bool {
		s, err := AnchorStateOf(before, w.URL+"/prefix/")
		return err == nil && strings.Contains(s.Error, "this is not the log of which it has cosigned 8 records")
	})
	if n := w.Size(); n != 8 {
		t.Errorf("the witness has %d records", n)
	}
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestWitnessOfALogThatOthersWrite: where another process has had a newer checkpoint
// cosigned, that is no harm.
func TestWitnessOfALogThatOthersWrite(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	a.write(2)
	old := a.log.Newest()
	a.write(3)
	a.until("a cosignature", func() bool { return a.cosigned(w) == 5 })
	a.anchors.Stop(10 * time.Second)
	other := NewAnchors(a.dir, testOrigin, func(err error) { t.Error(err) }, func(string) {})
	other.Send(old)
	if err := other.Apply(nil, []Witness{{URL: w.URL + "/prefix/", Key: w.Public()}}); err != nil {
		t.Fatal(err)
	}
	a.until("the answer", func() bool { return w.Answers(http.StatusConflict) > 0 && a.cosigned(w) == 5 })
	other.Stop(10 * time.Second)
}

// TestWitnessThatIsNone: what is no cosignature is not kept, and the operator hears why.
func TestWitnessThatIsNone(t *testing.T) {
	for name, row := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"no such log": {status(404), "have its operator add egressd/"},
		"another key": {status(403), "it knows this log by another key than egressd/"},
		"another log": {status(422), "this is not the log of which it has cosigned"},
		"an error":    {status(500), "the witness answered 500"},
		"a redirect": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "the witness answered 307"},
		"no signature":       {status(200), "the witness has not signed it"},
		"a conflict of none": {status(409), "not which checkpoint it has"},
		"a conflict without end": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/x.tlog.size")
			rw.WriteHeader(409)
			rw.Write([]byte("7\n7\n"))
		}, "not which checkpoint it has"},
		"an answer without end": {func(rw http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := rw.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "the witness has not signed it"},
	} {
		w := newWitnessServer(t)
		w.Instead(row.answer)
		a := cosignedBy(t, w, time.Millisecond)
		a.write(1)
		a.until(name, a.heardOf(row.says))
		if files, _ := filepath.Glob(filepath.Join(a.dir, "witnesses", "*")); len(files) > 0 {
			t.Errorf("%s: %q", name, files)
		}
		a.anchors.Stop(0)
	}
}

func status(code int) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
}

// TestWitnessThatHangs: nobody waits for it, neither the log nor a reload.
func TestWitnessThatHangs(t *testing.T) {
	w := newWitnessServer(t)
	a := cosignedBy(t, w, time.Millisecond)
	asked, done := make(chan struct{}, 8), make(chan struct{})
	t.Cleanup(func() { close(done) }) // before the server is closed, which waits for it
	w.Instead(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-done:
		case <-r.Context().Done():
		}
	})
	a.write(1)
	<-asked
	a.write(9)
	first := a.anchors.running[w.URL+"/prefix/"]
	a.ask(w, time.Minute) // changed: begun anew
	<-asked
	second := a.anchors.running[w.URL+"/prefix/"]
	if err := a.anchors.Apply(nil, nil); err != nil {
		t.Fatal(err)
	}
	<-first.ended // which it does although it hangs
	<-second.ended
}

func TestCheckWitnesses(t *testing.T) {
	w := newWitnessServer(t)
	for name, row := range map[string]Witness{
		"no url":       {Key: w.Public()},
		"another one":  {URL: "ftp://a.test", Key: w.Public()},
		"a password":   {URL: "https://a:b@a.test", Key: w.Public()},
		"a query":      {URL: "https://a.test?x=y", Key: w.Public()},
		"no key":       {URL: "https://a.test"},
		"a log's key":  {URL: "https://a.test", Key: "egressd/00112233445566778899aabbccddeeff+ba249c37+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c"},
		"a wrong hash": {URL: "https://a.test", Key: strings.Replace(w.Public(), "witness", "whitness", 1)},
	} {
		if err := CheckWitnesses([]Witness{row}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := CheckWitnesses([]Witness{{URL: w.URL, Key: w.Public()}}); err != nil {
		t.Error(err)
	}
}
