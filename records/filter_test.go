package records

import (
	"errors"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
)

var filterNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// sample is one record that every row of the tests is about.
func sample() *egress.Record {
	return &egress.Record{
		Kind: egress.KindOpen, Flow: "01KB6ZQ4SZ", Sandbox: "ci", Via: "connect",
		Time:     filterNow.Add(-30 * time.Minute),
		Dst:      &egress.RecordDst{Host: "evil.test", Port: 443},
		HTTP:     &egress.RecordHTTP{Method: "POST", Path: "/up/load"},
		Process:  &egress.RecordProcess{Exe: "/usr/bin/curl"},
		Decision: &egress.RecordDecision{Action: "deny", Class: "default-deny", Rule: "default", Layer: "builtin", Policy: "sha256:3f2a"},
		Bytes:    &egress.RecordBytes{Up: 10_000, Down: 5},
		Outcome:  "closed",
	}
}

func TestFilter(t *testing.T) {
	for _, row := range []struct {
		words []string
		want  bool
	}{
		{nil, true},
		{[]string{"evil"}, true},
		{[]string{"EVIL.test"}, true},
		{[]string{"good"}, false},
		{[]string{"host:evil.test"}, true},
		{[]string{"host:evil"}, false},
		{[]string{"host:*.test"}, true},
		{[]string{"host:*.example"}, false},
		{[]string{"host:good.test", "host:evil.test"}, true},
		{[]string{"host:evil.test", "sandbox:web"}, false},
		{[]string{"port:443"}, true},
		{[]string{"port:44"}, false},
		{[]string{"verdict:deny"}, true},
		{[]string{"verdict:allow"}, false},
		{[]string{"class:default-*", "rule:default", "layer:builtin", "policy:sha256:3f*"}, true},
		{[]string{"marked:no"}, true},
		{[]string{"marked:yes"}, false},
		{[]string{"via:socks5"}, false},
		{[]string{"method:post", "path:/up/*"}, true},
		{[]string{"path:/up"}, false},
		{[]string{"proc:curl"}, true},
		{[]string{"proc:/usr/bin/curl"}, false},
		{[]string{"kind:open"}, true},
		{[]string{"kind:close"}, false},
		{[]string{"flow:01KB"}, true},
		{[]string{"flow:1KB"}, false},
		{[]string{"outcome:clo*"}, true},
		{[]string{"up:>10k"}, false},
		{[]string{"up:>=10k"}, true},
		{[]string{"up:10kB"}, true},
		{[]string{"up:>1k", "up:<9.9k"}, false},
		{[]string{"down:<6"}, true},
		{[]string{"down:<=0.001M"}, true},
		{[]string{"since:1h"}, true},
		{[]string{"since:29m"}, false},
		{[]string{"since:2d", "until:10m"}, true},
		{[]string{"until:31m"}, false},
		{[]string{"since:11:00"}, true},
		{[]string{"since:11:45"}, false},
		{[]string{"since:2026-11-20"}, true},
		{[]string{"until:2026-11-20"}, false},
		{[]string{"since:2026-11-20T11:30:00Z"}, true},
	} {
		f, err := ParseFilter(row.words, filterNow)
		if err != nil {
			t.Errorf("%q: %v", row.words, err)
			continue
		}
		if got := f.Match(sample()); got != row.want {
			t.Errorf("%q matches: %t, want %t", row.words, got, row.want)
		}
	}
}

func TestFilterNeverMatchesWhatIsAbsent(t *testing.T) {
	bare := &egress.Record{Kind: egress.KindStart, Process: &egress.RecordProcess{}}
	for _, word := range []string{"x", "host:x", "port:0", "verdict:deny", "method:GET", "path:/", "proc:.", "up:0", "class:default-deny"} {
		f, err := ParseFilter([]string{word}, filterNow)
		if err != nil {
			t.Fatal(err)
		}
		if f.Match(bare) {
			t.Errorf("%s matches a record without that part", word)
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	for word, hint := range map[string]string{
		"hots:evil.test":   "did you mean host:evil.test?",
		"evil.test:443":    "egressd log host:evil.test port:443",
		"frobnicate:x":     "the filters are host port verdict class rule layer sandbox via method path proc shadow marked kind flow outcome policy up down since until",
		"verdict:denied":   "egressd log verdict:deny",
		"kind:event":       "egressd log kind:open",
		"host:":            "egressd log host:example.com verdict:deny since:1h",
		"":                 "egressd log host:example.com verdict:deny since:1h",
		"up:>lots":         filterExamples["up"],
		"up:-1":            filterExamples["up"],
		"down:NaN":         filterExamples["down"],
		"down:1e300G":      filterExamples["down"],
		"since:yesterday":  filterExamples["since"],
		"since:-1h":        filterExamples["since"],
		"until:2026-13-01": filterExamples["until"],
	} {
		_, err := ParseFilter([]string{word}, filterNow)
		var f *FilterError
		if !errors.As(err, &f) || f.Hint != hint {
			t.Errorf("%q: got %+v, want the hint %q", word, err, hint)
		}
	}
}

func TestWhatIsListedIsAFilter(t *testing.T) {
	for _, key := range FilterKeys {
		if _, text := textOf(key); !text && filterExamples[key] == "" {
			t.Errorf("%s is listed as a filter and is none", key)
		}
	}
}

func TestGlobMatch(t *testing.T) {
	for _, row := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "anything", true},
		{"a*", "abc", true}, {"*c", "abc", true}, {"a*c", "ac", true}, {"a*b*c", "aXbYc", true},
		{"a*b*c", "acb", false}, {"ab*ba", "aba", false}, {"**", "x", true}, {"*b*", "abc", true},
	} {
		if got := globMatch(row.pattern, row.s); got != row.want {
			t.Errorf("globMatch(%q, %q) = %t", row.pattern, row.s, got)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("host:*.test")
	f.Add("up:>1.5M")
	f.Add("since:09:30")
	f.Fuzz(func(t *testing.T, word string) {
		filter, err := ParseFilter([]string{word}, filterNow)
		var fail *FilterError
		if err != nil && (!errors.As(err, &fail) || fail.Hint == "") {
			t.Fatalf("%q: an error without a hint: %v", word, err)
		}
		if err == nil {
			filter.Match(sample())
		}
	})
}
