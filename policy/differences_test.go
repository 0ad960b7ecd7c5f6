package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// policyOf makes a policy of lines: "allow HOST[:PORT] [METHOD,…] [PATH,…]", "also SANDBOX HOST", "default allow".
func policyOf(t testing.TB, lines ...string) *Policy {
	t.Helper()
	parts := Parts{Inspection: true, Lists: Lists{Layer: User}}
	sandboxes := map[string]*SandboxLists{}
	for i, text := range lines {
		words := strings.Fields(text)
		if words[0] == "default" {
			parts.Lists.Default = Allow
			continue
		}
		var own *SandboxLists
		if verb, name, found := strings.Cut(words[0], "@"); found {
			if sandboxes[name] == nil {
				sandboxes[name] = &SandboxLists{Name: name}
			}
			words[0], own = verb, sandboxes[name]
		}
		p, err := ParsePattern(words[1])
		if err != nil {
			t.Fatal(err)
		}
		r := Rule{ID: fmt.Sprintf("%d[]", i), Pattern: p, At: Position{Line: i + 1}}
		for _, word := range words[2:] {
			for part := range strings.SplitSeq(word, ",") {
				switch path, err := ParsePathPattern(part); {
				case part == "ech":
					r.ECH = true
				case !strings.HasPrefix(part, "/"):
					r.Methods = append(r.Methods, part)
				case err != nil:
					t.Fatal(err)
				default:
					r.Paths = append(r.Paths, path)
				}
			}
		}
		l := &parts.Lists
		into := map[string]*[]Rule{"allow": &l.Allow, "deny": &l.Deny, "ask": &l.Ask, "unsafe": &l.UnsafeAllow, "preset": &l.Presets, "ceiling": &l.Ceiling}[words[0]]
		if own != nil {
			into = map[string]*[]Rule{"allow": &own.Allow, "deny": &own.Deny, "also": &own.AlsoAllow}[words[0]]
			own.Narrowed = own.Narrowed || words[0] == "allow"
		}
		l.Ceiled = l.Ceiled || words[0] == "ceiling"
		*into = append(*into, r)
	}
	for _, own := range sandboxes {
		parts.Sandboxes = append(parts.Sandboxes, *own)
	}
	return Assemble(parts)
}

// said returns the differences as "opens a.test:443 GET /x".
func said(c Comparison) (all []string) {
	for _, d := range c.Differences {
		text := string(d.Change) + " " + d.Request.Destination.String()
		if h := d.Request.HTTP; h != nil {
			text += " " + h.Method + " " + h.Path
		}
		if d.Through != "" {
			text += " through " + d.Through
		}
		if d.Sandbox != "" {
			text += " for " + d.Sandbox
		}
		all = append(all, text)
	}
	return all
}

var anybody = []Sandbox{{Name: "default"}}

func TestCompare(t *testing.T) {
	for _, row := range []struct {
		says      string
		old, next []string
		want      []string
	}{
		{"nothing", []string{"allow a.test"}, []string{"allow a.test"}, nil},
		{"the order of lines", []string{"allow a.test", "deny b.test"}, []string{"deny b.test", "allow a.test"}, nil},
		{"a host", nil, []string{"allow a.test"}, []string{"opens a.test:443"}},
		{"a wildcard for a host", []string{"allow a.b.test:443"}, []string{"allow *.b.test:443"}, []string{"opens any-host.any-host.b.test:443"}},
		{"a deny that no longer counts", []string{"allow *.test:443", "deny a.test"}, []string{"allow *.test:443"}, []string{"opens a.test:443", "opens any-host.any-host.test:443 through a.test"}},
		{"a deny of an address that names may lead to", []string{"allow a.test:443", "deny 93.184.0.0/16"}, []string{"allow a.test:443"}, []string{"opens a.test:443 through 93.184.0.0"}},
		{"a deny of a name that names may lead to", []string{"allow a.test:443", "deny c.test"}, []string{"allow a.test:443"}, []string{"opens a.test:443 through c.test"}},
		{"a tunnel that is looked into only for what its name leads to", []string{"allow *:443 POST", "ask b.a.test GET /x/*", "preset c.test:443"}, []string{"allow *:443 POST", "ask b.a.test GET /x/*", "preset *.test:443 /z*"},
			[]string{"opens any-host.any-host.test:443 post /z", "opens b.a.test:443 GET /z", "tightens c.test:443 GET /z through b.a.test", "closes c.test:443 post /a"}},
		{"a question after which nothing passes", []string{"deny b.a.test GET", "ask b.a.test"}, []string{"deny b.a.test GET", "ask b.a.test", "allow 10.0.0.5:443 GET"}, []string{"opens 10.0.0.5:443 GET /a", "asks b.a.test:443 through 10.0.0.5"}},
		{"a private address", []string{"allow a.test:443"}, []string{"allow a.test:443", "allow 10.0.0.5:443"}, []string{"opens 10.0.0.5:443", "opens a.test:443 through 10.0.0.5"}},
		{"a public address opens no name", []string{"allow a.test:443"}, []string{"allow a.test:443", "allow 93.184.216.34:443"}, []string{"opens 93.184.216.34:443"}},
		{"any address", nil, []string{"allow 0.0.0.0/0:443"}, []string{"opens 1.0.0.0:443"}},
		{"a range of ports", []string{"allow a.test:443"}, []string{"allow a.test:443-444"}, []string{"opens a.test:444"}},
		{"a method", []string{"allow a.test:443 GET"}, []string{"allow a.test:443 GET,POST"}, []string{"opens a.test:443 POST /a"}},
		{"any method", []string{"allow a.test:443 GET"}, []string{"allow a.test:443"}, []string{"opens a.test:443 HEAD /a"}[:0]},
		{"a path", []string{"allow a.test:443 /x/*"}, []string{"allow a.test:443 /x/**"}, []string{"opens a.test:443 GET /x"}},
		{"a question", []string{"allow a.test:443"}, []string{"ask a.test:443"}, []string{"asks a.test:443"}},
		{"for one sandbox", []string{"also@x b.test:443", "also@y c.test:443"}, []string{"also@x b.test:443", "also@y c.test:443", "also@x d.test:443"}, []string{"opens d.test:443 for x"}},
		{"ECH", []string{"allow a.test:443"}, []string{"allow a.test:443 ech"}, []string{"loosens a.test:443"}},
		{"everything", nil, []string{"default allow"}, nil},
	} {
		who := anybody
		if strings.Contains(row.says, "sandbox") {
			who = []Sandbox{{Name: "x"}, {Name: "y"}}
		}
		c := Sides{Old: policyOf(t, row.old...), New: policyOf(t, row.next...), Sandboxes: who}.Compare(t.Context())
		got := said(c)
		switch row.says {
		case "everything":
			if !slices.Contains(got, "opens any-host.any-host:443") || len(c.Unsure) > 0 {
				t.Errorf("%s: %q", row.says, got)
			}
			continue
		case "any method":
			if len(got) == 0 || !strings.HasPrefix(got[0], "opens a.test:443 ") {
				t.Errorf("%s: %q", row.says, got)
			}
			continue
		}
		if !slices.Equal(got, row.want) || len(c.Unsure) > 0 {
			t.Errorf("%s: %q, want %q; unsure %q", row.says, got, row.want, c.Unsure)
		}
	}
}

// TestWhatIsBeyondABoundary: what the old policy allowed already is nothing that the new one opens.
func TestWhatIsBeyondABoundary(t *testing.T) {
	for _, row := range []struct {
		says              string
		old, next, within []string
		want              string
	}{
		{"inside", nil, []string{"allow a.test:443"}, []string{"allow *.test"}, ""},
		{"beside", nil, []string{"allow a.test:443"}, []string{"allow b.test"}, "a.test:443"},
		{"another port", nil, []string{"allow a.test:444"}, []string{"allow *.test"}, "a.test:444"},
		{"another method", nil, []string{"allow a.test:443"}, []string{"allow *.test GET"}, "a.test:443"},
		{"a longer path", nil, []string{"allow a.test:443 GET /x/**"}, []string{"allow *.test GET /x/*"}, "a.test:443"},
		{"what was allowed before", []string{"allow b.test"}, []string{"allow b.test", "allow a.test:443"}, []string{"allow a.test"}, ""},
		{"a name that leads to what the boundary denies", nil, []string{"allow a.test:443"}, []string{"allow *.test", "deny 93.184.0.0/16"}, "a.test:443"},
		{"a question inside", nil, []string{"ask a.test:443"}, []string{"allow *.test"}, ""},
		{"what the boundary asks about", nil, []string{"allow a.test:443"}, []string{"ask *.test"}, "a.test:443"},
		{"closing", []string{"allow a.test"}, []string{"deny a.test"}, []string{"deny a.test"}, ""},
	} {
		c := Sides{Old: policyOf(t, row.old...), New: policyOf(t, row.next...), Within: policyOf(t, row.within...), Sandboxes: anybody}.Compare(t.Context())
		got := ""
		for _, d := range c.Differences {
			if d.Beyond && got == "" {
				got = d.Request.Destination.String()
			}
		}
		if got != row.want || len(c.Unsure) > 0 {
			t.Errorf("%s: beyond is %q, want %q", row.says, got, row.want)
		}
	}
}

// randomLine is one for policyOf.
func randomLine(random *rand.Rand) string {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	effect := pick("allow", "allow", "allow", "deny", "ask", "preset", "ceiling", "unsafe")
	text := effect + " " + pick("a.test", "*.test", "*.a.test", "b.a.test", "x*.a.test", "*y.a.test", "*{1}.a.test", "*", "93.184.0.0/16", "93.184.216.34", "10.0.0.0/8", "10.0.0.5", "c.test")
	if strings.Contains(text, "unsafe") && !strings.Contains(text, "10.0.0.5") {
		text = strings.Replace(text, "unsafe", "allow", 1)
	}
	text += pick("", "", ":443", ":80", ":*", ":400-500")
	if effect != "unsafe" {
		text += pick("", "", "", " GET", " POST,PUT", " /x/**", " GET /x/*", " /x/y,/z*")
	}
	return text
}

// TestGrantsDifferAtTheirHostsAlone: a comparison about the hosts of grants finds what a whole one does.
func TestGrantsDifferAtTheirHostsAlone(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 0))
	found := 0
	for range 400 {
		var lines []string
		for range 1 + random.IntN(4) {
			lines = append(lines, randomLine(random))
		}
		was := policyOf(t, lines...)
		parts := *was.parts
		s := Sides{Old: was, Sandboxes: anybody}
		for i := range 1 + random.IntN(2) {
			words := strings.Fields(randomLine(random))
			p, err := ParsePattern(words[1])
			if err != nil || InSpecialSpace(p) {
				continue
			}
			parts.Grants = append(parts.Grants, Grant{ID: fmt.Sprintf("grant:%d", i), Effect: Allow, Opening: Opening{Pattern: p, Method: []string{"", "GET"}[random.IntN(2)]}})
			s.About = append(s.About, p)
		}
		if s.New = Assemble(parts); s.About == nil {
			continue
		}
		some := said(s.Compare(t.Context()))
		s.About = nil
		all := said(s.Compare(t.Context()))
		slices.Sort(some)
		slices.Sort(all)
		if !slices.Equal(some, all) {
			t.Fatalf("%q with %v: %q, and %q of all hosts", lines, parts.Grants, some, all)
		}
		found += len(all)
	}
	if found < 100 {
		t.Errorf("only %d differences", found)
	}
}

// TestCompareAgreesWithEachRequest compares random policies by deciding every request of a small world.
func TestCompareAgreesWithEachRequest(t *testing.T) {
	pairs, seed := 200, uint64(1)
	if many, err := strconv.Atoi(os.Getenv("EGRESSD_PAIRS")); err == nil { // as many as somebody has time for
		pairs, seed = many, uint64(time.Now().UnixNano())
		if same, err := strconv.ParseUint(os.Getenv("EGRESSD_SEED"), 10, 64); err == nil { // to see a failure again
			seed = same
		}
		t.Logf("seed %d", seed)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	line := func() string { return randomLine(random) }
	requests := world(t)
	for n := range pairs {
		var old []string
		for range 1 + random.IntN(4) {
			old = append(old, line())
		}
		next := slices.Clone(old)
		switch random.IntN(3) {
		case 0:
			next = append(next, line())
		case 1:
			next[random.IntN(len(next))] = line()
		case 2:
			next = slices.Delete(next, 0, 1)
			if random.IntN(4) == 0 {
				next = append(next, "default allow")
			}
		}
		was, now := policyOf(t, old...), policyOf(t, next...)
		c := Sides{Old: was, New: now, Sandboxes: anybody}.Compare(t.Context())
		if len(c.Unsure) > 0 {
			t.Fatalf("%q to %q: unsure: %q", old, next, c.Unsure)
		}
		for _, d := range c.Differences {
			before, after := decidedBy(t, was, &d.Request), decidedBy(t, now, &d.Request)
			if d.Request.HTTP == nil && min(before.Verdict, after.Verdict) == Inspect && before.Verdict != after.Verdict {
				continue
			}
			if changeOf(&before, &after) != d.Change {
				t.Fatalf("%q to %q: %s %s is %s, then %s", old, next, d.Change, d.Request.Destination, before.Verdict, after.Verdict)
			}
		}
		var name [2]Decision // of the last request that leads nowhere yet
		for _, r := range requests {
			if len(r.Destination.Addrs)+len(r.Destination.Aliases) == 0 {
				name = [2]Decision{approvedOrNot(t, was, &r), approvedOrNot(t, now, &r)}
			}
			before, after := ledTo(t, was, name[0], &r), ledTo(t, now, name[1], &r)
			change := changeOf(&before, &after)
			if change == "" || r.HTTP == nil && (before.Verdict == Inspect || after.Verdict == Inspect) || slices.ContainsFunc(c.Differences, func(d Difference) bool { return d.Change == change && about(&d, &r) }) {
				continue
			}
			t.Fatalf("pair %d, %q to %q: %s of %s %v %v %v is not among %q", n, old, next, change, r.Destination, r.HTTP, r.Destination.Addrs, r.Destination.Aliases, said(c))
		}
	}
}

// decidedBy decides a request as the gate does: first the name, then what it leads to.
func decidedBy(t *testing.T, p *Policy, r *Request) Decision {
	bare := *r
	bare.Destination.Addrs, bare.Destination.Aliases = nil, nil
	return ledTo(t, p, approvedOrNot(t, p, &bare), r)
}

// ledTo decides a request after its name was decided.
func ledTo(t *testing.T, p *Policy, name Decision, r *Request) Decision {
	if name.Verdict == Deny || len(r.Destination.Addrs)+len(r.Destination.Aliases) == 0 {
		return name
	}
	return approvedOrNot(t, p, r)
}

// approvedOrNot denies a request that would be denied in the tunnel after a person had approved that.
func approvedOrNot(t *testing.T, p *Policy, r *Request) Decision {
	d, judged := p.Judge(t.Context(), *r)
	if d.Verdict == Ask && r.HTTP != nil && judged.HTTP == nil {
		if in := p.Decide(t.Context(), new(requestIn(r, r.HTTP.Method, r.HTTP.Path))); in.Verdict == Deny {
			return in
		}
	}
	return d
}

// about reports whether r may be one of the requests of d, by its host.
func about(d *Difference, r *Request) bool {
	if r.Destination.Addr.IsValid() {
		return d.Hosts.CoversAddr(r.Destination.Addr)
	}
	return d.Hosts.CoversName(r.Destination.Host)
}

// world returns each request first without what its name leads to, then with that.
func world(t *testing.T) (all []Request) {
	for _, host := range []string{"a.test", "b.a.test", "xq.a.test", "qy.a.test", "xy.a.test", "q.a.test", "d.b.a.test", "c.test", "q.test", "q.example", "93.184.1.1", "93.184.216.34", "10.0.0.5", "10.0.0.6", "8.8.8.8", "169.254.169.254", "2606:2800::1"} {
		dst, err := ParseDestination(netJoin(host))
		if err != nil {
			t.Fatal(err)
		}
		add := func(r Request) {
			all = append(all, r)
			if dst.Addr.IsValid() {
				return
			}
			for _, to := range []string{"93.184.1.1", "93.184.216.34", "10.0.0.5", "10.0.0.6"} {
				r.Destination.Addrs = []netip.Addr{netip.MustParseAddr(to)}
				all = append(all, r)
			}
			r.Destination.Addrs = nil
			for _, to := range []string{"b.a.test", "c.test", "q.example"} {
				r.Destination.Aliases = []string{to}
				all = append(all, r)
			}
		}
		for _, port := range []uint16{443, 80, 22} {
			r := Request{Sandbox: anybody[0], Via: ViaConnect, Destination: dst, Usage: new(Usage)}
			r.Destination.Port = port
			if port == 80 {
				r.Via = ViaHTTP
			} else {
				add(r)
			}
			for _, method := range []string{"GET", "POST", "get", "DELETE"} {
				for _, path := range []string{"/", "/x/y", "/x/y/q", "/zz", "//"} {
					r.HTTP = &HTTPRequest{Method: method, Path: path}
					add(r)
				}
			}
		}
	}
	return all
}

func netJoin(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]:443"
	}
	return host + ":443"
}
