package run

import (
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

func TestTheSummarySaysWhatFailed(t *testing.T) {
	var out strings.Builder
	summarize(&out, egress.Counts{Requests: 2, Failed: 1, LastFailure: &egress.FailedHost{Host: "a.test", Port: 443, Class: "network-dns", Reason: "the name was not found"}}, 0, "Ask #net", "")
	for _, want := range []string{"; 1 failed\n", "a.test:443 (network-dns: the name was not found)\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Ask #net") {
		t.Error("nothing was denied, and the operator's message about denials is there")
	}
}

func TestTheSummaryNamesEachDeniedPlaceAndItsFix(t *testing.T) {
	var out strings.Builder
	c := egress.Counts{Requests: 1, Hosts: 1, Denied: []egress.DeniedHost{
		{Host: "example.com", Times: 2, Port: 8443, Class: "default-deny", Reason: "no rule allows example.com:8443", Fix: "egressd allow example.com:8443 --from CR7A --save"},
		{Host: "10.0.0.5", Times: 1, Port: 80, Class: "address-denied", Reason: "10.0.0.5 is private"},
	}}
	for _, label := range []string{"aa", "ab", "ac", "ad", "ae"} {
		c.Denied = append(c.Denied, egress.DeniedHost{Host: label + ".data.evil.com", Times: 1, Class: "default-deny", Fix: "egressd allow " + label + ".data.evil.com"})
	}
	summarize(&out, c, 0, "Ask #net", "egressd log --run 7")
	text := out.String()
	for _, want := range []string{"; 8 denied\n", "example.com:8443 ×2 (default-deny: ", "egressd allow example.com:8443 --from CR7A --save\n", "10.0.0.5:80 (address-denied: ", "evil.com, 5 names ×5 (default-deny)\n", "egressd log --run 7\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.Contains(text, "says: Ask #net\n") {
		t.Errorf("the operator's message is not in\n%s", text)
	}
	if strings.Contains(text, "data.evil.com") || strings.Count(text, "egressd allow") != 1 {
		t.Errorf("names below one domain are not one line, or have a fix:\n%s", text)
	}
}

// TestOnlyWhatLacksARuleIsOffered has a command for each denial, and offers it for the classes that a line answers.
func TestOnlyWhatLacksARuleIsOffered(t *testing.T) {
	var c egress.Counts
	for _, class := range []policy.Class{policy.DefaultDeny, policy.MethodDenied, policy.PathDenied, policy.AddressDenied, policy.RuleDeny, policy.AskRejected, ""} {
		c.Denied = append(c.Denied, egress.DeniedHost{Host: string(class) + ".test", Times: 1, Class: class, Fix: "egressd allow " + string(class)})
	}
	want := []string{"egressd allow default-deny", "egressd allow method-denied", "egressd allow path-denied"}
	if got := offered(c); !slices.Equal(got, want) {
		t.Errorf("offered %q", got)
	}
}
