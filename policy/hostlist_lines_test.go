package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestListsAreReadAsTheyArePublished takes lines in the shapes of public lists, with invented names. What a line denies
// is what the documents of its format say.
func TestListsAreReadAsTheyArePublished(t *testing.T) {
	for _, row := range []struct {
		line    string
		denies  string // hosts
		not     string // hosts that the line leaves alone
		skipped bool   // something of the line is not read
	}{
		// hosts(5), and the heads of published hosts files.
		{line: "0.0.0.0 evil.test", denies: "evil.test", not: "www.evil.test"},
		{line: "127.0.0.1\tEvil.test\t# why", denies: "evil.test", not: "www.evil.test"},
		{line: ":: evil.test", denies: "evil.test"},
		{line: "::1 evil.test. other.test", denies: "evil.test other.test", not: "www.other.test"},
		{line: "0.0.0.0 www #.|evil.test", denies: "www", not: "evil.test"},
		{line: "127.0.0.1 localhost localhost.localdomain"},
		{line: "255.255.255.255 broadcasthost"},
		{line: "fe80::1%lo0 localhost"},
		{line: "ff02::2 ip6-allrouters"},
		{line: "0.0.0.0 0.0.0.0"},
		{line: "192.168.1.5 nas.test", not: "nas.test", skipped: true},
		{line: "0.0.0.0 evil.test bad..test", denies: "evil.test", skipped: true},
		{line: "0.0.0.0 *.evil.test", not: "www.evil.test", skipped: true},
		{line: "0.0.0.0 93.184.216.34", not: "93.184.216.34", skipped: true},

		// Rules for hosts of Adblock lists: AdGuard's DNS filtering rules, Adblock Plus.
		{line: "||evil.test^", denies: "evil.test www.evil.test a.b.evil.test", not: "notevil.test test"},
		{line: "||EVIL.test^$important", denies: "evil.test www.evil.test"},
		{line: "||evil.test^$all,important", denies: "evil.test www.evil.test"},
		{line: "||*.evil.test^", denies: "www.evil.test", not: "evil.test"},
		{line: "||top^", denies: "evil.top top", not: "evil.test"},
		{line: "||93.184.216.34^", denies: "93.184.216.34", not: "93.184.216.35"},
		{line: "! Title: a list"},
		{line: "!evil.test", not: "evil.test"},
		{line: "[Adblock Plus 2.0]"},
		{line: "[AdGuard]"},
		{line: "##.banner"},
		{line: "||evil.test^$third-party", not: "evil.test", skipped: true},
		{line: "||ga^$domain=~good.ga|~fine.ga", not: "good.ga evil.ga", skipped: true},
		{line: "||evil.test^$important,dnstype=AAAA", not: "evil.test", skipped: true},
		{line: "||evil.test^$badfilter", not: "evil.test", skipped: true},
		{line: "||com^$denyallow=good.com", not: "evil.com good.com", skipped: true},
		{line: "||evil.test", not: "evil.test", skipped: true},
		{line: "||evil.test/ads^", not: "evil.test", skipped: true},
		{line: "||ev*l.test^", not: "evil.test", skipped: true},
		{line: "@@||evil.test^", not: "evil.test", skipped: true},
		{line: "@@|evil.test^|", not: "evil.test", skipped: true},
		{line: "evil.test##.banner", not: "evil.test", skipped: true},
		{line: "/^ad[0-9]+\\./", skipped: true},

		// dnsmasq(8).
		{line: "server=/evil.test/", denies: "evil.test www.evil.test", not: "notevil.test"},
		{line: "local=/evil.test/", denies: "evil.test www.evil.test"},
		{line: "address=/evil.test/0.0.0.0", denies: "evil.test www.evil.test"},
		{line: "address=/evil.test/::", denies: "evil.test www.evil.test"},
		{line: "address=/evil.test/#", denies: "evil.test www.evil.test"},
		{line: "address=/evil.test/", denies: "evil.test www.evil.test"},
		{line: "address=/.evil.test/127.0.0.1", denies: "evil.test www.evil.test"},
		{line: "local=/evil.test/bad.test/", denies: "www.evil.test bad.test"},
		{line: "server=/good.test/9.9.9.9", not: "good.test", skipped: true},
		{line: "server=/good.test/#", not: "good.test", skipped: true},
		{line: "address=/nas.test/192.168.1.5", not: "nas.test", skipped: true},
		{line: "address=/#/0.0.0.0", not: "good.test", skipped: true},
		{line: "address=/evil.test", not: "evil.test", skipped: true},

		// Other formats, and what comes instead of a list.
		{line: `local-zone: "evil.test" always_nxdomain`, not: "evil.test", skipped: true},
		{line: "evil.test CNAME .", not: "evil.test", skipped: true},
		{line: "https://evil.test/x", not: "evil.test", skipped: true},
		{line: ".evil.test", not: "evil.test", skipped: true},
		{line: `<meta content="github.test">`, skipped: true},
		{line: "", not: "evil.test"},
		{line: "evil.test:8443", not: "evil.test"},
		{line: "*.evil.test", denies: "www.evil.test", not: "evil.test"},
	} {
		l := mustHosts(t, "\ufefffirst.test\n"+row.line+"\nlast.test\n")
		ix := newIndex()
		ix.files = []ListedHosts{{ID: "deny_file[0]", Effect: Deny, Hosts: l}}
		ix.finish()
		ruleFor := func(host string) string {
			d, err := ParseDestination(host + ":443")
			if err != nil {
				t.Fatal(err)
			}
			decided, err := (&rules{own: ix}).Evaluate(t.Context(), &Request{Destination: d})
			if err != nil {
				t.Fatal(err)
			}
			return decided.Rule
		}
		for host, rule := range map[string]string{"first.test": "deny_file[0]:1", "last.test": "deny_file[0]:3"} {
			if got := ruleFor(host); got != rule {
				t.Errorf("%q: %s is decided by %q, want %s", row.line, host, got, rule)
			}
		}
		for host := range strings.FieldsSeq(row.denies) {
			if got := ruleFor(host); got != "deny_file[0]:2" {
				t.Errorf("%q does not deny %s, but %q", row.line, host, got)
			}
		}
		for host := range strings.FieldsSeq(row.not) {
			if got := ruleFor(host); got != "" {
				t.Errorf("%q: %s is decided by %q", row.line, host, got)
			}
		}
		if doubts := l.Doubts(); (len(doubts) == 1) != row.skipped || row.skipped && doubts[0].Line != 2 {
			t.Errorf("%q: said %v", row.line, doubts)
		}
	}
}

// TestSkippedLinesAreCounted: among many, with the first of them; and a file of which nothing is read is refused.
func TestSkippedLinesAreCounted(t *testing.T) {
	text := string(manyHosts(1000)) + "\n# a comment\n||a.test^$third-party\n" + strings.Repeat("@@||b.test^\n", 20000)
	l := mustHosts(t, text)
	got := l.Doubts()
	if len(got) != 1 || got[0].Line != 1003 || !strings.HasPrefix(got[0].Message, "20001 of 21001 lines skipped, the first: ") {
		t.Errorf("%v", got)
	}
	page := "<!DOCTYPE html>\n<html>\n<meta content=\"github.test\">\n"
	_, err := ReadHostList("hosts.txt", strings.NewReader(page), false)
	var wrong FileError
	if !errors.As(err, &wrong) || len(wrong) != 1 || wrong[0].Line != 1 || !strings.HasPrefix(wrong[0].Message, "none of its 3 lines names a host") {
		t.Errorf("a page instead of a list: %v", err)
	}
}

// TestAFileThatAllowsReadsOnlyPatterns: the forms of lists that block are errors there, with the pattern to write.
func TestAFileThatAllowsReadsOnlyPatterns(t *testing.T) {
	for line, write := range map[string]string{
		"0.0.0.0 good.test":            "write good.test",
		"||good.test^":                 "write good.test and, in a line of its own, *.good.test",
		"@@||good.test^$important":     "write good.test and *.good.test",
		"server=/good.test/":           "write good.test and, in a line of its own, *.good.test",
		"address=/good.test/0.0.0.0":   "write good.test and, in a line of its own, *.good.test",
		"192.168.1.5 nas.test":         "write one pattern a line",
		"! a comment":                  "is not a pattern",
		"https://good.test/":           "write good.test",
		"good.test # fine\nbad line ]": "is not a pattern",
	} {
		l, err := ReadHostList("hosts.txt", strings.NewReader("first.test\n"+line+"\n"), true)
		var wrong FileError
		if l != nil || !errors.As(err, &wrong) || len(wrong) != 1 || !strings.Contains(wrong[0].Message, write) {
			t.Errorf("%q: %v, want %q", line, err, write)
		}
	}
}

// TestEachPatternOfALineIsFound: many lines with several patterns each, so that the table grows between them.
func TestEachPatternOfALineIsFound(t *testing.T) {
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "||h%d.test^\n0.0.0.0 a%d.test b%d.test c%d.test\n", i, i, i, i)
	}
	l := mustHosts(t, text.String())
	if l.Len() != 10000 {
		t.Errorf("%d patterns", l.Len())
	}
	for i := range 2000 {
		for host, line := range map[string]int{"h%d.test": 2*i + 1, "*.h%d.test": 2*i + 1, "a%d.test": 2*i + 2, "c%d.test": 2*i + 2} {
			var at []int
			l.each(fmt.Appendf(nil, host, i), func(_ portSet, line int) { at = append(at, line) })
			if !slices.Equal(at, []int{line}) {
				t.Fatalf(host+" is in lines %v, want %d", i, at, line)
			}
		}
	}
}
