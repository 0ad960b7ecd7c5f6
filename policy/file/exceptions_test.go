package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"pgregory.net/rapid"
)

// covers reports whether one of the rules holds for a request to a host itself.
func covers(rules []policy.Rule, special bool, host policy.Destination, h *policy.HTTPRequest) bool {
	return slices.ContainsFunc(rules, func(r policy.Rule) bool {
		p := r.Pattern
		named := p.MatchesName(host.Host, host.Port)
		if host.Addr.IsValid() {
			named = p.MatchesAddr(host.Addr, host.Port)
		}
		method := len(r.Methods) == 0 || slices.Contains(r.Methods, h.Method) || h.Method == "HEAD" && slices.Contains(r.Methods, "GET")
		path := len(r.Paths) == 0 || policy.CanonicalPath(h.Path) && slices.ContainsFunc(r.Paths, func(p policy.PathPattern) bool { return p.Match(h.Path) })
		return named && method && path && (!special || policy.InSpecialSpace(p))
	})
}

// opened says why a request to a special-purpose host may not be let through, or "": it
// is written from the manual, without the evaluators.
func (p drawn) opened(host policy.Destination, h *policy.HTTPRequest) string {
	var above []policy.Rule
	if p.organisation != nil {
		above = p.organisation.Allow
	}
	if !covers(slices.Concat(p.file.Allow, above), true, host, h) {
		return "no exception holds for it"
	}
	for _, s := range p.file.Sandboxes {
		if s.Narrowed && !covers(s.Allow, false, host, h) {
			return "the list of the sandbox does not"
		}
	}
	if covers(above, true, host, h) {
		return ""
	}
	for _, f := range []*File{p.file, p.organisation} {
		if f != nil && f.Ceiled && !covers(f.Ceiling, true, host, h) {
			return "a ceiling does not name it"
		}
	}
	return ""
}

// ledTo are the special-purpose hosts that a destination of everyDestination leads to.
func ledTo(d policy.Destination) (all []policy.Destination) {
	private := netip.MustParseAddr("10.1.2.3")
	if slices.Contains(d.Addrs, private) {
		all = append(all, policy.Destination{Host: "10.1.2.3", Addr: private, Port: d.Port})
	}
	if d.Host == "db.corp" || slices.Contains(d.Aliases, "db.corp") {
		all = append(all, policy.Destination{Host: "db.corp", Port: d.Port})
	}
	return all
}

// A host that only an exception opens is reached only by requests that it may be asked
// for itself, whatever name led there.
func TestAnExceptionIsForWhatItNamesUnderAllLayers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyConditions.policy(t)
		for dst := range everyDestination {
			r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaConnect, Destination: dst}
			requests(r, func(full *policy.Request) {
				if p.Decide(t.Context(), full).Verdict != policy.Allow {
					return
				}
				for _, host := range ledTo(dst) {
					if why := p.opened(host, full.HTTP); why != "" {
						t.Fatalf("%s %s to %s, which leads to %s: %s", full.HTTP.Method, full.HTTP.Path, dst, host, why)
					}
				}
			})
		}
	})
}

func TestAnExceptionKeepsItsMethodsPathsAndOwner(t *testing.T) {
	const partner = "allow: ['*.partner.test', {host: 10.1.2.3, methods: [GET], paths: [/health]}]"
	sandboxes := func(allow string) string {
		return partner + "\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: [" + allow + "]}]"
	}
	for _, row := range []struct {
		name, lines string
		rows        []judgement
	}{
		{"a name that leads to it", partner, []judgement{
			{"rebind.partner.test => 10.1.2.3", "inspect by allow[1]"},
			{"GET http://rebind.partner.test/health => 10.1.2.3", "allow by allow[0]"},
			{"POST http://rebind.partner.test/admin => 10.1.2.3", "deny method-denied by baseline"},
			{"GET http://rebind.partner.test/admin => 10.1.2.3", "deny path-denied by baseline"},
			{"POST https://rebind.partner.test/health => 93.184.216.34 10.1.2.3", "deny method-denied by baseline"},
			{"rebind.partner.test:22 => 10.1.2.3", "deny address-denied by baseline"},
			{"POST http://rebind.partner.test/admin => 93.184.216.34", "allow by allow[0]"},
		}},
		{"a star", "allow: ['*', {host: 10.1.2.3, methods: [GET], paths: [/health]}]", []judgement{
			{"10.1.2.3", "inspect by allow[1]"},
			{"GET http://10.1.2.3/health", "allow by allow[1]"},
			{"POST http://10.1.2.3/health", "deny method-denied by baseline"},
			{"GET https://10.1.2.3/admin", "deny path-denied by baseline"},
			{"POST http://a.test/ => 10.1.2.3", "deny method-denied by baseline"},
		}},
		{"default: allow", "default: allow\nallow: [{host: 10.1.2.3, methods: [GET]}]", []judgement{
			{"GET http://10.1.2.3/", "allow by allow[0]"},
			{"POST http://a.test/ => 10.1.2.3", "deny method-denied by baseline"},
			{"a.test => 10.1.2.3", "inspect by default"},
		}},
		{"the port of the exception", "allow: ['*.partner.test:*', '10.1.2.3:8443']", []judgement{
			{"a.partner.test:8443 => 10.1.2.3", "allow by allow[0]"},
			{"a.partner.test:443 => 10.1.2.3", "deny address-denied by baseline"},
		}},
		{"a sandbox that may not reach the address", sandboxes("'*.partner.test'"), []judgement{
			{"GET http://rebind.partner.test/health => 10.1.2.3", "deny default-deny by default"},
			{"rebind.partner.test => 10.1.2.3", "deny default-deny by default"},
			{"POST http://rebind.partner.test/ => 93.184.216.34", "allow by allow[0]"},
		}},
		{"a sandbox that may reach it by GET", sandboxes("'*.partner.test', {host: 10.1.2.3, methods: [GET]}"), []judgement{
			{"GET http://rebind.partner.test/health => 10.1.2.3", "allow by allow[0]"},
			{"HEAD http://rebind.partner.test/health => 10.1.2.3", "allow by allow[0]"},
		}},
		{"a ceiling that names the address for some requests", "ceiling: ['*', {host: 10.1.2.3, methods: [GET]}]\nallow: ['*.partner.test', 10.1.2.3]", []judgement{
			{"GET http://10.1.2.3/", "allow by allow[1]"},
			{"POST http://10.1.2.3/", "deny method-denied by ceiling"},
			{"POST http://rebind.partner.test/ => 10.1.2.3", "deny method-denied by ceiling"},
			{"rebind.partner.test => 10.1.2.3", "inspect by allow[0]"},
		}},
		{"a name of special-purpose space", "allow: ['*', {host: db.corp, methods: [GET]}]", []judgement{
			{"GET http://db.corp/", "allow by allow[1]"},
			{"POST http://db.corp/", "deny method-denied by baseline"},
			{"POST http://a.test/ => 93.184.216.34 db.corp", "deny method-denied by baseline"},
		}},
		{"unsafe_allow", "allow: ['*']\nunsafe_allow: [{host: 127.0.0.1, methods: [GET]}]", []judgement{
			{"GET http://a.test/ => 127.0.0.1", "allow by allow[0]"},
			{"POST http://a.test/ => 127.0.0.1", "deny method-denied by baseline"},
		}},
	} {
		t.Run(row.name, func(t *testing.T) { judge(t, compiled(t, row.lines, inspecting), row.rows) })
	}
}

// TestAnApprovalOfANameIsNoneOfWhereItLeads: the person was asked about the name.
func TestAnApprovalOfANameIsNoneOfWhereItLeads(t *testing.T) {
	above, err := ParseOrganisation("above.yaml", []byte("version: 1\nallow: [10.1.2.3, db.corp]\n"))
	if err != nil {
		t.Fatal(err)
	}
	env := inspecting
	env.Layers.Organisation = above
	approved := []policy.Approval{{Layer: policy.User, Rule: "ask[0]", Question: "Q"}}
	for _, row := range []struct {
		lines, request string
		approved       []policy.Approval
		want           string
	}{
		{"ask: ['*']", "10.1.2.3", nil, "ask ask-rejected by ask[0]"},
		{"ask: ['*']", "10.1.2.3", approved, "allow by allow[0]"},
		{"ask: ['*']", "evil.test => 10.1.2.3", approved, "deny ask-rejected by ask[0]"},
		{"ask: ['*']", "evil.test => 93.184.216.34 db.corp", approved, "deny ask-rejected by ask[0]"},
		{"ask: ['*']", "evil.test", approved, "allow by ask[0]"},
		{"ask: ['*']", "evil.test => 93.184.216.34", approved, "allow by ask[0]"},
		{"ask: ['*.test']\nallow: [10.1.2.3]", "known.test => 10.1.2.3", approved, "allow by ask[0]"},
	} {
		f, err := Parse("f.yaml", []byte("version: 1\n"+row.lines+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(env)
		if err != nil {
			t.Fatal(err)
		}
		r := asking(t, row.request)
		r.Approved = row.approved
		if d := p.Decide(t.Context(), r); saying(d) != row.want {
			t.Errorf("%s to %s, approved %v: %s (%s)", row.lines, row.request, row.approved, saying(d), d.Reason)
		}
	}
}

// A WebSocket shows no request, so an exception with conditions has to say that it may be one.
func TestAnExceptionForSomeRequestsLetsNoWebSocketThrough(t *testing.T) {
	for upgrade, want := range map[string]policy.Verdict{"": policy.Deny, ", upgrade: websocket": policy.Allow} {
		p := compiled(t, "allow: ['*', {host: 10.1.2.3, methods: [GET]"+upgrade+"}]", inspecting)
		for _, ask := range []string{"GET http://a.test/ => 10.1.2.3", "GET http://10.1.2.3/"} {
			r := asking(t, ask)
			r.HTTP.Upgrade = true
			if d := p.Decide(t.Context(), r); d.Verdict != want {
				t.Errorf("%s with %q is %s", ask, upgrade, saying(d))
			}
		}
	}
}

func TestARefusalDoesNotShowTheAddressThatAnExceptionOpens(t *testing.T) {
	p := compiled(t, "allow: ['*.test', {host: 10.1.2.3, methods: [GET]}]\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: ['*.test']}]", inspecting)
	for _, ask := range []string{"GET http://a.test/ => 10.1.2.3", "POST http://a.test/ => 10.1.2.3"} {
		r := asking(t, ask)
		r.Sandbox.Name = "default"
		if d := p.Decide(t.Context(), r); d.Verdict != policy.Deny || strings.Contains(fmt.Sprint(d), "10.1.2.3") {
			t.Errorf("%s: %+v", ask, d)
		}
	}
}

func TestABroadNameBesideAnExceptionIsWarnedOf(t *testing.T) {
	for text, want := range map[string]string{
		"allow: ['*.partner.test', 10.1.2.3]":                           "allow[0]: a name that *.partner.test holds may lead to 10.1.2.3",
		"allow: [{host: 10.0.0.0/8, methods: [GET]}, '*.partner.test']": "allow[1]: a name that *.partner.test holds may lead to 10.0.0.0/8",
		"allow: ['*.partner.test:8443', 10.1.2.3]":                      "",
		"allow: [api.partner.test, 10.1.2.3]":                           "",
		"allow: ['*.partner.test', 93.184.216.34, db.corp]":             "",
	} {
		f, err := Parse("f", []byte("version: 1\n"+text+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(f.Warnings(), "\n"); want == "" && said != "" || !strings.Contains(said, want) {
			t.Errorf("%s: %q", text, said)
		}
	}
	o, err := ParseOrganisation("o", []byte("version: 1\nallow: [10.1.2.3]\n"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse("f", []byte("version: 1\nallow: ['*.partner.test']\n"))
	if err != nil {
		t.Fatal(err)
	}
	if said := f.Warnings(o); len(said) != 1 || !strings.Contains(said[0], "10.1.2.3") {
		t.Errorf("an exception of the organisation: %q", said)
	}
}
