package forward

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// FuzzForwarded parses heads of a platform. What is taken has each field once, and leads where its fields say in one
// reading only; nothing of the platform's own fields goes up.
func FuzzForwarded(f *testing.F) {
	const head = "GET /hook/a HTTP/1.1\r\nHost: egress.test\r\nVercel-Forwarded-Scheme: https\r\nVercel-Forwarded-Host: a.test\r\nVercel-Forwarded-Port: 443\r\nVercel-Forwarded-Path: /a?b=c\r\nVercel-Sandbox-Oidc-Token: t\r\n"
	for _, more := range []string{"", "Vercel_Forwarded_Host: b.test\r\n", "Vercel-Forwarded-Host: b.test\r\n", "vercel-sandbox-oidc-token: u\r\n", "Connection: vercel-forwarded-host\r\n", "X: y\r\n"} {
		f.Add(head + more + "\r\n")
	}
	f.Add(strings.Replace(head, "a.test", "[::1]", 1) + "\r\n")
	f.Add(strings.Replace(head, "/a?b=c", "http://b.test/", 1) + "\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		req, _, err := http1.ParseRequest([]byte(text), http1.Limits{})
		if err != nil {
			return
		}
		left := stripForwarded(append(http1.Fields(nil), req.Fields...))
		for _, field := range left {
			if name := strings.ToLower(strings.ReplaceAll(field.Name, "_", "-")); strings.HasPrefix(name, "vercel-forwarded-") || name == "vercel-sandbox-oidc-token" {
				t.Errorf("%s goes up", field.Name)
			}
		}
		to, err := parseForwarded(&req)
		if err != nil {
			return
		}
		one := func(name string) string {
			all := req.Fields.Values(name)
			if len(all) != 1 {
				t.Errorf("%s stands %d times", name, len(all))
			}
			return strings.Join(all, "")
		}
		if to.token != "" && to.token != one("vercel-sandbox-oidc-token") {
			t.Errorf("the token is %q", to.token)
		}
		if said := one("vercel-forwarded-path"); to.target.RequestURI() != said || to.target.Form != http1.Origin {
			t.Errorf("%q leads to %+v", said, to.target)
		}
		if said := one("vercel-forwarded-scheme"); said != map[bool]string{true: "https", false: "http"}[to.secure] {
			t.Errorf("the scheme %q is taken for %v", said, to.secure)
		}
		want, err := policy.ParseDestination(one("vercel-forwarded-host") + ":" + one("vercel-forwarded-port"))
		again, err2 := policy.ParseDestination(to.destination.String())
		if err != nil || err2 != nil || want.String() != to.destination.String() || again.String() != to.destination.String() {
			t.Errorf("leads to %s, and not to %s: %v, %v", to.destination, want, err, err2)
		}
		if !strings.EqualFold(strings.TrimSuffix(one("vercel-forwarded-host"), "."), strings.TrimSuffix(to.destination.String(), ":"+one("vercel-forwarded-port"))) && !to.destination.Addr.IsValid() {
			t.Errorf("%q became %s", one("vercel-forwarded-host"), to.destination.Host)
		}
	})
}
