package daemon

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/sandbox"
)

func TestAGrantIsForItsSandboxAndGoesWithIt(t *testing.T) {
	const two = "sandboxes: [{name: ci, source: [\"127.0.0.0/30\"]}, {name: web, source: [\"127.0.1.0/30\"]}]\n"
	w := newGrantsWorld(t, two)
	a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{"a.test"}, Seconds: 60, Sandbox: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.api().grant(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.connect(t, "a.test:443"); status != 403 {
		t.Errorf("another sandbox is answered %d", status)
	}
	w.rewrite(t, "sandboxes: [{name: ci, source: [\"127.0.0.0/30\"]}]\n")
	if err := w.reloads.reload(t.Context(), "test", true); err != nil || len(w.grants.live()) != 0 {
		t.Errorf("a grant to nobody stays: %v", err)
	}
	if _, err := w.api().grant(t.Context(), a); err == nil || !strings.Contains(err.Error(), "there is no sandbox \"web\"") {
		t.Errorf("granted to nobody: %v", err)
	}
}

// TestAGrantToWhoeverHandsANetworkIn is by a name that no file has.
func TestAGrantToWhoeverHandsANetworkIn(t *testing.T) {
	for _, row := range []struct{ lines, why string }{
		{"", "lists no sandboxes, so there is none called \"agent\""},
		{"listen: {proxy: [\"127.0.0.1:0\"], enter: [\"unix:" + filepath.Join(t.TempDir(), "attach", "enter.sock") + "\"]}\n", ""},
	} {
		w := newGrantsWorld(t, row.lines)
		ask := func(name string) (admin.Granted, error) {
			a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{"a.test"}, Seconds: 60, Sandbox: name})
			if err != nil {
				t.Fatal(err)
			}
			return w.api().grant(t.Context(), a)
		}
		done, err := ask("agent")
		if row.why != "" && (err == nil || !strings.Contains(err.Error(), row.why)) || row.why == "" && (err != nil || len(done.Warnings) != 1) {
			t.Errorf("%q: %+v, %v", row.lines, done, err)
		}
		if done, err := ask(sandbox.Default); err != nil || len(done.Warnings) != 0 {
			t.Errorf("%q: to the default %+v, %v", row.lines, done, err)
		}
	}
}

func TestGrantedAgainIsGrantedForTheTimeThatIsSaid(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	first := w.gets(t, "allow", time.Hour, "new.test").Grants[0]
	for _, lasts := range []time.Duration{3 * time.Hour, time.Minute} {
		again := w.gets(t, "allow", lasts, "new.test").Grants
		if len(again) != 1 || again[0].ID != first.ID || again[0].Seconds != lasts.Seconds() || len(w.grants.live()) != 1 {
			t.Errorf("for %s: %+v", lasts, again)
		}
	}
	if done := w.gets(t, "allow", time.Hour, "a.test", "new.test", "new.test"); !slices.Equal(done.Already, []string{"a.test"}) || len(done.Grants) != 1 {
		t.Errorf("with what the file allows: %+v", done)
	}
	digest := w.Gate.Digest()
	if done := w.gets(t, "allow", time.Hour, "a.test"); len(done.Grants) != 0 || w.Gate.Digest() != digest {
		t.Errorf("what the file allows alone: %+v", done)
	}
}

func TestWhatIsAskedForIsReadStrictly(t *testing.T) {
	w := newGrantsWorld(t, "deny: [shut.test]\ntests: [\"deny tested.test\"]\n")
	many := make([]string, patternsMost+1)
	for i := range many {
		many[i] = "h" + strconv.Itoa(i) + ".test"
	}
	for says, q := range map[string]admin.GrantRequest{
		"the verdict is":                       {Verdict: "ask", Patterns: []string{"a.test"}, Seconds: 60},
		"a grant is for 1 second to 24h":       {Verdict: "allow", Patterns: []string{"a.test"}},
		"a grant is for 1 second":              {Verdict: "allow", Patterns: []string{"a.test"}, Seconds: 86401},
		"a grant is for":                       {Verdict: "allow", Patterns: []string{"a.test"}, Seconds: -1 << 63},
		"1 to 64 hosts":                        {Verdict: "deny", Seconds: 60},
		"1 to 64 hosts are":                    {Verdict: "deny", Patterns: many, Seconds: 60},
		"not the id of a request":              {Verdict: "allow", Patterns: []string{"a.test"}, Seconds: 60, From: "x\x1b[2J"},
		"no name of a sandbox":                 {Verdict: "allow", Patterns: []string{"a.test"}, Seconds: 60, Sandbox: "a\nb"},
		"is not a pattern":                     {Verdict: "deny", Patterns: []string{"a.test\x1b]0;"}, Seconds: 60},
		"every domain that anyone registers":   {Verdict: "allow", Patterns: []string{"*.com"}, Seconds: 60},
		"allows every public host":             {Verdict: "allow", Patterns: []string{"*:*"}, Seconds: 60},
		"is metadata":                          {Verdict: "allow", Patterns: []string{"169.254.169.254"}, Seconds: 60},
		"10.0.0.5:80 is a private address":     {Verdict: "allow", Patterns: []string{"10.0.0.5:80"}, Seconds: 60},
		"[::ffff:10.0.0.5]:80":                 {Verdict: "allow", Patterns: []string{"[::ffff:10.0.0.5]:80"}, Seconds: 60},
		"is loopback":                          {Verdict: "allow", Patterns: []string{"localhost"}, Seconds: 60},
		"shut.test:443 would stay refused":     {Verdict: "allow", Patterns: []string{"fine.test", "shut.test"}, Seconds: 60},
		"the test \"deny tested.test\" failed": {Verdict: "allow", Patterns: []string{"tested.test"}, Seconds: 60},
	} {
		digest := w.Gate.Digest()
		a, err := parseGrantRequest(someone, q)
		if err == nil {
			_, err = w.api().grant(t.Context(), a)
		}
		var why *admin.Unavailable
		if !errors.As(err, &why) || !strings.Contains(why.Why, says) || why.Status != http.StatusUnprocessableEntity || why.Hint == "" {
			t.Errorf("%+.80v: %v, want %q", q, err, says)
		}
		if w.Gate.Digest() != digest || len(w.grants.live()) != 0 {
			t.Fatalf("%s: something was granted", says)
		}
	}
}

// TestAGrantOpensWhatARuleRefusesOnlyIfItIsWrittenForThat: without that, what to type is said; with it, which rule stands
// back is.
func TestAGrantOpensWhatARuleRefusesOnlyIfItIsWrittenForThat(t *testing.T) {
	w := newGrantsWorld(t, "ask: [\"*.a.test\", b.test]\ndeny: [\"*.bad.test\"]\nallow: [c.test]\n")
	if done := w.gets(t, "allow", time.Hour, "d.test"); len(done.Warnings) != 0 {
		t.Errorf("of a host that no rule is about: %q", done.Warnings)
	}
	for pattern, hint := range map[string]string{"api.a.test": "egressd answer ID yes", "b.test": "egressd answer ID yes", "x.bad.test": "egressd allow x.bad.test:443 --over-deny"} {
		_, err := w.asks(t, "allow", time.Hour, pattern)
		var why *admin.Unavailable
		if !errors.As(err, &why) || !strings.Contains(why.Hint, hint) {
			t.Errorf("%s: %+v", pattern, err)
		}
	}
	for pattern, warning := range map[string]string{
		"api.a.test": "rule ask[0] asks a person about api.a.test:443, and does not until the grant ends",
		"x.bad.test": "rule deny[0] denies x.bad.test:443, and does not until the grant ends",
	} {
		a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{pattern}, Seconds: 60, OverDeny: true})
		if err != nil {
			t.Fatal(err)
		}
		done, err := w.api().grant(t.Context(), a)
		if err != nil || !slices.Equal(done.Warnings, []string{warning}) || !done.Grants[0].OverDeny {
			t.Errorf("%s: %+v, %v", pattern, done, err)
		}
	}
	if _, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "deny", Patterns: []string{"a.test"}, Seconds: 60, OverDeny: true}); err == nil {
		t.Error("a deny is granted over denies")
	}
}

// TestWhatTakesTooLongToJudgeIsNotGranted: what was judged by then says nothing of the rest.
func TestWhatTakesTooLongToJudgeIsNotGranted(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{"a.test", "b.test:*"}, Seconds: 60})
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if done, err := w.api().grant(over, a); err == nil || !strings.Contains(err.Error(), "it takes longer than 5s") || len(w.grants.live()) != 0 {
		t.Errorf("granted %+v, %v", done, err)
	}
}

func TestGrantsAreBounded(t *testing.T) {
	w := newGrantsWorld(t, "allow: [a.test]\n")
	next := 0
	some := func(n int) (all []string) {
		for range n {
			all = append(all, "h"+strconv.Itoa(next)+".test")
			next++
		}
		return all
	}
	for range grantsMost / patternsMost {
		w.gets(t, "allow", time.Hour, some(patternsMost)...)
	}
	digest := w.Gate.Digest()
	for _, verdict := range []string{"allow", "deny"} {
		if _, err := w.asks(t, verdict, time.Hour, some(1)...); err == nil || !strings.Contains(err.Error(), "no more than 256") {
			t.Errorf("%s, one more: %v", verdict, err)
		}
	}
	w.gets(t, "allow", time.Hour, "h0.test") // is none more
	if digest != w.Gate.Digest() || len(w.grants.live()) != grantsMost {
		t.Errorf("there are %d", len(w.grants.live()))
	}
	if err := w.reloads.reload(t.Context(), "test", true); err != nil || len(w.grants.live()) != grantsMost {
		t.Errorf("after a reload there are %d: %v", len(w.grants.live()), err)
	}
	w.pass(time.Hour)
	w.grants.expire(t.Context())
	w.gets(t, "deny", time.Hour, some(1)...)
}

// TestADryRunGrantsNothing judges what it would open, and changes and records nothing.
func TestADryRunGrantsNothing(t *testing.T) {
	w := newGrantsWorld(t, "deny: [no.test]\n")
	digest := w.policy.Digest()
	ask := func(host string, dry bool) (admin.Granted, error) {
		a, err := parseGrantRequest(someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{host}, Seconds: 60, DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		return w.api().grant(t.Context(), a)
	}
	done, err := ask("a.test:443", true)
	if err != nil || len(done.Grants) != 1 || done.Opens == "" || done.Policy != digest {
		t.Errorf("%+v, %v", done, err)
	}
	if status, _ := w.connect(t, "a.test:443"); status != 403 || len(w.grants.live()) != 0 || w.policy.Digest() != digest {
		t.Errorf("a dry run opens something: %d, %v", status, w.grants.live())
	}
	again, err := ask("a.test:443", false)
	if err != nil || again.Opens != done.Opens {
		t.Errorf("it opens %q, and the dry run said %q: %v", again.Opens, done.Opens, err)
	}
	_, dry := ask("no.test:443", true)
	_, wet := ask("no.test:443", false)
	if dry == nil || wet == nil || dry.Error() != wet.Error() {
		t.Errorf("a dry run is refused with %v, and otherwise %v", dry, wet)
	}
}
