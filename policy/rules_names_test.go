package policy

import (
	"net/netip"
	"testing"
)

// TestANameIsResolvedWhereOnePortOfItCanBeReached asks about names, before and
// after they are resolved.
func TestANameIsResolvedWhereOnePortOfItCanBeReached(t *testing.T) {
	public := []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	for _, row := range []struct {
		says, text string
		addrs      []netip.Addr
		aliases    []string
		want       Class // "" for allowed
	}{
		{"a name that a line allows", "allow: [a.test]", nil, nil, ""},
		{"and its address", "allow: [a.test]", public, nil, ""},
		{"a name on one port", "allow: ['a.test:8443']", public, nil, ""},
		{"a name of which some requests are allowed", "allow: [{host: a.test, methods: [GET]}]", public, nil, ""},
		{"a name that no line allows", "allow: [b.test]", nil, nil, DefaultDeny},
		{"an address that is allowed for another name", "allow: [93.184.216.34]", public, nil, DefaultDeny},
		{"an address that is denied on every port", "allow: [a.test]\ndeny: ['93.184.216.0/24:*']", public, nil, RuleDeny},
		{"an address that is denied on the ports of the name", "allow: [a.test]\ndeny: [93.184.216.0/24]", public, nil, RuleDeny},
		{"an address that is denied on one of them", "allow: [a.test]\ndeny: ['93.184.216.0/24:443']", public, nil, ""},
		{"an address that is denied on the one port of the name", "allow: ['a.test:443']\ndeny: ['93.184.216.0/24:443']", public, nil, RuleDeny},
		{"an address that is denied on another port", "allow: ['a.test:443']\ndeny: ['93.184.216.0/24:22']", public, nil, ""},
		{"an alias that is denied", "allow: [a.test]\ndeny: [b.test]", public, []string{"c.test", "b.test"}, RuleDeny},
		{"an alias that nothing is said about", "allow: [a.test]\ndeny: [b.test]", public, []string{"c.test"}, ""},
		{"an alias that is asked about", "allow: [a.test]\nask: [b.test]", public, []string{"b.test"}, AskRejected},
		{"a denied IPv4 address inside an IPv6 one", "allow: [a.test]\ndeny: [93.184.216.34]", []netip.Addr{netip.MustParseAddr("64:ff9b::5db8:d822")}, nil, RuleDeny},
		{"a private address", "allow: [a.test]", []netip.Addr{public[0], netip.MustParseAddr("10.0.0.5")}, nil, AddressDenied},
		{"a deny-list and an address on some ports", "default: allow\ndeny: [93.184.216.34]", public, nil, ""},
		{"a deny-list and an address on all ports", "default: allow\ndeny: ['93.184.216.34:*']", public, nil, RuleDeny},
		{"a deny-list and the name", "default: allow\ndeny: ['a.test:*']", nil, nil, RuleDeny},
	} {
		t.Run(row.says, func(t *testing.T) {
			file, err := ParseFile("f", []byte("version: 1\n"+row.text+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := file.Compile(Environment{})
			if err != nil {
				t.Fatal(err)
			}
			r := Request{Via: ViaDNS, DNS: &Question{Name: "a.test", Type: "A"}, Destination: Destination{Host: "a.test", Addrs: row.addrs, Aliases: row.aliases}}
			d := p.Decide(t.Context(), &r)
			if d.Class != row.want || (row.want == "") != (d.Verdict == Allow) {
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
		file, err := ParseFile("f", []byte("version: 1\nallow: [a.test]\nlisten: {dns: ["+text+"]}\n"))
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
		file, err := ParseFile("f", []byte("version: 1\nallow: [a.test]\nlisten: {proxy: ['unix:/p', 'tls:127.0.0.1:1'], client_ca: c.pem, dns: ['127.0.0.1:53']}\n"+text+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if said := file.Warnings(); len(said) != want {
			t.Errorf("%q: %q", text, said)
		}
	}
}
