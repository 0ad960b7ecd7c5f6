package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
)

func opened(flow, host, action string) *egress.Record {
	r := &egress.Record{
		Kind: egress.KindOpen, Flow: flow, Sandbox: "ci", Via: "connect", Time: filterNow,
		Dst:      &egress.RecordDst{Host: host, Port: 443},
		Decision: &egress.RecordDecision{Action: action, Rule: "r1", Layer: "user"},
	}
	if action == "deny" {
		r.Decision = &egress.RecordDecision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"}
	}
	return r
}

func closed(of *egress.Record, up, down int64, outcome string) *egress.Record {
	r := *of
	r.Kind, r.Bytes, r.Outcome = egress.KindClose, &egress.RecordBytes{Up: up, Down: down}, outcome
	return &r
}

// tallied is what the overview makes of a log, one line a decision.
func tallied(records ...*egress.Record) []string {
	var lines []string
	t := tally{emit: func(r *egress.Record) {
		traffic := "–"
		if r.Bytes != nil {
			traffic = fmt.Sprintf("%d/%d", r.Bytes.Up, r.Bytes.Down)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", r.Flow, r.Kind, r.Decision.Action, traffic, r.Outcome))
	}}
	for _, r := range records {
		t.add(r)
	}
	t.flush(outcomeOpen)
	return lines
}

func TestTallyCountsEachDecisionOnce(t *testing.T) {
	a, b := opened("A", "a.test", "allow"), opened("B", "b.test", "deny")
	mismatch := closed(a, 0, 0, "name-mismatch")
	mismatch.Decision = &egress.RecordDecision{Action: "deny", Class: "name-mismatch"}
	cut := closed(a, 7, 8, "cut")
	cut.Decision = mismatch.Decision
	request := opened("A", "a.test", "allow")
	request.Kind = egress.KindRequest
	lookup := opened("A", "a.test", "allow")
	lookup.Kind, lookup.DNS = egress.KindDNS, &egress.RecordDNS{Name: "a.test"}
	query := opened("Q", "q.test", "allow")
	query.Kind, query.Via = egress.KindDNS, "dns"
	for _, row := range []struct {
		name    string
		records []*egress.Record
		want    string
	}{
		{"an end gives its bytes to the decision", []*egress.Record{a, b, closed(a, 1, 2, "closed")}, "B open deny – ; A open allow 1/2 closed"},
		{"what was refused after it was opened is a refusal", []*egress.Record{a, mismatch}, "A open deny 0/0 name-mismatch"},
		{"what a new policy cut was allowed until then", []*egress.Record{a, cut}, "A open allow 7/8 cut"},
		{"what has no end is open", []*egress.Record{a}, "A open allow – open"},
		{"a restart ends what was open", []*egress.Record{a, {Kind: egress.KindStart}, opened("C", "c.test", "allow")}, "A open allow – cut; C open allow – open"},
		{"each request of a flow counts, and the last has the bytes", []*egress.Record{request, request, closed(a, 3, 4, "closed")}, "A request allow – ; A request allow 3/4 closed"},
		{"an end without its beginning counts where it says all", []*egress.Record{closed(a, 1, 1, "closed")}, "A close allow 1/1 closed"},
		{"a name that egressd looked up itself is a part of its flow", []*egress.Record{lookup, a, closed(a, 5, 6, "closed")}, "A open allow 5/6 closed"},
		{"a name that a sandbox looked up counts", []*egress.Record{query}, "Q dns allow – "},
	} {
		if got := strings.Join(tallied(row.records...), "; "); got != row.want {
			t.Errorf("%s:\n got %s\nwant %s", row.name, got, row.want)
		}
	}
}

func TestJoinerForgetsFlowsThatEnd(t *testing.T) {
	var j joiner
	for i := range 1000 {
		r := opened(fmt.Sprint(i), "a.test", "allow")
		j.follow(r)
		j.follow(closed(r, 0, 0, "closed"))
	}
	if len(j.open) != 0 {
		t.Errorf("%d flows are remembered after their end", len(j.open))
	}
}

func TestOverviewIsBounded(t *testing.T) {
	var o overview
	for i := range maxGroups + 500 {
		o.add(opened("F", fmt.Sprintf("h%d.test", i), "deny"))
	}
	if len(o.groups) != maxGroups+1 {
		t.Errorf("%d groups are remembered, want %d", len(o.groups), maxGroups+1)
	}
	if rest := o.section("deny")[0]; rest.destination != "…" || rest.count != 500 || rest.remark("") != "" {
		t.Errorf("the rest is %d of %q with the fix %q, want 500 of … without one", rest.count, rest.destination, rest.remark(""))
	}
}

func TestOverviewEscapesWhatASandboxWrote(t *testing.T) {
	r := opened("A", "a.test", "deny")
	r.HTTP = &egress.RecordHTTP{Method: "GET\x1b]0;owned\a\u202e", Path: "/"}
	r.Sandbox = "ci\x9b"
	var o overview
	o.add(r)
	var b strings.Builder
	if err := o.print(&b, filterNow, palette{}); err != nil {
		t.Fatal(err)
	}
	b.WriteString(line(r, filterNow, palette{}))
	for _, bad := range []string{"\x1b", "\a", "\u202e", "\x9b"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("%q reached the terminal:\n%s", bad, b.String())
		}
	}
}

func TestLineStaysShortWhateverThePath(t *testing.T) {
	r := opened("A", "a.test", "deny")
	r.Kind, r.HTTP = egress.KindRequest, &egress.RecordHTTP{Method: "GET", Path: "/" + strings.Repeat("x", 2000)}
	if got := line(r, filterNow, palette{}); len(got) > 250 || !strings.Contains(got, "x…") {
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
			want = "egressd allow " + row.want + " --from A --save"
		}
		if got := fixFor(r); got != want {
			t.Errorf("fix for %s of %q (%s) is %q, want %q", row.class, row.host, row.space, got, want)
		}
	}
	if got := fixFor(&egress.Record{Kind: egress.KindRefused, Decision: &egress.RecordDecision{Class: "default-deny"}}); got != "" {
		t.Errorf("fix without a destination is %q", got)
	}
}

func TestFixSaysThePortThatABareHostDoesNotMean(t *testing.T) {
	for _, row := range []struct {
		host string
		port uint16
		want string
	}{
		{"a.test", 80, "egressd allow a.test --from A --save"},
		{"a.test", 8443, "egressd allow a.test:8443 --from A --save"},
		{"2606:4700::1111", 22, "egressd allow '[2606:4700::1111]:22' --from A --save"},
		{"a.test", 0, "egressd allow a.test --from A --save"}, // a question has no port
	} {
		r := opened("A", row.host, "deny")
		r.Dst.Port = row.port
		if got := fixFor(r); got != row.want {
			t.Errorf("fix for %s at port %d is %q, want %q", row.host, row.port, got, row.want)
		}
	}
	own := opened("A", "a.test", "deny")
	own.Decision.Layer = "sandbox"
	if got := fixFor(own); got != "" {
		t.Errorf("fix for a sandbox with a list of its own is %q", got)
	}
	if got := fixFor(opened("", "a.test", "deny")); got != "" {
		t.Errorf("fix without an id is %q", got)
	}
}

func TestFixIsThatOfTheLastRefusal(t *testing.T) {
	last, first := opened("B", "a.test", "deny"), opened("A", "a.test", "deny")
	last.Time = last.Time.Add(time.Second)
	o := overview{flags: " --config x"}
	o.add(last)
	o.add(first)
	if got, want := o.section("deny")[0].remark(o.flags), "egressd allow a.test --from B --save --config x"; got != want {
		t.Errorf("the fix is %q, want %q", got, want)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1234: "1.2 kB", 9_949: "9.9 kB", 9_950: "10 kB", 41_000_000: "41 MB",
		999_499: "999 kB", 999_500: "1.0 MB", 1_200_000_000: "1.2 GB", 9_000_000_000_000_000_000: "9000 PB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestClockSaysTheDayWhereItIsNotToday(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.Local)
	if got := clock(now.Add(-time.Hour), now); got != "11:00:00" {
		t.Errorf("an hour ago is %q", got)
	}
	if got := clock(now.AddDate(0, 0, -1), now); got != "2026-11-19 12:00:00" {
		t.Errorf("a day ago is %q", got)
	}
}

// TestADistrustedCertificateIsSaid has a client that does not trust the local
// authority: what was allowed did not come about, and the log says why.
func TestADistrustedCertificateIsSaid(t *testing.T) {
	open := opened("A", "a.test", "allow")
	end := closed(open, 0, 0, "client-refused-our-certificate")
	end.Note = "write a.test under tls.never"
	var o overview
	o.add(end)
	var table, told strings.Builder
	if err := o.print(&table, filterNow, palette{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "0 B up, 1 did not trust our certificate") {
		t.Errorf("the overview is\n%s", table.String())
	}
	s := story{Flow: "A", records: []*egress.Record{open, end}, decisive: open, Decision: open.Decision, end: end}
	if err := s.print(&told, "", palette{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(told.String(), "note         write a.test under tls.never\n") {
		t.Errorf("the story is\n%s", told.String())
	}
}
