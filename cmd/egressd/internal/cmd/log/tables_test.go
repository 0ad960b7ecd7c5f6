package log

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

var filterNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func opened(flow, host, action string) *record.Record {
	r := &record.Record{
		Kind: record.KindOpen, Flow: flow, Sandbox: "ci", Via: "connect", Time: filterNow,
		Dst:      &record.Destination{Host: host, Port: 443},
		Decision: &record.Decision{Action: action, Rule: "r1", Layer: "user"},
	}
	if action == "deny" {
		r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"}
	}
	return r
}

func closed(of *record.Record, up, down int64, outcome record.Outcome) *record.Record {
	r := *of
	r.Kind, r.Bytes, r.Outcome = record.KindClose, &record.Bytes{Up: up, Down: down}, outcome
	return &r
}

func TestNoFixIsOfferedForTheRest(t *testing.T) {
	const flood = 2*logs.MaxGroups + 1
	o := overview{Overview: &logs.Overview{}}
	for range 2 {
		for i := range flood {
			o.Add(opened("F", fmt.Sprintf("h%d.test", i), "deny"))
		}
		if !o.Exact() {
			o.Overview = o.Again()
		}
	}
	if rest := o.Section("deny")[0]; rest.Count != flood-logs.MaxGroups || remark(rest, "") != "" {
		t.Errorf("the rest is %d with the fix %q, want %d without one", rest.Count, remark(rest, ""), flood-logs.MaxGroups)
	}
}

func TestOverviewEscapesWhatASandboxWrote(t *testing.T) {
	r := opened("A", "a.test", "deny")
	r.HTTP = &record.HTTP{Method: "GET\x1b]0;owned\a\u202e", Path: "/"}
	r.Sandbox = "ci\x9b"
	o := overview{Overview: &logs.Overview{}}
	o.Add(r)
	var b strings.Builder
	if err := o.print(&b, filterNow, cli.Palette{}); err != nil {
		t.Fatal(err)
	}
	b.WriteString(line(r, filterNow, cli.Palette{}))
	for _, bad := range []string{"\x1b", "\a", "\u202e", "\x9b"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("%q reached the terminal:\n%s", bad, b.String())
		}
	}
}

func TestLineStaysShortWhateverThePath(t *testing.T) {
	r := opened("A", "a.test", "deny")
	r.Kind, r.HTTP = record.KindRequest, &record.HTTP{Method: "GET", Path: "/" + strings.Repeat("x", 2000)}
	if got := line(r, filterNow, cli.Palette{}); len(got) > 250 || !strings.Contains(got, "x…") {
		t.Errorf("a line of %d bytes: %s", len(got), got)
	}
}

func TestFixIsOfferedOnlyForPublicHostsThatNoRuleSpeaksOf(t *testing.T) {
	for _, row := range []struct {
		host, class, space string
		want               string // the host to allow
	}{
		{"pkgs.corp.example", "default-deny", "", "pkgs.corp.example"},
		{"93.184.216.34", "default-deny", "", "93.184.216.34"},
		{"2606:4700::1111", "default-deny", "", "2606:4700::1111"},
		{"pkgs.corp.example", "rule-deny", "", ""},
		{"pkgs.corp.example", "name-mismatch", "", ""},
		{"pkgs.corp.example", "address-denied", "private", ""},
		{"pkgs.corp.example", "default-deny", "private", ""},
		{"pkgs.corp.example", "unknown-sandbox", "", ""},
		{"169.254.169.254", "default-deny", "", ""},
		{"fd00:ec2::254", "default-deny", "", ""},
		{"10.0.0.1", "default-deny", "", ""},
		{"127.0.0.1", "default-deny", "", ""},
		{"metadata.google.internal", "default-deny", "", ""},
		{"localhost", "default-deny", "", ""},
		{"nas.local", "default-deny", "", ""},
		{"- evil.test\nallow", "default-deny", "", ""},
		{"*", "default-deny", "", ""},
		{"*.evil.test", "default-deny", "", ""},
		{"evil.test/8", "default-deny", "", ""},
		{"evil.test --save; x", "default-deny", "", ""},
		{"", "malformed-host", "", ""},
	} {
		r := opened("A", row.host, "deny")
		r.Decision.Class, r.Dst.Class = row.class, row.space
		want := ""
		if row.want != "" {
			want = "egressd allow " + row.want + " --from A"
		}
		if got := story.Fix(r); got != want {
			t.Errorf("fix for %s of %q (%s) is %q, want %q", row.class, row.host, row.space, got, want)
		}
	}
	if got := story.Fix(&record.Record{Kind: record.KindRefused, Decision: &record.Decision{Class: "default-deny"}}); got != "" {
		t.Errorf("fix without a destination is %q", got)
	}
}

func TestFixSaysThePortThatABareHostDoesNotMean(t *testing.T) {
	for _, row := range []struct {
		host string
		port uint16
		want string
	}{
		{"a.test", 80, "egressd allow a.test --from A"},
		{"a.test", 8443, "egressd allow a.test:8443 --from A"},
		{"2606:4700::1111", 22, "egressd allow '[2606:4700::1111]:22' --from A"},
		{"a.test", 0, "egressd allow a.test --from A"}, // a question has no port
	} {
		r := opened("A", row.host, "deny")
		r.Dst.Port = row.port
		if got := story.Fix(r); got != row.want {
			t.Errorf("fix for %s at port %d is %q, want %q", row.host, row.port, got, row.want)
		}
	}
	for path, fixed := range map[string]bool{"/a": true, "/": true, "/a*": false, "/a//b": false, "/%2fa": false, "/${HOME}": false, "*": false} {
		r := opened("A", "a.test", "deny")
		r.HTTP = &record.HTTP{Method: "GET", Path: path}
		if got := story.Fix(r); (got != "") != fixed {
			t.Errorf("fix for GET %s is %q", path, got)
		}
		if r.HTTP.PathCut = true; story.Fix(r) != "" {
			t.Errorf("there is a fix for a path that is cut")
		}
	}
	own := opened("A", "a.test", "deny")
	own.Decision.Layer, own.Decision.Rule = "sandbox", "rego"
	if got := story.Fix(own); got != "" {
		t.Errorf("fix for a sandbox with Rego of its own is %q", got)
	}
	if got := story.Fix(opened("", "a.test", "deny")); got != "" {
		t.Errorf("fix without an id is %q", got)
	}
}

func TestFixIsThatOfTheLastRefusal(t *testing.T) {
	last, first := opened("B", "a.test", "deny"), opened("A", "a.test", "deny")
	last.Time = last.Time.Add(time.Second)
	o := overview{Overview: &logs.Overview{}, flags: " --save --config x"}
	o.Add(last)
	o.Add(first)
	if got, want := remark(o.Section("deny")[0], o.flags), "egressd allow a.test --from B --save --config x"; got != want {
		t.Errorf("the fix is %q, want %q", got, want)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1234: "1.2 kB", 9_949: "9.9 kB", 9_950: "10 kB", 41_000_000: "41 MB",
		999_499: "999 kB", 999_500: "1.0 MB", 1_200_000_000: "1.2 GB", 9_000_000_000_000_000_000: "9000 PB",
	} {
		if got := quantity.Bytes(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestClockSaysTheDayWhereItIsNotToday(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.Local)
	if got := quantity.Clock(now.Add(-time.Hour), now); got != "11:00:00" {
		t.Errorf("an hour ago is %q", got)
	}
	if got := quantity.Clock(now.AddDate(0, 0, -1), now); got != "2026-11-19 12:00:00" {
		t.Errorf("a day ago is %q", got)
	}
}

// TestADistrustedCertificateIsSaid has a client that does not trust the local
// authority: what was allowed did not come about, and the log says why.
func TestADistrustedCertificateIsSaid(t *testing.T) {
	open := opened("A", "a.test", "allow")
	end := closed(open, 0, 0, "client-refused-our-certificate")
	end.Note = "write a.test under tls.never"
	o := overview{Overview: &logs.Overview{}}
	o.Add(end)
	var table, told strings.Builder
	if err := o.print(&table, filterNow, cli.Palette{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "0 B up, 1 did not trust our certificate") {
		t.Errorf("the overview is\n%s", table.String())
	}
	s := storyView{&story.Story{Flow: "A", Records: []*record.Record{open, end}, Decisive: open, Decision: open.Decision, End: end}, "", ""}
	if err := s.print(&told, "", cli.Palette{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(told.String(), "note         write a.test under tls.never\n") {
		t.Errorf("the story is\n%s", told.String())
	}
}

// TestWhoIsTheProgramAloneInOneSandbox prints an overview of one sandbox, and of
// two.
func TestWhoIsTheProgramAloneInOneSandbox(t *testing.T) {
	first := opened("A", "a.test", "deny")
	first.Process = &record.Process{Exe: "/usr/bin/curl"}
	second := opened("B", "b.test", "deny")
	second.Sandbox = "web"
	show := func(all ...*record.Record) string {
		o := overview{Overview: &logs.Overview{}}
		for _, r := range all {
			o.Add(r)
		}
		var text strings.Builder
		if err := o.print(&text, filterNow, cli.Palette{}); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	if got := show(first); strings.Contains(got, "ci/") || !strings.Contains(got, " curl ") {
		t.Errorf("one sandbox:\n%s", got)
	}
	if got := show(first, second); !strings.Contains(got, " ci/curl ") || !strings.Contains(got, " web ") {
		t.Errorf("two sandboxes:\n%s", got)
	}
}

// TestAStoryNamesTheOthersThatItsSumHolds prints a denial whose record sums the denials of other names.
func TestAStoryNamesTheOthersThatItsSumHolds(t *testing.T) {
	first, sum := opened("X", "a.evil.test", "deny"), opened("X", "*.evil.test", "deny")
	sum.Count, sum.Names = 40, &record.Names{First: "b.evil.test:443", Last: "z.evil.test:443"}
	s := storyView{&story.Story{Flow: "X", Records: []*record.Record{first, sum, sum}, Decisive: first, Decision: first.Decision, Times: 81}, "", ""}
	var said strings.Builder
	if err := s.print(&said, "egressd.yaml", cli.Palette{}); err != nil || !strings.Contains(said.String(), "first b.evil.test:443, last z.evil.test:443") {
		t.Errorf("%v: %s", err, said.String())
	}
}
