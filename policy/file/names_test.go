package file

import (
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
	"pgregory.net/rapid"
)

// passes reports whether some request to one of many ports of a destination is let through,
// or would be once a person says yes.
func (p drawn) passes(t *rapid.T, dst policy.Destination) bool {
	for _, dst.Port = range []uint16{1, 22, 23, 24, 79, 80, 81, 82, 442, 443, 444, 445, 499, 500, 501, 65535} {
		for _, method := range []string{"GET", "HEAD", "POST", "PURGE"} {
			r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaHTTP, Destination: dst, HTTP: &policy.HTTPRequest{Method: method, Path: "/", BodySize: -1}}
			if p.Decide(t.Context(), r).Verdict == policy.Allow {
				return true
			}
		}
	}
	return false
}

// A name is asked for where a request to it passes, and nowhere else. So are the addresses
// told that it has.
func TestANameIsResolvedWhereSomeRequestPassesAllLayers(t *testing.T) {
	kind := draws{[]string{"", "", ", methods: [GET]", ", methods: [POST]", ", methods: [GET, POST]"}, []string{""}}
	rapid.Check(t, func(t *rapid.T) {
		p := kind.policy(t)
		for dst := range everyDestination {
			if dst.Addr.IsValid() || dst.Port != 443 {
				continue
			}
			name := policy.Destination{Host: dst.Host}
			for _, asked := range []policy.Destination{name, {Host: dst.Host, Addrs: dst.Addrs, Aliases: dst.Aliases}} {
				r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaDNS, Destination: asked, DNS: &policy.DNSQuery{Name: asked.Host, Type: "A"}}
				d := p.Decide(t.Context(), r)
				if passes := p.passes(t, asked); passes != (d.Verdict == policy.Allow) {
					t.Fatalf("%s %v %v: a request passes: %t, and the question is %s", asked.Host, asked.Addrs, asked.Aliases, passes, saying(d))
				}
			}
		}
	})
}

func TestANameOfWhichTwoLayersLeaveNothingIsNotResolved(t *testing.T) {
	const all = "allow: ['*.allowed.test']\n"
	ceiled := func(lines, ceiling string) Environment {
		env := inspecting
		env.Layers.Organisation = organisation(t, lines+"ceiling: ["+ceiling+"]")
		return env
	}
	for _, row := range []struct {
		name, lines string
		env         Environment
		want        policy.Verdict
	}{
		{"a sandbox's deny of the ports that are allowed", all + "sandboxes: [{name: default, source: [10.9.0.0/16], deny: ['*.x.allowed.test']}]", inspecting, policy.Deny},
		{"of one of them", all + "sandboxes: [{name: default, source: [10.9.0.0/16], deny: ['*.x.allowed.test:443']}]", inspecting, policy.Allow},
		{"a ceiling at another port", all, ceiled("", "'*.x.allowed.test:22'"), policy.Deny},
		{"a ceiling at one of the ports", all, ceiled("", "'*.x.allowed.test:80'"), policy.Allow},
		{"a ceiling of the user's own", all + "ceiling: ['*.x.allowed.test:22']", inspecting, policy.Deny},
		{"a sandbox's list at another port", all + "sandboxes: [{name: default, source: [10.9.0.0/16], allow: ['*.allowed.test:22']}]", inspecting, policy.Deny},
		{"a sandbox's list at a range that meets", "allow: ['*.allowed.test:8000-8100']\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: ['*.allowed.test:8100-9000']}]", inspecting, policy.Allow},
		{"default: allow, and a list at one port that is denied", "default: allow\ndeny: ['*.x.allowed.test']\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: ['*.allowed.test']}]", inspecting, policy.Deny},
		{"a range of which the default ports are denied", "allow: ['*.allowed.test:443-500']\nsandboxes: [{name: default, source: [10.9.0.0/16], deny: ['*.x.allowed.test:80-443']}]", inspecting, policy.Allow},
		{"methods that two layers do not share", "allow: [{host: '*.allowed.test', methods: [GET]}]\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: [{host: '*.allowed.test', methods: [POST]}]}]", inspecting, policy.Deny},
		{"methods that they share", "allow: [{host: '*.allowed.test', methods: [GET]}]\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: [{host: '*.allowed.test', methods: [POST, GET]}]}]", inspecting, policy.Allow},
		{"without inspection, since plain HTTP is seen", "allow: [{host: '*.allowed.test', methods: [GET]}]", Environment{}, policy.Allow},
	} {
		p := compiled(t, row.lines, row.env)
		const name = "secret.x.allowed.test"
		r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaDNS, Destination: policy.Destination{Host: name}, DNS: &policy.DNSQuery{Name: name, Type: "A"}}
		if d := p.Decide(t.Context(), r); d.Verdict != row.want || d.Needs != 0 {
			t.Errorf("%s: %s", row.name, saying(d))
		}
	}
}

// TestANameIsResolvedWhereOnePortOfItCanBeReached asks about names, before and
// after they are resolved.
func TestANameIsResolvedWhereOnePortOfItCanBeReached(t *testing.T) {
	public := []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	for _, row := range []struct {
		says, text string
		addrs      []netip.Addr
		aliases    []string
		want       policy.Class // "" for allowed
	}{
		{"a name that a line allows", "allow: [a.test]", nil, nil, ""},
		{"and its address", "allow: [a.test]", public, nil, ""},
		{"a name on one port", "allow: ['a.test:8443']", public, nil, ""},
		{"a name of which some requests are allowed", "allow: [{host: a.test, methods: [GET]}]", public, nil, ""},
		{"a name that no line allows", "allow: [b.test]", nil, nil, policy.DefaultDeny},
		{"an address that is allowed for another name", "allow: [93.184.216.34]", public, nil, policy.DefaultDeny},
		{"an address that is denied on every port", "allow: [a.test]\ndeny: ['93.184.216.0/24:*']", public, nil, policy.RuleDeny},
		{"an address that is denied on the ports of the name", "allow: [a.test]\ndeny: [93.184.216.0/24]", public, nil, policy.RuleDeny},
		{"an address that is denied on one of them", "allow: [a.test]\ndeny: ['93.184.216.0/24:443']", public, nil, ""},
		{"an address that is denied on the one port of the name", "allow: ['a.test:443']\ndeny: ['93.184.216.0/24:443']", public, nil, policy.RuleDeny},
		{"an address that is denied on another port", "allow: ['a.test:443']\ndeny: ['93.184.216.0/24:22']", public, nil, ""},
		{"an alias that is denied", "allow: [a.test]\ndeny: [b.test]", public, []string{"c.test", "b.test"}, policy.RuleDeny},
		{"an alias that nothing is said about", "allow: [a.test]\ndeny: [b.test]", public, []string{"c.test"}, ""},
		{"an alias that is asked about", "allow: [a.test]\nask: [b.test]", public, []string{"b.test"}, policy.AskRejected},
		{"a denied IPv4 address inside an IPv6 one", "allow: [a.test]\ndeny: [93.184.216.34]", []netip.Addr{netip.MustParseAddr("64:ff9b::5db8:d822")}, nil, policy.RuleDeny},
		{"a private address", "allow: [a.test]", []netip.Addr{public[0], netip.MustParseAddr("10.0.0.5")}, nil, policy.AddressDenied},
		{"a deny-list and an address on some ports", "default: allow\ndeny: ['93.184.216.34:80-443']", public, nil, ""},
		{"a deny-list and an address on all ports", "default: allow\ndeny: [93.184.216.34]", public, nil, policy.RuleDeny},
		{"a deny-list and the name", "default: allow\ndeny: ['a.test:*']", nil, nil, policy.RuleDeny},
	} {
		t.Run(row.says, func(t *testing.T) {
			file, err := Parse("f", []byte("version: 1\n"+row.text+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := file.Compile(Environment{})
			if err != nil {
				t.Fatal(err)
			}
			r := policy.Request{Via: policy.ViaDNS, DNS: &policy.DNSQuery{Name: "a.test", Type: "A"}, Destination: policy.Destination{Host: "a.test", Addrs: row.addrs, Aliases: row.aliases}}
			d := p.Decide(t.Context(), &r)
			if d.Class != row.want || (row.want == "") != (d.Verdict == policy.Allow) {
				t.Errorf("%s, %q: %s; want %q", d.Verdict, d.Class, d.Reason, row.want)
			}
		})
	}
}

// TestListenersForNamesAreWarnedOf reads files whose name server others can reach.
func TestListenersForNamesAreWarnedOf(t *testing.T) {
	for text, want := range map[string]int{
		"127.0.0.1:53": 0, "10.1.2.3:53": 0, "'[::1]:53'": 0, "'[fd12::1]:53'": 0, "100.64.0.1:53": 0,
		"0.0.0.0:53": 1, "'[::]:53'": 1, "93.184.216.34:53": 1, "'[2606:2800:220:1::1]:53'": 1,
	} {
		file, err := Parse("f", []byte("version: 1\nallow: [a.test]\nlisten: {dns: ["+text+"]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if said := file.Warnings(); len(said) != want {
			t.Errorf("%s: %q", text, said)
		}
	}
}

// TestANameServerThatKnowsNobodyIsWarnedOf reads files with sandboxes and a name
// server.
func TestANameServerThatKnowsNobodyIsWarnedOf(t *testing.T) {
	for text, want := range map[string]int{
		"": 0,
		"sandboxes: [{name: a, source: [10.0.0.0/8]}]":                                                  0,
		"sandboxes: [{name: a, token_file: t}]":                                                         1,
		"sandboxes: [{name: a, token_file: t, source: [10.0.0.0/8]}]":                                   1,
		"sandboxes: [{name: a, token_file: t}, {name: b, source: [10.0.0.0/8]}]":                        0,
		"sandboxes: [{name: a, uid: [1000]}, {name: b, certificate: b.test, source: [192.168.0.0/16]}]": 1,
	} {
		file, err := Parse("f", []byte("version: 1\nallow: [a.test]\nlisten: {proxy: ['unix:/p', 'tls:127.0.0.1:1'], client_ca: c.pem, dns: ['127.0.0.1:53']}\n"+text+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if said := file.Warnings(); len(said) != want {
			t.Errorf("%q: %q", text, said)
		}
	}
}
