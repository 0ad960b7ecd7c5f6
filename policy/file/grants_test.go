package file

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// granted compiles a file with grants, each written as "allow HOST", "over HOST" (over a deny) or "deny HOST", for a
// sandbox behind an @.
func granted(t *testing.T, lines string, env Environment, grants ...string) (*policy.Policy, error) {
	t.Helper()
	f, err := Parse("egressd.yaml", []byte("version: 1\n"+lines))
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range grants {
		verdict, rest, _ := strings.Cut(text, " ")
		host, who, _ := strings.Cut(rest, "@")
		g := policy.Grant{ID: "grant:" + string(rune('A'+i)), Effect: policy.Allow, Opening: policy.Opening{Pattern: mustPatterns(t, host)[0]}, Sandbox: who, OverDeny: verdict == "over"}
		if verdict == "deny" {
			g.Effect = policy.Deny
		}
		env.Grants = append(env.Grants, g)
	}
	return f.Compile(env)
}

func TestGrantsStandBesideTheLinesOfTheFile(t *testing.T) {
	const lines = `
allow: [a.test, "*.some.test", "b.wide.test", {host: api.test, methods: [GET]}, 93.184.216.34, named.test]
deny: ["*.bad.test", never.test, {host: "*.posts.test", methods: [POST]}]
ask: [asked.test, "*.asked.test"]
sandboxes: [{name: default, listen: "127.0.0.1:1"}, {name: ci, listen: "127.0.0.1:2"}, {name: own, listen: "127.0.0.1:3", allow: [a.test]}]
`
	for _, row := range []struct{ grants, who, ask, want string }{
		{"", "ci", "new.test", "deny default-deny by default"},
		{"allow new.test", "ci", "new.test", "allow by grant:A"},
		{"allow new.test", "ci", "new.test:8443", "deny default-deny by default"},
		{"allow new.test:8443", "ci", "new.test:8443", "allow by grant:A"},
		{"allow *.new.test", "ci", "x.y.new.test", "allow by grant:A"},
		{"allow new.test@ci", "ci", "new.test", "allow by grant:A"},
		{"allow new.test@ci", "default", "new.test", "deny default-deny by default"},
		{"allow new.test@other", "", "new.test", "deny default-deny by default"},
		// What a line denies or asks about stays so, even if the grant names the host more closely.
		{"allow x.bad.test", "ci", "x.bad.test", "deny rule-deny by deny[0]"},
		{"allow *.bad.test", "ci", "x.bad.test", "deny rule-deny by deny[0]"},
		{"allow never.test", "ci", "never.test", "deny rule-deny by deny[1]"},
		{"allow asked.test", "ci", "asked.test", "ask ask-rejected by ask[0]"},
		{"allow *.asked.test", "ci", "x.asked.test", "ask ask-rejected by ask[1]"},
		{"allow x.asked.test", "ci", "x.asked.test", "ask ask-rejected by ask[1]"},
		{"over x.asked.test", "ci", "x.asked.test", "allow by grant:A"},
		{"allow x.posts.test", "ci", "https://x.posts.test/", "allow by grant:A"},
		{"allow x.posts.test", "ci", "POST https://x.posts.test/", "deny rule-deny by deny[2]"},
		{"allow x.posts.test", "ci", "x.posts.test", "inspect by grant:A"},
		{"over x.posts.test", "ci", "x.posts.test", "allow by grant:A"},
		{"allow x.bad.test, over x.bad.test:443", "ci", "x.bad.test", "allow by grant:B"},
		{"allow api.test", "ci", "POST https://api.test/", "allow by grant:A"},
		// Unless it is written for that, and no line names the host more closely.
		{"over x.bad.test", "ci", "x.bad.test", "allow by grant:A"},
		{"over *.bad.test", "ci", "x.bad.test", "allow by grant:A"},
		{"over *.test", "ci", "x.bad.test", "deny rule-deny by deny[0]"},
		{"over never.test:22", "ci", "never.test:22", "allow by grant:A"},
		{"over never.test:22", "ci", "never.test", "deny rule-deny by deny[1]"},
		{"over asked.test", "ci", "asked.test", "allow by grant:A"},
		{"over x.bad.test@ci", "ci", "x.bad.test", "allow by grant:A"},
		{"over x.bad.test@ci", "default", "x.bad.test", "deny rule-deny by deny[0]"},
		{"over x.bad.test, deny *.test", "ci", "x.bad.test", "deny rule-deny by grant:B"},
		// The baseline stays, and so does what a sandbox has no part in.
		{"allow 10.0.0.5:8443", "ci", "10.0.0.5:8443", "deny address-denied by baseline"},
		{"allow 169.254.169.254", "ci", "169.254.169.254", "deny address-denied by baseline"},
		{"allow new.test", "own", "new.test", "deny default-deny by default"},
		{"allow new.test@own", "own", "new.test", "allow by grant:A"},
		{"allow new.test@own", "ci", "new.test", "deny default-deny by default"},
		// A temporary deny stands above every line.
		{"deny a.test", "ci", "a.test", "deny rule-deny by grant:A"},
		{"deny a.test", "ci", "b.wide.test", "allow by allow[2]"},
		{"deny *.wide.test", "ci", "b.wide.test", "deny rule-deny by grant:A"},
		{"deny *:*", "ci", "a.test", "deny rule-deny by grant:A"},
		{"deny api.test", "ci", "https://api.test/", "deny rule-deny by grant:A"},
		{"deny a.test@ci", "ci", "a.test", "deny rule-deny by grant:A"},
		{"deny a.test@ci", "default", "a.test", "allow by allow[0]"},
		{"deny a.test:443", "ci", "a.test:80", "allow by allow[0]"},
		{"deny 93.184.0.0/16:*", "ci", "93.184.216.34", "deny rule-deny by grant:A"},
		{"deny *.test, allow a.test, allow new.test", "ci", "new.test", "deny rule-deny by grant:A"},
	} {
		var grants []string
		if row.grants != "" {
			grants = strings.Split(row.grants, ", ")
		}
		p, err := granted(t, lines, inspecting, grants...)
		if err != nil {
			t.Fatal(err)
		}
		r := asking(t, row.ask)
		r.Sandbox.Name = row.who
		if got := saying(p.Decide(context.Background(), r)); got != row.want {
			t.Errorf("%s: to %s, %s is %q, want %q", row.grants, row.who, row.ask, got, row.want)
		}
	}
}

// TestADenialHoldsForNamesAndTheirAddresses: a name that is denied is not asked for either.
func TestADenialHoldsForNamesAndTheirAddresses(t *testing.T) {
	p, err := granted(t, "allow: [a.test, b.test]\n", Environment{}, "deny a.test", "deny 93.184.0.0/16:*")
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]policy.Verdict{"a.test": policy.Deny, "b.test": policy.Allow} {
		r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaDNS, Destination: policy.Destination{Host: host}, DNS: &policy.DNSQuery{Name: host, Type: "A"}}
		if d := p.Decide(context.Background(), r); d.Verdict != want {
			t.Errorf("the question for %s: %+v", host, d)
		}
	}
	r := asking(t, "b.test")
	r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	if got := saying(p.Decide(context.Background(), r)); got != "deny rule-deny by grant:B" {
		t.Errorf("a name with an address that is denied: %s", got)
	}
}

func TestAGrantNeedsRoomInCeilingsAndUnderTheOrganisation(t *testing.T) {
	env := Environment{Layers: Layers{Organisation: organisation(t, "deny: [org.test]\nallow: [theirs.test]\nceiling: [in.test, org.test]\n")}}
	p, err := granted(t, "", env, "allow in.test", "allow out.test", "allow org.test", "deny theirs.test")
	if err != nil {
		t.Fatal(err)
	}
	judge(t, p, []judgement{
		{"in.test", "allow by grant:A"},
		{"out.test", "deny rule-deny by ceiling"},
		{"org.test", "deny rule-deny by deny[0]"},
		{"theirs.test", "deny rule-deny by grant:D"},
	})
}

func TestTestsHoldUpWhatIsGrantedAndNotWhatIsDenied(t *testing.T) {
	const lines = "allow: [a.test]\ntests: [\"allow a.test\", \"deny promised.test\"]\n"
	var red policy.FileError
	if _, err := granted(t, lines, Environment{}, "allow promised.test"); !errors.As(err, &red) || red[0].Line != 3 {
		t.Errorf("against a test: %v", err)
	}
	p, err := granted(t, lines, Environment{}, "deny a.test")
	if err != nil {
		t.Fatalf("a test holds up what is denied: %v", err)
	}
	judge(t, p, []judgement{{"a.test", "deny rule-deny by grant:A"}})
	if _, err := granted(t, lines, Environment{}, "deny promised.test", "allow promised.test"); err == nil {
		t.Error("what is denied for a while hides that a test is red without it")
	}
}

// TestAGrantThatIsOverOpensNothing in the policy that still has it.
func TestAGrantThatIsOverOpensNothing(t *testing.T) {
	f, err := Parse("egressd.yaml", []byte("version: 1\nallow: [a.test]\nsandboxes: [{name: default, listen: \"127.0.0.1:1\", allow: [a.test]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	over := false
	is := func() bool { return over }
	p, err := f.Compile(Environment{Grants: []policy.Grant{
		{ID: "grant:A", Effect: policy.Allow, Opening: policy.Opening{Pattern: mustPatterns(t, "new.test")[0]}, Sandbox: "default", Over: is},
		{ID: "grant:B", Effect: policy.Deny, Opening: policy.Opening{Pattern: mustPatterns(t, "a.test")[0]}, Over: is},
	}})
	if err != nil {
		t.Fatal(err)
	}
	judge(t, p, []judgement{{"new.test", "allow by grant:A"}, {"a.test", "deny rule-deny by grant:B"}})
	over = true
	judge(t, p, []judgement{{"new.test", "deny default-deny by default"}, {"a.test", "deny rule-deny by grant:B"}})
}

func TestTheDigestCoversGrants(t *testing.T) {
	digests := map[string]string{}
	for _, grants := range []string{"", "allow b.test", "deny b.test", "allow b.test@ci", "allow b.test:443", "allow b.test, allow c.test"} {
		var all []string
		if grants != "" {
			all = strings.Split(grants, ", ")
		}
		p, err := granted(t, "allow: [a.test]\n", Environment{}, all...)
		if err != nil {
			t.Fatal(err)
		}
		if other, found := digests[p.Digest()]; found {
			t.Errorf("%q and %q have one digest", grants, other)
		}
		digests[p.Digest()] = grants
	}
	without, err := granted(t, "allow: [a.test]\n", Environment{})
	if err != nil || digests[without.Digest()] != "" {
		t.Errorf("without grants the digest is another: %v", err)
	}
}

func TestALineIsAddedToTheListDeny(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1\nallow: [a.test]\n":                 "version: 1\nallow: [a.test]\ndeny:\n  - b.test\n  - \"*.test\"\n",
		"version: 1\ndeny:   # on purpose\n- a.test\n":  "version: 1\ndeny:   # on purpose\n- a.test\n- b.test\n- \"*.test\"\n",
		"version: 1\ndeny: [a.test] # why\nallow: []\n": "version: 1\ndeny: [a.test, b.test, \"*.test\"] # why\nallow: []\n",
	} {
		got, err := DenyText("f", []byte(text), mustPatterns(t, "b.test", "*.test")...)
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
