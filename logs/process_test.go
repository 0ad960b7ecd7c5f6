package logs

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

func TestProgramsAreCalledWhatPeopleCallThem(t *testing.T) {
	for _, row := range []struct{ exe, argv0, want string }{
		{"/usr/bin/curl", "curl", "curl"},
		{"/usr/bin/curl", "npm", "curl"}, // only what runs others' programs may say what it is
		{"/usr/bin/curl (deleted)", "curl", "curl"},
		{"/usr/bin/node", "npm...", "npm"},
		{"/usr/bin/node", "npm install x", "npm"},
		{"/usr/bin/node", "node", "node"},
		{"/usr/bin/node", "\x1b[31m", "node"},
		{"/usr/bin/node", strings.Repeat("x", 33), "node"},
		{"/usr/bin/node", "..", "node"},
		{"/usr/bin/python3.11", "/usr/bin/python3", "python3"},
		{"/usr/bin/python3.11", "", "python3.11"},
		{"/usr/bin/pythonista", "npm", "pythonista"},
		{"", "curl", ""},
	} {
		r := &record.Record{Process: &record.Process{PID: 7, Exe: row.exe}}
		if row.argv0 != "" {
			r.Process.Argv = []string{row.argv0}
		}
		if got := Process(r); got != row.want {
			t.Errorf("%s, called %q: %q, want %q", row.exe, row.argv0, got, row.want)
		}
	}
	if got := Process(&record.Record{}); got != "" {
		t.Errorf("no program is called %q", got)
	}
}

// TestTheFilterForProgramsTakesBothNames asks by what is shown and by the file.
func TestTheFilterForProgramsTakesBothNames(t *testing.T) {
	r := &record.Record{Process: &record.Process{Exe: "/usr/bin/node", Argv: []string{"npm..."}}}
	for word, passes := range map[string]bool{"proc:npm": true, "proc:node": true, "proc:NPM": true, "proc:n*": true, "proc:curl": false} {
		f, err := ParseFilter([]string{word}, filterNow)
		if err != nil {
			t.Fatal(err)
		}
		if f.Match(r) != passes {
			t.Errorf("%s: %v", word, !passes)
		}
	}
}

// TestAClaimedHostIsShownWithTheAddress: a program that asks for an address chooses the host that it claims there.
func TestAClaimedHostIsShownWithTheAddress(t *testing.T) {
	r := opened("A", "claimed.test", "deny")
	r.HTTP = &record.HTTP{Method: "GET", Path: "/"}
	if what := What(r); what != "GET" {
		t.Errorf("without an address: %q", what)
	}
	r.Dst.Asked = "93.184.216.34"
	if what := What(r); what != "GET at 93.184.216.34" {
		t.Errorf("with one: %q", what)
	}
}
