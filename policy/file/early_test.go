package file

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"pgregory.net/rapid"
)

// A clause is a rule of [clauses]. An empty field holds for everything.
type clause struct {
	effect     policy.Verdict // Allow, Deny or Ask
	host       string
	port       uint16
	addr       netip.Addr // one of the addresses
	method     string
	maxBytesUp int64 // of an allow
}

// clauses is an evaluator that answers as a policy in Rego does: deny beats ask beats
// allow, and what depends on the method needs a look at it while there is no request.
type clauses struct {
	layer policy.Layer
	all   []clause
}

func (e clauses) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	var certain, depends [policy.Allow + 1]bool
	needsBudget := false
	d := policy.Decision{Layer: e.layer, Upgrade: true}
	for i, c := range e.all {
		if c.host != "" && c.host != r.Destination.Host || c.port != 0 && c.port != r.Destination.Port ||
			c.addr.IsValid() && !slices.Contains(r.Destination.Addrs, c.addr) {
			continue
		}
		effect := c.effect
		switch {
		case c.method != "" && r.HTTP == nil:
			depends[effect] = true
			needsBudget = needsBudget || effect == policy.Allow && c.maxBytesUp > 0
			continue
		case c.method != "" && c.method != r.HTTP.Method:
			continue
		case effect == policy.Ask && r.ApprovedBy(e.layer, "", fmt.Sprintf("clause%d", i)) != "":
			effect = policy.Allow
		}
		certain[effect] = true
		if effect == policy.Allow {
			d.Spend(c.maxBytesUp, "clause", e.layer)
		}
	}
	if r.DNS != nil {
		certain[policy.Allow] = certain[policy.Allow] || depends[policy.Allow]
		depends = [policy.Allow + 1]bool{}
	}
	if depends[policy.Deny] || depends[policy.Ask] {
		d.Needs = policy.NeedsMethod
	}
	switch {
	case certain[policy.Deny]:
		return policy.Decision{Class: policy.RuleDeny, Rule: "clause", Layer: e.layer}, nil
	case certain[policy.Ask]:
		d.Verdict, d.Class, d.MaxBytesUp = policy.Ask, policy.AskRejected, 0
	case certain[policy.Allow] && d.Needs == 0 && !needsBudget:
		d.Verdict = policy.Allow
	case certain[policy.Allow] || depends[policy.Allow]:
		d.Verdict, d.Needs = policy.Inspect, policy.NeedsMethod
	default:
		d.Verdict = policy.Abstain
	}
	return d, nil
}

// draws are the conditions that drawn rules have, and the methods that clauses name.
type draws struct{ conditions, methods []string }

var anyConditions = draws{
	[]string{"", "", ", methods: [GET]", ", methods: [POST]", ", paths: [/x/**]", ", methods: [GET], paths: [/y]"},
	[]string{"", "GET", "POST"},
}

// Probe has the port of each clause tried.
func (e clauses) Probe(_ context.Context, _ *policy.Request, p *policy.Probes) {
	for _, c := range e.all {
		p.Ports = append(p.Ports, max(c.port, 1), c.port+1)
	}
}

func (kind draws) clauses(t *rapid.T, layer policy.Layer, name string) policy.Evaluator {
	one := rapid.Custom(func(t *rapid.T) clause {
		c := clause{
			effect: rapid.SampledFrom([]policy.Verdict{policy.Allow, policy.Allow, policy.Deny, policy.Ask}).Draw(t, "effect"),
			host:   rapid.SampledFrom([]string{"", "", "a.test", "b.a.test"}).Draw(t, "host"),
			port:   rapid.SampledFrom([]uint16{0, 0, 443, 22}).Draw(t, "port"),
			addr:   rapid.SampledFrom([]netip.Addr{{}, {}, netip.MustParseAddr("93.184.216.34")}).Draw(t, "address"),
			method: rapid.SampledFrom(kind.methods).Draw(t, "method"),
		}
		if c.effect == policy.Allow {
			c.maxBytesUp = rapid.SampledFrom([]int64{0, 0, 5, 9}).Draw(t, "budget")
		}
		return c
	})
	return clauses{layer, rapid.SliceOfN(one, 1, 3).Draw(t, name)}
}

// lines draws rules for the given lists. Few hosts, ports and conditions, so that
// they meet often.
func (kind draws) lines(t *rapid.T, name string, most int, lists ...string) string {
	hosts := []string{
		"a.test", "b.a.test", "*.test", "*.a.test", "*", "alias.test", "db.corp",
		"93.184.216.34", "93.184.0.0/16", "0.0.0.0/0", "10.1.2.3", "10.0.0.0/8", "10.1.2.0/24",
	}
	item := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf(`{host: "%s%s"%s}`,
			rapid.SampledFrom(hosts).Draw(t, "host"),
			rapid.SampledFrom([]string{"", "", ":443", ":22", ":*", ":23-500"}).Draw(t, "port"),
			rapid.SampledFrom(kind.conditions).Draw(t, "condition"))
	})
	drawn := make([][]string, len(lists))
	text := func() string {
		var text strings.Builder
		for i, list := range lists {
			if len(drawn[i]) > 0 {
				fmt.Fprintf(&text, "%s: [%s]\n", list, strings.Join(drawn[i], ", "))
			}
		}
		return text.String()
	}
	for i, list := range lists {
		for _, line := range rapid.SliceOfN(item, 0, most).Draw(t, name+" "+list) {
			before := drawn[i]
			drawn[i] = append(slices.Clip(before), line)
			if _, err := Parse("f", []byte("version: 1\n"+text())); err != nil { // it never decides, or keeps another from that
				drawn[i] = before
			}
		}
	}
	return text()
}

// flow puts lines of block style into an element of a list in flow style.
func flow(lines string) string {
	return strings.TrimSuffix(strings.ReplaceAll(lines, "\n", ", "), ", ")
}

// A drawn is a policy of all layers that there are, and what it is made of.
type drawn struct {
	*policy.Policy
	file, organisation *File // organisation may be nil
}

func (kind draws) policy(t *rapid.T) drawn {
	coin := func(name string) bool { return rapid.IntRange(0, 2).Draw(t, name) == 2 }
	file := kind.lines(t, "user", 3, "allow", "deny", "ask")
	if coin("default allow") {
		file += "default: allow\n"
	}
	if coin("user's ceiling") {
		file += kind.lines(t, "user", 3, "ceiling")
	}
	if coin("sandboxes") {
		lists := []string{"deny"}
		if coin("narrowed") {
			lists = append(lists, "allow")
		}
		file += "sandboxes: [{name: default, source: [10.9.0.0/16], " + flow(kind.lines(t, "sandbox", 3, lists...)) + "}]\n"
	}
	env := inspecting
	if coin("organisation") {
		o, err := ParseOrganisation("o", []byte("version: 1\n"+kind.lines(t, "organisation", 2, "allow", "deny", "ask", "ceiling")))
		if err != nil {
			t.Fatal(err)
		}
		env.Layers.Organisation = o
	}
	if coin("project") {
		f, err := ParseProject("p", []byte("version: 1\n"+kind.lines(t, "project", 2, "allow", "deny", "ask")))
		if err != nil {
			t.Fatal(err)
		}
		tree := WorkingTree{File: f, Opens: coin("project opens")}
		if coin("project's Rego") {
			tree.Evaluators = []policy.Evaluator{kind.clauses(t, policy.Project, "project's Rego")}
		}
		env.Layers.Projects = map[string]WorkingTree{"default": tree}
	}
	if coin("organisation's Rego") {
		env.Evaluators = []policy.Evaluator{kind.clauses(t, policy.Organisation, "organisation's Rego")}
	}
	if coin("user's Rego") {
		env.Layers.User = []policy.Evaluator{kind.clauses(t, policy.User, "user's Rego")}
	}
	if coin("ceiling in Rego") {
		env.Layers.Ceilings = []policy.Ceiling{{Evaluator: kind.clauses(t, policy.Organisation, "ceiling in Rego"), Layer: policy.Organisation}}
	}
	if coin("sandbox's Rego") {
		env.Layers.Narrowing = map[string][]policy.Narrowing{"default": {{Evaluator: kind.clauses(t, policy.PerSandbox, "sandbox's Rego"), Exhaustive: coin("exhaustive")}}}
	}
	f, err := Parse("f", []byte("version: 1\n"+file))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(env)
	if err != nil {
		t.Fatal(err)
	}
	return drawn{p, f, env.Layers.Organisation}
}

// everyDestination yields what may be asked for, as it is after the name was resolved.
func everyDestination(yield func(policy.Destination) bool) {
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	resolved := [][]netip.Addr{addrs("93.184.216.34"), addrs("10.1.2.3"), addrs("93.184.1.1", "10.1.2.3"), addrs("64:ff9b::5db8:d822")}
	for _, port := range []uint16{443, 80, 22} {
		for _, text := range []string{"93.184.216.34", "10.1.2.3"} {
			if !yield(policy.Destination{Host: text, Port: port, Addr: addrs(text)[0], Addrs: addrs(text)}) {
				return
			}
		}
		for _, host := range []string{"a.test", "b.a.test", "db.corp"} {
			for i, addrs := range append(resolved, resolved[:2]...) {
				d := policy.Destination{Host: host, Port: port, Addrs: addrs}
				if i >= len(resolved) {
					d.Aliases = [][]string{{"alias.test"}, {"db.corp"}}[i-len(resolved)]
				}
				if !yield(d) {
					return
				}
			}
		}
	}
}

func drawApprovals(t *rapid.T) []policy.Approval {
	return rapid.SampledFrom([][]policy.Approval{nil, nil, {{Layer: policy.User, Rule: "ask[0]", Question: "q1"}}, {{Layer: policy.Organisation, Rule: "ask[0]", Question: "q2"}, {Layer: policy.User, Rule: "clause0", Question: "q3"}}}).Draw(t, "approved")
}

// requests yields r with each of a few requests in it, inside inspected TLS.
func requests(r *policy.Request, yield func(*policy.Request)) {
	for _, method := range []string{"GET", "HEAD", "POST", "PURGE"} {
		for _, path := range []string{"/", "/x/1", "/y"} {
			full := *r
			full.Protocol, full.TLS = policy.ProtocolTLS, &policy.ClientHello{Inspected: true}
			if !r.Destination.Addr.IsValid() {
				full.TLS.ServerName = r.Destination.Host
			}
			full.HTTP = &policy.HTTPRequest{Method: method, Path: path, BodySize: -1}
			yield(&full)
			full.HTTP = &policy.HTTPRequest{Method: method, Path: path, BodySize: -1, Upgrade: true}
			yield(&full)
		}
	}
}

// What is decided before there is a request allows no more than what is decided then.
// It refuses nothing that would be allowed, but for what a person has answered.
func TestNoFirstLookAtAnyLayersIsWiderThanTheRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, approved := anyConditions.policy(t), drawApprovals(t)
		for dst := range everyDestination {
			r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaConnect, Destination: dst, Approved: approved}
			early := p.Decide(t.Context(), r)
			requests(r, func(full *policy.Request) {
				d := p.Decide(t.Context(), full)
				asked := fmt.Sprintf("%s %s (WebSocket %t) to %s %v %v", full.HTTP.Method, full.HTTP.Path, full.HTTP.Upgrade, dst, dst.Addrs, dst.Aliases)
				switch {
				case early.Verdict == policy.Allow && d.Verdict != policy.Allow:
					t.Fatalf("%s: %s unseen, then %s", asked, saying(early), saying(d))
				case early.Verdict == policy.Allow && d.MaxBytesUp > 0 && (early.MaxBytesUp == 0 || early.MaxBytesUp > d.MaxBytesUp):
					t.Fatalf("%s: %d bytes unseen, then %d", asked, early.MaxBytesUp, d.MaxBytesUp)
				case early.Verdict <= policy.Ask && d.Verdict == policy.Allow && approved == nil:
					t.Fatalf("%s: %s unseen, then %s", asked, saying(early), saying(d))
				}
			})
		}
	})
}

// A list that opens nothing has both an allow of the name and a condition on what the
// name resolves to. The tunnel is looked into for the condition.
func TestAnAllowBesideAConditionalDenyStillHasTheTunnelInspected(t *testing.T) {
	sandbox := func(lists string) string {
		return "allow: ['*.allowed.test']\nsandboxes: [{name: default, source: [10.9.0.0/16], " + lists + "}]"
	}
	all := "allow: ['*.allowed.test']\n"
	trusted := func(lines string) Environment {
		env := inspecting
		f, err := ParseProject("p", []byte("version: 1\n"+lines))
		if err != nil {
			t.Fatal(err)
		}
		env.Layers.Projects = map[string]WorkingTree{"default": {File: f}}
		return env
	}
	for _, row := range []struct {
		name, lines string
		env         Environment
	}{
		{"a prefix", sandbox("allow: ['*.allowed.test'], deny: [{host: 0.0.0.0/0, methods: [POST]}]"), inspecting},
		{"an address", sandbox("allow: ['*.allowed.test'], deny: [{host: 93.184.216.34, methods: [POST]}]"), inspecting},
		{"an alias", sandbox("allow: ['*.allowed.test'], deny: [{host: cdn.test, methods: [POST]}]"), inspecting},
		{"the list of a sandbox that is not narrowed", sandbox("deny: [{host: 0.0.0.0/0, methods: [POST]}]"), inspecting},
		{"a project that opens nothing", all, trusted(all + "deny: [{host: 0.0.0.0/0, methods: [POST]}]")},
		{"its ask", all, trusted(all + "ask: [{host: cdn.test, methods: [POST]}]")},
	} {
		p := compiled(t, row.lines, row.env)
		judge(t, p, []judgement{{"a.allowed.test", "allow by allow[0]"}})
		for ask, want := range map[string]policy.Verdict{
			"a.allowed.test => 93.184.216.34 cdn.test":               policy.Inspect,
			"GET https://a.allowed.test/ => 93.184.216.34 cdn.test":  policy.Allow,
			"POST https://a.allowed.test/ => 93.184.216.34 cdn.test": policy.Deny,
			"POST http://a.allowed.test/ => 93.184.216.34 cdn.test":  policy.Deny,
		} {
			r := asking(t, ask)
			r.Sandbox.Name = "default"
			if d := p.Decide(t.Context(), r); d.Verdict != want && (want != policy.Deny || d.Verdict != policy.Ask) {
				t.Errorf("%s: %s is %s", row.name, ask, saying(d))
			}
		}
	}
}
