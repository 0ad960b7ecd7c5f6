package policy

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// learned is what passed to a host because no rule spoke of it.
func learned(host string, port uint16) *record.Record {
	return &record.Record{
		Kind: record.KindClose, Flow: "F", Dst: &record.Destination{Host: host, Port: port, Addr: "192.0.2.1"},
		Process:  &record.Process{Exe: "/bin/x\n  - evil.test #"},
		Decision: &record.Decision{Action: "allow", Rule: policy.LearnRule},
	}
}

func suggested(t *testing.T, l *logs.Learned) string {
	t.Helper()
	var out strings.Builder
	s, err := newSuggestion(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.print(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestNamesAreCountedOnceForAllPorts: thirty hosts on two ports are thirty names, which
// are few.
func TestNamesAreCountedOnceForAllPorts(t *testing.T) {
	l := new(logs.Learned)
	for i := range 30 {
		for _, port := range []uint16{80, 443} {
			l.Add(learned(fmt.Sprintf("h%d.example.com", i), port))
		}
	}
	if all, floods := l.All(); len(all) != 60 || len(floods) != 0 {
		t.Errorf("%d learned and %d floods", len(all), len(floods))
	}
}

// TestThePresetWithMostHostsIsProposed has hosts that several presets share.
func TestThePresetWithMostHostsIsProposed(t *testing.T) {
	l := new(logs.Learned)
	for _, host := range []string{"api.anthropic.com", "claude.ai", "claude.com", "platform.claude.com", "api.openai.com", "c.example.com"} {
		l.Add(learned(host, 443))
	}
	l.Add(learned("claude.ai", 8443))
	text := suggested(t, l)
	for _, want := range []string{
		"# The preset claude-code has api.anthropic.com:443, claude.ai:443, claude.com:443 and 1 more, and other hosts: presets: [claude-code], in place of 4 lines.\n",
		"has api.openai.com:443, and other hosts: presets: [",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "# The preset") != 2 || strings.Contains(text, "looks like telemetry") {
		t.Errorf("it says\n%s", text)
	}
}

// TestCollectionsAreNotProposed has hosts of which daytona-essential and devcontainer have more than any other preset.
func TestCollectionsAreNotProposed(t *testing.T) {
	l := new(logs.Learned)
	for _, host := range []string{"registry.npmjs.org", "pypi.org", "github.com", "api.anthropic.com", "quay.io", "update.code.visualstudio.com"} {
		l.Add(learned(host, 443))
	}
	text := suggested(t, l)
	if strings.Contains(text, "devcontainer") || strings.Contains(text, "daytona") || !strings.Contains(text, "presets: [npm]") || !strings.Contains(text, "presets: [pypi]") {
		t.Errorf("it says\n%s", text)
	}
}

func TestTelemetryIsMarked(t *testing.T) {
	for host, want := range map[string]bool{
		"statsig.anthropic.com": true, "o1.ingest.sentry.io": true, "http-intake.logs.us5.datadoghq.com": true, "telemetry.nodejs.org": true,
		"copilot-telemetry.githubusercontent.com": true, "sentry.example.com": true, "www.google-analytics.com": true,
		"api.anthropic.com": false, "mysentry.example.com": false, "datadoghq.com.example.net": false, "analytics-docs.example.com": false,
	} {
		l := new(logs.Learned)
		l.Add(learned(host, 443))
		if got := strings.Contains(suggested(t, l), host+":443 looks like telemetry"); got != want {
			t.Errorf("%s is marked: %t", host, got)
		}
	}
}

// TestSuggestReadsBackAnyHost has a program choose its hosts. What is suggested reads back as a policy
// that allows just that host and port, and nothing that no policy opens.
func TestSuggestReadsBackAnyHost(t *testing.T) {
	chosen := []string{
		"a.example.com", "1.e5", "0x1f.e1", "1e3.e4", "y.no", "null.test", "-a.test", "---.test", "a_b.test", "1.inf", "2026-11-20.test", "xn--80ak6aa92e.com", "true.test",
		"93.184.216.34", "2606:2800:220:1::1", "10.0.0.1", "169.254.169.254", "metadata.google.internal", "localhost", "a.local", "*", "*.test", "a.test/8", "a: b", "- x", "#", "\"", "&a.test", "!x.test", "%x.test", "a.test # b",
	}
	part := rapid.OneOf(rapid.SampledFrom(chosen), rapid.StringOf(rapid.RuneFrom([]rune("ab019-_.:/*#\"'&!% \n\t{}[],?|>@`é"))), rapid.String())
	rapid.Check(t, func(rt *rapid.T) {
		host := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(rt, "host"), rapid.SampledFrom([]string{"", "."}).Draw(rt, "between"))
		port := rapid.SampledFrom([]uint16{0, 1, 443, 65535}).Draw(rt, "port")
		var l logs.Learned
		l.Add(learned(host, port))
		text := suggested(t, &l)
		parsed, err := file.Parse("suggested", []byte("version: 1\n"+text))
		all, _ := l.All()
		if len(all) == 0 {
			if strings.Contains(text, "\n  ") {
				rt.Fatalf("%q:%d: %s", host, port, text)
			}
			return
		}
		if err != nil || len(parsed.Allow) != 1 {
			rt.Fatalf("%q:%d: %v\n%s", host, port, err, text)
		}
		want, err := policy.ParsePattern(logs.Destination(learned(host, port)))
		if err != nil || parsed.Allow[0].Pattern != want || policy.InSpecialSpace(want) || policy.CheckGrant(want) != nil {
			rt.Fatalf("%q:%d: %v, %v, want %v", host, port, err, parsed.Allow[0].Pattern, want)
		}
		if _, err := parsed.Compile(file.Environment{}); err != nil {
			rt.Fatalf("%q:%d: %v\n%s", host, port, err, text)
		}
	})
}

// TestSuggestSaysWhatToLookAt learns of hosts that nobody should allow unseen.
func TestSuggestSaysWhatToLookAt(t *testing.T) {
	var l logs.Learned
	for _, host := range []string{"good.example.com", "xn--80ak6aa92e.com", "evil.github.io", "leak.example.org"} {
		l.Add(learned(host, 443))
	}
	refused := learned("leak.example.org", 443)
	refused.Decision = &record.Decision{Action: "deny", Rule: "canary", Class: string(policy.Canary)}
	l.Add(refused)
	for i := range 400 {
		l.Add(learned(fmt.Sprintf("d%d.evil.example", i), 443))
	}
	text := suggested(t, &l)
	for _, want := range []string{
		"\n  - good.example.com:443 # 1 request",
		"\n  # careful: xn--80ak6aa92e.com:443 reads \u0430\u0440\u0440\u04cf\u0435.com, whose letters may look like others\n  - xn--80ak6aa92e.com:443 #",
		"\n  # careful: evil.github.io:443 is a name that anyone can get\n  - evil.github.io:443 #",
		"\n  # careful: leak.example.org:443 was to get a canary, which was refused\n  # - leak.example.org:443 #",
		"\n  # careful: 400 names below evil.example are left out (400 requests, ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, ".evil.example") || strings.Contains(text, "allow leak.example.org") {
		t.Errorf("suggested is\n%s", text)
	}
}
