package policy

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAWrongPatternIsToldWhatToTypeInstead(t *testing.T) {
	for text, hint := range map[string]string{
		"":                                   "",
		"  ":                                 "",
		" example.com":                       "example.com",
		":443":                               "",
		"http://example.com":                 "example.com",
		"https://example.com:8443/a?b#c":     "example.com:8443",
		"https://user:pw@example.com/":       "example.com",
		"http://10.0.0.5/x":                  "10.0.0.5",
		"http://[fd00::1]:80/x":              "[fd00::1]:80",
		"user@example.com":                   "example.com",
		"example.com/":                       "example.com",
		"example.com/path":                   "example.com",
		"example.com:443/path":               "example.com:443",
		"*foo.com":                           "*.foo.com",
		"**.foo.com":                         "*.foo.com",
		"a.*.b.test":                         "",
		"a.*.b.test:22":                      "",
		"*.*.b.test":                         "",
		"fo*o.b.test":                        "",
		"*foo*.b.test":                       "",
		"foo*":                               "",
		"foo*.test":                          "",
		"prod-*.*.example.com":               "",
		"api.prod-*.example.com":             "",
		"prod-*.example.com:0":               "",
		"prod-*.b\u00fccher.test":            "prod-*.xn--bcher-kva.test",
		"*{1}.b\u00fccher.test:22":           "*{1}.xn--bcher-kva.test:22",
		"b\u00fc*.example.com":               "",
		"a.*.b\u00fccher.test":               "",
		"xn--b*.example.com":                 "",
		"xn--*.example.com":                  "",
		"*{1}":                               "",
		"*{1}.":                              "",
		"*{1}.*.test":                        "",
		"*{2}.example.com":                   "",
		"a{1}.example.com":                   "",
		"*{1}.10.0.0.1":                      "",
		"a*.10.0.0.1":                        "",
		"-a*.example.com":                    "",
		"*a-.example.com":                    "",
		".*a":                                "",
		"https://prod-*.example.com/x":       "prod-*.example.com",
		"api.*.net":                          "",
		"10.0.0.5*":                          "",
		"10.1*":                              "",
		"1.2.3.4.*":                          "",
		"10.*.*.*.*":                         "",
		"foo.*":                              "",
		"*.*":                                "",
		".foo.com":                           "*.foo.com",
		"10.*":                               "10.0.0.0/8",
		"192.168.*.*":                        "192.168.0.0/16",
		"10.*.5.*":                           "",
		"192.168.1.*:443":                    "192.168.1.0/24:443",
		"10.0.0.5/24":                        "10.0.0.0/24",
		"10.0.0.5/8:443":                     "10.0.0.0/8:443",
		"2606:2800::1/32":                    "2606:2800::/32",
		"[2606:2800::1/32]:22":               "[2606:2800::/32]:22",
		"2606:2800::/32:443":                 "[2606:2800::/32]:443",
		"2606:2800:0:0:0:0:0:1:443":          "[2606:2800:0:0:0:0:0:1]:443",
		"::ffff:10.0.0.5":                    "10.0.0.5",
		"::ffff:a00:5":                       "10.0.0.5",
		"[::ffff:10.0.0.5]:443":              "10.0.0.5:443",
		"::ffff:10.0.0.0/104":                "10.0.0.0/8",
		"[10.0.0.5]:443":                     "",
		"[example.com]":                      "",
		"[fd00::1]443":                       "",
		"[fd00::1":                           "fd00::1",
		"fe80::1%eth0":                       "fe80::1",
		"10.0/8":                             "",
		"10.0.0.0/33":                        "",
		"010.0.0.0/8":                        "",
		"127.1":                              "",
		"10.0.0.1-10.0.0.9":                  "",
		"*.10.0.0.1":                         "",
		"example.com:":                       "",
		"example.com:0":                      "",
		"example.com:65536":                  "",
		"example.com:080":                    "",
		"example.com:https":                  "",
		"example.com:80,443":                 "",
		"example.com:443-80":                 "",
		"example.com:80-":                    "",
		"example.com:-80":                    "",
		"example.com:*-80":                   "",
		"a b.test":                           "",
		"!example.com":                       "",
		"~^.*$":                              "",
		"-a.test":                            "",
		"a..test":                            "",
		"*.":                                 "",
		"*":                                  "valid",
		strings.Repeat("a", 64) + ".test":    "",
		"example.com:443:443":                "",
		"a.test\x00":                         "",
		"http://":                            "",
		"a\xff.test":                         "",
		strings.Repeat("x", 100_000) + "://": "",
	} {
		p, err := ParsePattern(text)
		if hint == "valid" {
			continue
		}
		var e *PatternError
		if !errors.As(err, &e) {
			t.Errorf("%.40q was read as %s", text, p)
			continue
		}
		if e.Hint != hint || e.Problem == "" || p != (Pattern{}) {
			t.Errorf("%.40q: hint %q, not %q (%s)", text, e.Hint, hint, e.Problem)
		}
	}
}

// TestAHintHoldsNoHostThatWasNotWritten writes patterns of pieces that people write, and
// compares hosts that the hint holds with the text as a glob.
func TestAHintHoldsNoHostThatWasNotWritten(t *testing.T) {
	pieces := rapid.SampledFrom([]string{"*", "**", "*{1}", "prod-*", "*-prod", "*prod", "a*b", "api", "example", "com", "10", "0", "255", "1*", "", "*.", "-", "B\u00fccher"})
	around := rapid.SampledFrom([][2]string{{"", ""}, {" ", ""}, {"", ":443"}, {"", ":*"}, {"https://", "/x"}, {"http://u@", ""}})
	rapid.Check(t, func(t *rapid.T) {
		host, more := strings.Join(rapid.SliceOfN(pieces, 0, 5).Draw(t, "host"), "."), around.Draw(t, "around")
		text := more[0] + host + more[1]
		_, err := ParsePattern(text)
		var e *PatternError
		if !errors.As(err, &e) || e.Hint == "" {
			return
		}
		hint, err := ParsePattern(e.Hint)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		glob := globOf(host)
		if strings.HasPrefix(host, ".") {
			glob = globOf("*" + host) // ".example.com" is how others write it
		}
		for _, held := range heldBy(hint) {
			if !glob.MatchString(held) {
				t.Fatalf("%q: the hint %s holds %s", text, e.Hint, held)
			}
		}
	})
}

// heldBy returns some hosts that p holds, the first and the last of its addresses among them.
func heldBy(p Pattern) []string {
	switch p.kind {
	case exactHost:
		return []string{p.name}
	case hostsBelow:
		return []string{"zz." + p.name, "x.zz." + p.name}
	case oneLabel:
		before, after, parent := p.aroundStar()
		return []string{before + "zz" + after + "." + parent}
	case addresses:
		return []string{p.prefix.Addr().String(), last(p.prefix).String()}
	}
	return []string{"zz.example.org", "192.0.2.9"}
}

// globOf matches the hosts that text holds as a glob.
func globOf(text string) *regexp.Regexp {
	if ascii := toALabels(text); ascii != "" {
		text = ascii
	}
	text = strings.TrimSuffix(strings.ReplaceAll(text, "B\u00fccher", "xn--bcher-kva"), ".")
	return regexp.MustCompile("^" + strings.NewReplacer(`\*\{1\}`, `[^.]*`, `\*`, ".*").Replace(regexp.QuoteMeta(text)) + "$")
}

func TestAPatternErrorIsASentence(t *testing.T) {
	_, err := ParsePattern("https://example.com/x\n")
	want := `"https://example.com/x\n" is not a pattern: it has spaces around it`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	_, err = ParsePattern("10.0.0.5/8")
	want = `"10.0.0.5/8" is not a pattern: it has host bits set; write 10.0.0.0/8`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}
