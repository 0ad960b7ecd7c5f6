package logs

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

var filterNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// sample is one record that every row of the tests is about.
func sample() *record.Record {
	return &record.Record{
		Seq: 20, Kind: record.KindOpen, Flow: "01KB6ZQ4SZ", Sandbox: "ci", Via: "connect",
		Time:      filterNow.Add(-30 * time.Minute),
		Src:       "127.0.0.1:4711",
		Dst:       &record.Destination{Host: "evil.test", Port: 443, Addrs: []string{"192.0.2.1", "2001:db8::1"}},
		Container: &record.Container{ID: "4f2d9a1c0b7e", Name: "web-1"},
		HTTP:      &record.HTTP{Method: "POST", Path: "/up/load", QueryBytes: 300, Status: 503},
		Process:   &record.Process{Exe: "/usr/bin/curl"},
		Decision:  &record.Decision{Action: "deny", Class: "default-deny", Rule: "default", Layer: "builtin", Policy: "sha256:3f2a"},
		Bytes:     &record.Bytes{Up: 10_000, Down: 5},
		Outcome:   "closed",
		Duration:  1500,
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
		{[]string{"container:web-1"}, true},
		{[]string{"container:4f2d*"}, true},
		{[]string{"container:web"}, false},
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
		{[]string{"since:today"}, true},
		{[]string{"since:yesterday", "until:today"}, false},
		{[]string{"since:yesterday", "until:1m"}, true},
		{[]string{"until:2026-11-20"}, false},
		{[]string{"since:2026-11-20T11:30:00Z"}, true},
		{[]string{"-host:evil.test"}, false},
		{[]string{"!evil"}, false},
		{[]string{"-host:good.test", "-host:bad.test"}, true},
		{[]string{"-host:good.test", "-host:evil.test"}, false},
		{[]string{"host:*.test", "-path:/up/*"}, false},
		{[]string{"-up:>10k"}, true},
		{[]string{"-shadow:deny"}, true},
		{[]string{"-since:1h"}, false},
		{[]string{`path:"/up/load"`}, true},
		{[]string{`path:"/up load"`}, false},
		{[]string{`outcome:""`}, false},
		{[]string{`sni:""`}, true},
		{[]string{"port:80", "port:443"}, true},
		{[]string{"port:400..500"}, true},
		{[]string{"port:..80", "port:400.."}, true},
		{[]string{"port:>1023"}, false},
		{[]string{"port:>=443", "port:<=443"}, true},
		{[]string{"up:1k..1M"}, true},
		{[]string{"up:1..2"}, false},
		{[]string{"query:300"}, true},
		{[]string{"query:>1k"}, false},
		{[]string{"query:..1k"}, true},
		{[]string{"took:>1s"}, true},
		{[]string{"took:1s"}, true},
		{[]string{"took:2s..1d"}, false},
		{[]string{"addr:192.0.2.1"}, true},
		{[]string{"addr:192.0.2.0/24"}, true},
		{[]string{"192.0.2.0/24"}, true},
		{[]string{"addr:::ffff:192.0.2.1"}, true},
		{[]string{"addr:::ffff:192.0.2.0/120"}, true},
		{[]string{"addr:10.0.0.0/8"}, false},
		{[]string{"addr:10.0.0.0/8", "2001:db8::/32"}, true},
		{[]string{"-addr:192.0.2.1"}, false},
		{[]string{"src:127.0.0.0/8"}, true},
		{[]string{"status:200"}, false},
		{[]string{"status:500..599"}, true},
		{[]string{"run:last"}, true},
		{[]string{"domain:evil.test"}, true},
		{[]string{"domain:test"}, false},
		{[]string{"domain:evil.*"}, true},
		{[]string{"seq:20"}, true},
		{[]string{"seq:21"}, false},
		{[]string{"seq:21", "seq:19..20"}, true},
		{[]string{"seq:>19", "seq:<20"}, false},
		{[]string{"-seq:20"}, false},
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
	bare := &record.Record{Kind: record.KindStart, Process: &record.Process{}}
	for _, word := range []string{"x", "host:x", "port:0", "verdict:deny", "method:GET", "path:/", "proc:.", "up:0", "query:0", "class:default-deny", "addr:0.0.0.0/0", "src:::/0", "took:0s", "status:0..999", "flow:0", "port:0..99999"} {
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
		"-hots:evil.test":  "did you mean -host:evil.test?",
		"evil.test:443":    "try host:evil.test port:443",
		"frobnicate:x":     "the filters are " + strings.Join(FilterKeys, " "),
		"verdict:denied":   "try verdict:deny",
		"-verdict:denied":  "try verdict:deny",
		"kind:event":       "try kind:open",
		"host:":            "try " + exampleFilter,
		"":                 "try " + exampleFilter,
		"-":                "try " + exampleFilter,
		`""`:               "try " + exampleFilter,
		`path:"/a`:         `try path:"/a path"`,
		`path:"/a"b"`:      `try path:"/a path"`,
		"-run:last":        "try run:last",
		"addr:10.0.0.0/33": "try addr:10.0.0.0/8",
		"addr:a.test":      "try addr:10.0.0.0/8",
		"port:http":        "try " + filterKeys["port"].example,
		"port:9..8":        "try " + filterKeys["port"].example,
		"port:..":          "try " + filterKeys["port"].example,
		"port:=>8":         "try " + filterKeys["port"].example,
		"took:fast":        "try " + filterKeys["took"].example,
		"took:-1s":         "try " + filterKeys["took"].example,
		"up:>lots":         "try " + filterKeys["up"].example,
		"up:-1":            "try " + filterKeys["up"].example,
		"seq:last":         "try " + filterKeys["seq"].example,
		"query:long":       "try " + filterKeys["query"].example,
		"down:NaN":         "try " + filterKeys["down"].example,
		"down:1e300G":      "try " + filterKeys["down"].example,
		"since:tomorrow":   "try " + filterKeys["since"].example,
		"since:-1h":        "try " + filterKeys["since"].example,
		"until:2026-13-01": "try " + filterKeys["until"].example,
	} {
		_, err := ParseFilter([]string{word}, filterNow)
		var f *FilterError
		if !errors.As(err, &f) || f.Say != hint && "try "+f.Try != hint {
			t.Errorf("%q: got %+v, want the hint %q", word, err, hint)
		}
	}
	if _, err := ParseFilter([]string{"run:last", "run:0123"}, filterNow); err == nil {
		t.Error("two runs were taken")
	}
}

func TestWhatIsListedIsAFilter(t *testing.T) {
	for _, key := range FilterKeys {
		if filterKeys[key] == nil && key != "run" {
			t.Errorf("%s is listed as a filter and is none", key)
		}
	}
	if len(FilterKeys) != len(filterKeys)+1 {
		t.Errorf("%d filters are listed, there are %d", len(FilterKeys), len(filterKeys)+1)
	}
}

func TestSplitFilter(t *testing.T) {
	for text, want := range map[string][]string{
		"":                               nil,
		"  host:a.test\tverdict:deny \n": {"host:a.test", "verdict:deny"},
		`path:"/a b" -"two words"`:       {`path:"/a b"`, `-"two words"`},
		`path:"/a\" b" x`:                {`path:"/a\" b"`, "x"},
		`path:/a"b c`:                    {`path:/a"b`, "c"},
		`path:"/a`:                       {`path:"/a`},
	} {
		if got := SplitFilter(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
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
	for _, text := range []string{"host:*.test", "up:>1.5M", "since:09:30", `-path:"/a \\ \"b" !x`, "addr:10.0.0.0/8 2001:db8::1", "run:last took:1s..2m"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(SplitFilter(text), filterNow)
		var wrong *FilterError
		if err != nil {
			if !errors.As(err, &wrong) || wrong.Try == "" && wrong.Say == "" {
				t.Fatalf("%q: an error without a hint: %v", text, err)
			}
			return
		}
		again, err := ParseFilter(SplitFilter(filter.String()), filterNow)
		if err != nil {
			t.Fatalf("%q is printed as %q: %v", text, filter, err)
		}
		if again.String() != filter.String() || again.Run != filter.Run || again.Match(sample()) != filter.Match(sample()) {
			t.Fatalf("%q is printed as %q, and that as %q", text, filter, again)
		}
	})
}
