package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A grantsWorld is a daemon whose goroutine that reloads is the test, with a clock of the
// test's, and what it says.
type grantsWorld struct {
	regoWorld
	clock atomic.Int64
	talk  talked
}

// talked is what is said, by whichever goroutine.
type talked struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *talked) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *talked) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// someone is who asks for grants in tests.
var someone = admin.Operator{UID: 1000, PID: 77}

// api is what operators reach.
func (w *grantsWorld) api() grantsAPI { return grantsAPI{&w.grants} }

func newGrantsWorld(t *testing.T, lines string) *grantsWorld {
	t.Helper()
	w := &grantsWorld{regoWorld: regoWorld{dir: t.TempDir()}}
	path := filepath.Join(w.dir, "egressd.yaml")
	names := nameServer(t)
	writeFile(t, path, grantsFile(names, lines))
	w.Daemon = started(t, &w.talk, path)
	t.Cleanup(func() { w.stop(0) })
	w.grants.clock = func() time.Duration { return time.Duration(w.clock.Load()) }
	w.proxy = w.listeners.listening[0].Addr().String()
	return w
}

func grantsFile(names, lines string) string {
	if !strings.HasPrefix(lines, "listen:") {
		lines = "listen: {proxy: [\"127.0.0.1:0\"]}\n" + lines
	}
	return fmt.Sprintf("version: 1\naudit: {dir: audit}\nupstream: {dns: [%q]}\nunsafe_allow: [\"127.0.0.1:*\"]\n%s", names, lines)
}

// pass has some time go by.
func (w *grantsWorld) pass(some time.Duration) { w.clock.Add(int64(some)) }

// rewrite replaces the lines of the file that follow those that every world has.
func (w *grantsWorld) rewrite(t *testing.T, lines string) {
	t.Helper()
	writeFile(t, w.Path, grantsFile(w.Config.File.Upstream.DNS[0], lines))
}

// asks has something allowed or denied for a while.
func (w *grantsWorld) asks(t *testing.T, verdict string, lasts time.Duration, patterns ...string) (admin.Granted, error) {
	t.Helper()
	a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: verdict, Patterns: patterns, Seconds: int64(lasts / time.Second)})
	if err != nil {
		return admin.Granted{}, err
	}
	return w.api().grant(t.Context(), a)
}

// gets is asks that has to go well.
func (w *grantsWorld) gets(t *testing.T, verdict string, lasts time.Duration, patterns ...string) admin.Granted {
	t.Helper()
	done, err := w.asks(t, verdict, lasts, patterns...)
	if err != nil {
		t.Fatalf("%s %v: %v", verdict, patterns, err)
	}
	if done.Policy != w.Gate.Digest() {
		t.Fatalf("acknowledged before it is in force: %s, and %s is", done.Policy, w.Gate.Digest())
	}
	return done
}

// isCut reports whether a tunnel ends, of which nothing else comes.
func isCut(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// noted reports whether there is an admin record that begins so.
func (w *grantsWorld) noted(t *testing.T, begin string) bool {
	t.Helper()
	return w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, begin)
	}).Note != ""
}

func TestAGrantPassesUntilItsEnd(t *testing.T) {
	w := newGrantsWorld(t, "allow: [other.test]\n")
	host := "a.test:" + silent(t)
	before := w.Gate.Digest()
	if status, _ := w.connect(t, host); status != 403 {
		t.Fatalf("before: %d", status)
	}
	done := w.gets(t, "allow", time.Hour, host)
	id := done.Grants[0].ID
	if w.Gate.Digest() == before {
		t.Error("the digest does not name what is in force")
	}
	c, refused := w.tunnel(t, host)
	if c == nil {
		t.Fatalf("granted: %s", refused)
	}
	defer c.Close()
	w.pass(time.Hour - 1)
	w.grants.expire(t.Context())
	if left := w.api().List(); len(left.Grants) != 1 || left.Grants[0].Seconds > 1 || w.Gate.Flows.Count() != 1 {
		t.Errorf("right before the end: %+v, %d flows", left, w.Gate.Flows.Count())
	}
	w.pass(1) // and nobody has had the time to take it out
	if status, _ := w.connect(t, host); status != 403 {
		t.Errorf("at the end: %d", status)
	}
	if left := w.api().List(); len(left.Grants) != 0 {
		t.Errorf("it is listed: %+v", left)
	}
	w.grants.expire(t.Context())
	if !isCut(t, c) {
		t.Error("its tunnel is open")
	}
	if w.Gate.Digest() != before {
		t.Error("the digest is not that of the file")
	}
	at := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindAdmin })
	if !w.noted(t, "grant "+id+" for 1h, until ") || !strings.HasPrefix(at.Note, "grant "+id+" has ended: allow a.test:") {
		t.Errorf("the log says %q", at.Note)
	}
	if r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen && r.Decision.Action == "allow" }); r.Decision.Rule != "grant:"+id || r.Decision.Policy != done.Policy {
		t.Errorf("it passed by %+v", r.Decision)
	}
}

func TestWhatIsRevokedIsCut(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	host := "c.test:" + silent(t)
	id := w.gets(t, "allow", time.Hour, host).Grants[0].ID
	c, refused := w.tunnel(t, host)
	if c == nil {
		t.Fatal(refused)
	}
	defer c.Close()
	if done, err := w.api().revoke(t.Context(), someone, id); err != nil || done.Revoked.ID != id || done.Policy != w.Gate.Digest() {
		t.Errorf("revoked: %+v, %v", done, err)
	}
	if !isCut(t, c) {
		t.Error("a tunnel is open that only the grant allowed")
	}
	if _, err := w.api().revoke(t.Context(), someone, id); err == nil {
		t.Error("revoked twice")
	}
	if !w.noted(t, "revoke grant "+id+": allow "+host+", asked by uid 1000, pid 77") {
		t.Error("and that is not in the log")
	}
}

func TestWhatIsDeniedIsCutUntilThatIsRevoked(t *testing.T) {
	w := newGrantsWorld(t, "allow: [\"a.test:*\"]\ntests: [\"allow a.test:22\"]\n")
	host := "a.test:" + silent(t)
	c, refused := w.tunnel(t, host)
	if c == nil {
		t.Fatal(refused)
	}
	defer c.Close()
	id := w.gets(t, "deny", time.Hour, "*.test:*").Grants[0].ID
	if !isCut(t, c) {
		t.Error("a tunnel to what is denied is open")
	}
	if status, text := w.connect(t, host); status != 403 || !strings.Contains(text, `"rule":"grant:`+id+`"`) {
		t.Errorf("denied: %d %s", status, text)
	}
	if _, err := w.asks(t, "allow", time.Hour, "b.test"); err == nil || !strings.Contains(err.Error(), "would stay refused") {
		t.Errorf("allowed all the same: %v", err)
	}
	if _, err := w.api().revoke(t.Context(), someone, id); err != nil {
		t.Fatal(err)
	}
	if c, refused = w.tunnel(t, host); c == nil {
		t.Fatalf("afterwards: %s", refused)
	}
	c.Close()
}

func TestAReloadKeepsTheGrantsThatItHasRoomFor(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	w.gets(t, "allow", time.Hour, "kept.test", "shut.test", "tested.test", "*.both.test")
	w.gets(t, "deny", time.Hour, "a.test")
	digest := w.Gate.Digest()

	w.rewrite(t, "allow: [a.test]\ntests: [\"deny a.test\"]\n")
	if w.reloads.reload(t.Context(), "test", true) == nil || w.Gate.Digest() != digest || len(w.grants.live()) != 5 {
		t.Errorf("a file that is wrong: %d grants", len(w.grants.live()))
	}
	meanwhile := w.gets(t, "allow", time.Minute, "late.test")
	if len(meanwhile.Warnings) != 1 || !strings.Contains(meanwhile.Warnings[0], "is not in force as it is now") {
		t.Errorf("and nobody says so: %q", meanwhile.Warnings)
	}
	if s := w.current.Load().show(); s.Rejected == nil || !s.Rejected.Current || s.OK {
		t.Errorf("a grant hides that the reload was rejected: %+v", s.Rejected)
	}
	if s := w.policyStatus(t); s.OK || s.Rejected == nil || !s.Rejected.Current || s.Policy != w.Gate.Digest() {
		t.Errorf("and so does the log: %+v", s)
	}

	w.rewrite(t, "deny: [shut.test]\ntests: [\"deny tested.test\", \"allow a.test\"]\nallow: [a.test, x.both.test]\n")
	if err := w.reloads.reload(t.Context(), "test", true); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, g := range w.api().List().Grants {
		left = append(left, g.Pattern)
	}
	if want := []string{"kept.test", "*.both.test", "a.test", "late.test"}; !slices.Equal(left, want) {
		t.Errorf("after the reload there are %q, want %q", left, want)
	}
	for host, want := range map[string]string{"kept.test": "allow", "shut.test": "deny", "tested.test": "deny", "y.both.test": "allow", "a.test": "deny"} {
		if got := w.verdict(t, host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	for _, said := range []string{"counts no longer with the new policy (rule deny[0] denies shut.test:443): allow shut.test", "allow tested.test"} {
		if !strings.Contains(w.talk.String(), said) {
			t.Errorf("it does not say %q:\n%s", said, &w.talk)
		}
	}
	w.pass(2 * time.Hour)
	if err := w.reloads.reload(t.Context(), "test", true); err != nil || len(w.current.Load().grants) != 0 {
		t.Errorf("what has ended by the reload is there: %v", err)
	}
	if !strings.Contains(w.talk.String(), "has ended: allow kept.test") {
		t.Error("and nobody says that it has ended")
	}
}

// verdict is what the policy in force says of a host.
func (w *grantsWorld) verdict(t *testing.T, host string) string {
	t.Helper()
	p, err := policy.ParsePattern(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range sandboxesOf(w.Config, "") {
		if opens, _ := w.policy.Opens(t.Context(), policy.Opening{Pattern: p}, who); opens {
			return "allow"
		}
	}
	return "deny"
}

func TestWhatCannotBeRecordedIsNotGranted(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	w.gets(t, "allow", time.Minute, "old.test")
	digest := w.Gate.Digest()
	w.Log.Close()
	for _, verdict := range []string{"allow", "deny"} {
		var why *admin.Unavailable
		if _, err := w.asks(t, verdict, time.Hour, "new.test"); !errors.As(err, &why) || why.Status != http.StatusServiceUnavailable {
			t.Errorf("%s: %v", verdict, err)
		}
	}
	if _, err := w.api().revoke(t.Context(), someone, w.grants.live()[0].ID); err == nil {
		t.Error("revoked")
	}
	if w.Gate.Digest() != digest || len(w.grants.live()) != 1 || w.verdict(t, "new.test") != "deny" || w.verdict(t, "old.test") != "allow" {
		t.Errorf("something changed: %d grants", len(w.grants.live()))
	}
	w.pass(time.Minute)
	w.grants.expire(t.Context())
	w.pass(retryEnd)
	w.grants.expire(t.Context())
	if w.verdict(t, "old.test") != "deny" {
		t.Error("a grant goes on where its end cannot be recorded")
	}
	if n := strings.Count(w.talk.String(), "put the end of a grant in force"); n != 1 {
		t.Errorf("its end was complained of %d times", n)
	}
	w.grants.ends.mu.Lock()
	defer w.grants.ends.mu.Unlock()
	if _, over, wait := w.grants.ends.look(w.current.Load().grants, w.grants.now()); !over || wait != retryEnd {
		t.Errorf("it is tried again in %s", wait)
	}
}

// TestCredentialsAreThereWhateverIsGranted: those of the policy before, which are read again.
func TestCredentialsAreThereWhateverIsGranted(t *testing.T) {
	t.Setenv("GRANTS_KEY", "a-secret-of-some-length")
	w := newGrantsWorld(t, "tls: {ca_dir: ca}\nallow: [{host: \"api.test:443\", id: key, inject: {header: Authorization, value: \"Bearer {}\", env: GRANTS_KEY}}]\n")
	has := func() bool { return w.keys.sent("key", w.Gate.Digest(), destination(t, "api.test:443")) != "" }
	if !has() {
		t.Fatal("there is none at the start")
	}
	one := (*w.keys.held.Load())[0].set.All()[0]
	id := w.gets(t, "allow", time.Hour, "new.test").Grants[0].ID
	if !has() || (*w.keys.held.Load())[0].set.All()[0] != one {
		t.Error("with a grant it is gone, or another")
	}
	if _, err := w.api().revoke(t.Context(), someone, id); err != nil || !has() {
		t.Errorf("without it, it is gone: %v", err)
	}
	held := len(*w.keys.held.Load())
	w.Log.Close()
	if _, err := w.asks(t, "deny", time.Hour, "new.test"); err == nil || len(*w.keys.held.Load()) != held {
		t.Errorf("%d sets are held for a policy that is not in force", len(*w.keys.held.Load())-held)
	}
}

// TestGrantsRaceWithReloadsAndTheirEnds has many come and go, while the policy is read again
// and flows are decided.
func TestGrantsRaceWithReloadsAndTheirEnds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	writeFile(t, path, grantsFile(nameServer(t), "allow: [a.test]\n"))
	d := started(t, io.Discard, path)
	before := d.Gate.Digest()
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		d.follow(ctx, nil)
		close(followed)
	}()
	o := grantsAPI{&d.grants}
	var asking sync.WaitGroup
	for i := range 4 {
		asking.Go(func() {
			for n := range 15 {
				verdict := []string{"allow", "deny"}[n%2]
				done, err := o.Grant(t.Context(), someone, admin.GrantRequest{Verdict: verdict, Patterns: []string{fmt.Sprintf("h%d-%d.test", i, n)}, Seconds: 60})
				if err != nil || len(done.Grants) != 1 {
					t.Errorf("%s: %+v, %v", verdict, done, err)
					return
				}
				if _, err := o.Revoke(t.Context(), admin.Operator{Addr: netip.MustParseAddrPort("127.0.0.1:1")}, done.Grants[0].ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asking.Go(func() {
		for range 15 {
			if _, err := d.admin.reloadFor(t.Context(), "test"); err != nil {
				t.Error(err)
			}
			o.List()
			d.admin.collect(new(admin.Metrics))
		}
	})
	asking.Wait()
	if d.Gate.Digest() != before || len(o.List().Grants) != 0 {
		t.Errorf("%d grants are left", len(o.List().Grants))
	}
	cancel()
	<-followed
	d.stop(0)
	var why *admin.Unavailable
	if _, err := o.Grant(t.Context(), someone, admin.GrantRequest{Verdict: "deny", Patterns: []string{"a.test"}, Seconds: 60}); !errors.As(err, &why) || why.Status != http.StatusServiceUnavailable {
		t.Errorf("after the end: %v", err)
	}
}

// TestAGrantSaysWhatItOpens, in its answer and in its record, with a request that both policies have decided.
func TestAGrantSaysWhatItOpens(t *testing.T) {
	w := newGrantsWorld(t, "allow: [other.test]\n")
	for pattern, want := range map[string]string{
		"a.test:443":   "opens CONNECT a.test:443",
		"*.b.test:80":  "opens GET http://any-host.any-host.b.test/",
		"c.test:22-23": "opens CONNECT c.test:22",
	} {
		done := w.gets(t, "allow", time.Minute, pattern)
		if !strings.HasPrefix(done.Opens, want) {
			t.Errorf("%s %s, want %s", pattern, done.Opens, want)
		}
		if !w.noted(t, "grant "+done.Grants[0].ID+" for") {
			t.Error("no record")
		}
	}
	if r := w.record(t, func(r *record.Record) bool {
		return strings.Contains(r.Note, "grant ") && strings.Contains(r.Note, "c.test") && r.Kind == record.KindAdmin
	}); !strings.Contains(r.Note, "that opens CONNECT c.test:22") {
		t.Errorf("the record says %q", r.Note)
	}
	if done := w.gets(t, "deny", time.Minute, "other.test"); !strings.HasPrefix(done.Opens, "closes CONNECT other.test:443") {
		t.Errorf("a deny %s", done.Opens)
	}
}
