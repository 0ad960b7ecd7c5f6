package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A clause is a rule of [clauses]. An empty field holds for everything.
type clause struct {
	effect     Verdict // Allow, Deny or Ask
	host       string
	port       uint16
	addr       netip.Addr // one of the addresses
	method     string
	maxBytesUp int64 // of an allow
}

// clauses is an evaluator that answers as a policy in Rego does: deny beats ask beats
// allow, and what depends on the method needs a look at it while there is no request.
type clauses struct {
	layer Layer
	all   []clause
}

func (e clauses) Evaluate(_ context.Context, r *Request) (Decision, error) {
	var certain, depends [Allow + 1]bool
	needsBudget := false
	d := Decision{Layer: e.layer, Upgrade: true}
	for i, c := range e.all {
		if c.host != "" && c.host != r.Destination.Host || c.port != 0 && c.port != r.Destination.Port ||
			c.addr.IsValid() && !slices.Contains(r.Destination.Addrs, c.addr) {
			continue
		}
		effect := c.effect
		switch {
		case c.method != "" && r.HTTP == nil:
			depends[effect] = true
			needsBudget = needsBudget || effect == Allow && c.maxBytesUp > 0
			continue
		case c.method != "" && c.method != r.HTTP.Method:
			continue
		case effect == Ask && r.ApprovedBy(e.layer, fmt.Sprintf("clause%d", i)) != "":
			effect = Allow
		}
		certain[effect] = true
		if effect == Allow {
			d.Spend(c.maxBytesUp, "clause", e.layer)
		}
	}
	if r.DNS != nil {
		certain[Allow] = certain[Allow] || depends[Allow]
		depends = [Allow + 1]bool{}
	}
	if depends[Deny] || depends[Ask] {
		d.Needs = NeedsMethod
	}
	switch {
	case certain[Deny]:
		return Decision{Class: RuleDeny, Rule: "clause", Layer: e.layer}, nil
	case certain[Ask]:
		d.Verdict, d.Class, d.MaxBytesUp = Ask, AskRejected, 0
	case certain[Allow] && d.Needs == 0 && !needsBudget:
		d.Verdict = Allow
	case certain[Allow] || depends[Allow]:
		d.Verdict, d.Needs = Inspect, NeedsMethod
	default:
		d.Verdict = Abstain
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
func (e clauses) Probe(_ context.Context, _ *Request, p *Probes) {
	for _, c := range e.all {
		p.Ports = append(p.Ports, max(c.port, 1), c.port+1)
	}
}

func (kind draws) clauses(t *rapid.T, layer Layer, name string) Evaluator {
	one := rapid.Custom(func(t *rapid.T) clause {
		c := clause{
			effect: rapid.SampledFrom([]Verdict{Allow, Allow, Deny, Ask}).Draw(t, "effect"),
			host:   rapid.SampledFrom([]string{"", "", "a.test", "b.a.test"}).Draw(t, "host"),
			port:   rapid.SampledFrom([]uint16{0, 0, 443, 22}).Draw(t, "port"),
			addr:   rapid.SampledFrom([]netip.Addr{{}, {}, netip.MustParseAddr("93.184.216.34")}).Draw(t, "address"),
			method: rapid.SampledFrom(kind.methods).Draw(t, "method"),
		}
		if c.effect == Allow {
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
	var text strings.Builder
	for _, list := range lists {
		items := rapid.SliceOfN(item, 0, most).Draw(t, name+" "+list)
		if len(items) > 0 {
			fmt.Fprintf(&text, "%s: [%s]\n", list, strings.Join(items, ", "))
		}
	}
	return text.String()
}

// flow puts lines of block style into an element of a list in flow style.
func flow(lines string) string {
	return strings.TrimSuffix(strings.ReplaceAll(lines, "\n", ", "), ", ")
}

// A drawn is a policy of all layers that there are, and what it is made of.
type drawn struct {
	*Policy
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
			tree.Evaluators = []Evaluator{kind.clauses(t, Project, "project's Rego")}
		}
		env.Layers.Projects = map[string]WorkingTree{"default": tree}
	}
	if coin("organisation's Rego") {
		env.Evaluators = []Evaluator{kind.clauses(t, Organisation, "organisation's Rego")}
	}
	if coin("user's Rego") {
		env.Layers.User = []Evaluator{kind.clauses(t, User, "user's Rego")}
	}
	if coin("ceiling in Rego") {
		env.Layers.Ceilings = []Ceiling{{kind.clauses(t, Organisation, "ceiling in Rego"), Organisation}}
	}
	if coin("sandbox's Rego") {
		env.Layers.Narrowing = map[string][]Narrowing{"default": {{kind.clauses(t, PerSandbox, "sandbox's Rego"), coin("exhaustive")}}}
	}
	f, err := ParseFile("f", []byte("version: 1\n"+file))
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
func everyDestination(yield func(Destination) bool) {
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	resolved := [][]netip.Addr{addrs("93.184.216.34"), addrs("10.1.2.3"), addrs("93.184.1.1", "10.1.2.3"), addrs("64:ff9b::5db8:d822")}
	for _, port := range []uint16{443, 80, 22} {
		for _, text := range []string{"93.184.216.34", "10.1.2.3"} {
			if !yield(Destination{Host: text, Port: port, Addr: addrs(text)[0], Addrs: addrs(text)}) {
				return
			}
		}
		for _, host := range []string{"a.test", "b.a.test", "db.corp"} {
			for i, addrs := range append(resolved, resolved[:2]...) {
				d := Destination{Host: host, Port: port, Addrs: addrs}
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

func drawApprovals(t *rapid.T) []Approval {
	return rapid.SampledFrom([][]Approval{nil, nil, {{User, "ask[0]", "q1"}}, {{Organisation, "ask[0]", "q2"}, {User, "clause0", "q3"}}}).Draw(t, "approved")
}

// requests yields r with each of a few requests in it, inside inspected TLS.
func requests(r *Request, yield func(*Request)) {
	for _, method := range []string{"GET", "HEAD", "POST", "PURGE"} {
		for _, path := range []string{"/", "/x/1", "/y"} {
			full := *r
			full.Protocol, full.TLS = ProtocolTLS, &ClientHello{Inspected: true}
			if !r.Destination.Addr.IsValid() {
				full.TLS.ServerName = r.Destination.Host
			}
			full.HTTP = &HTTPRequest{Method: method, Path: path, BodySize: -1}
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
			r := &Request{Sandbox: Sandbox{Name: "default"}, Via: ViaConnect, Destination: dst, Approved: approved}
			early := p.Decide(t.Context(), r)
			requests(r, func(full *Request) {
				d := p.Decide(t.Context(), full)
				asked := fmt.Sprintf("%s %s to %s %v %v", full.HTTP.Method, full.HTTP.Path, dst, dst.Addrs, dst.Aliases)
				switch {
				case early.Verdict == Allow && d.Verdict != Allow:
					t.Fatalf("%s: %s unseen, then %s", asked, saying(early), saying(d))
				case early.Verdict == Allow && d.MaxBytesUp > 0 && (early.MaxBytesUp == 0 || early.MaxBytesUp > d.MaxBytesUp):
					t.Fatalf("%s: %d bytes unseen, then %d", asked, early.MaxBytesUp, d.MaxBytesUp)
				case early.Verdict <= Ask && d.Verdict == Allow && approved == nil:
					t.Fatalf("%s: %s unseen, then %s", asked, saying(early), saying(d))
				}
			})
		}
	})
}

// The stricter of an opinion and what narrowing leaves of another is at least as strict
// as both together: it sees as much and lets no more bytes up.
func TestNarrowingKeepsWhatIsNeededAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		said := drawOpinion(t, "said").decision
		left := combine(Decision{Verdict: Allow}, restricting(said))
		switch {
		case said.Verdict == Inspect && left.Verdict == Allow && left.Needs == 0:
			t.Fatalf("%+v becomes %+v", said, left)
		case left.Needs&said.Needs != said.Needs, left.MaxBytesUp != said.MaxBytesUp, left.Log != said.Log, left.Question != said.Question:
			t.Fatalf("%+v becomes %+v", said, left)
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
		for ask, want := range map[string]Verdict{
			"a.allowed.test => 93.184.216.34 cdn.test":               Inspect,
			"GET https://a.allowed.test/ => 93.184.216.34 cdn.test":  Allow,
			"POST https://a.allowed.test/ => 93.184.216.34 cdn.test": Deny,
			"POST http://a.allowed.test/ => 93.184.216.34 cdn.test":  Deny,
		} {
			r := asking(t, ask)
			r.Sandbox.Name = "default"
			if d := p.Decide(t.Context(), r); d.Verdict != want && (want != Deny || d.Verdict != Ask) {
				t.Errorf("%s: %s is %s", row.name, ask, saying(d))
			}
		}
	}
}
