package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

func (w *world) bind(t *testing.T, name string) names.Placeholder {
	t.Helper()
	a, err := w.Names.Bind(t.Context(), peer, policy.DNSQuery{Name: name, Type: "A"})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestADeniedNameHasAnAddressToo asks for names under a policy that denies one.
func TestADeniedNameHasAnAddressToo(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Host == "evil.test" {
			return deny(r)
		}
		return allow(r)
	})))
	w.Names.placeholders.Range = names.DefaultRange()
	good, evil := w.bind(t, "good.test"), w.bind(t, "evil.test")
	if good == evil || w.bind(t, "good.test") != good {
		t.Errorf("good.test is %v, evil.test %v", good, evil)
	}
	for name, a := range map[string]names.Placeholder{"good.test": good, "evil.test": evil} {
		for _, addr := range []netip.Addr{a.IPv4, a.IPv6} {
			if got, in := w.Names.OfPlaceholder(peer, addr); got != name || !in {
				t.Errorf("%v is %q, %v; want %s", addr, got, in, name)
			}
		}
	}
	var actions []string
	for _, r := range w.records(t, record.KindDNS) {
		if r.Via != "dns" || r.DNS.Type != "A" || r.Dst != nil {
			t.Errorf("recorded %+v", r)
		}
		actions = append(actions, r.DNS.Name+" "+r.Decision.Action)
	}
	if got := fmt.Sprint(actions); got != "[good.test allow evil.test deny good.test allow]" {
		t.Errorf("recorded %s", got)
	}
	if w.zone.asked.Load() != 0 {
		t.Error("a name was resolved")
	}
}

func TestOnlyAddressesCanBeAskedFor(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Names.placeholders.Range = names.DefaultRange()
	for _, kind := range []string{"TXT", "MX", "ANY", "CH TXT", "HTTPS", ""} {
		_, err := w.Names.Bind(t.Context(), peer, policy.DNSQuery{Name: "good.test", Type: kind})
		refusalOf(t, err, policy.DNSTypeDenied)
	}
	if n := len(w.records(t, record.KindDNS)); n != 6 {
		t.Errorf("%d records", n)
	}
}

// TestAddressesThatStandForNothingMeanThemselves looks addresses up that no name has, and then binds as many names.
func TestAddressesThatStandForNothingMeanThemselves(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Names.placeholders.Range = names.DefaultRange()
	first := w.bind(t, "good.test").IPv4
	for _, text := range []string{
		"28.254.255.255", "28.255.0.0", "28.255.0.1", "28.255.0.255", "28.255.1.1", "28.255.255.255", "93.184.216.34", "100.127.0.1",
		"2d00:6567:7265:7374::100", "2d00:6567:7265:7373::1", "2d00:6567:7265:7373::102", "::1",
	} {
		if name, in := w.Names.OfPlaceholder(peer, netip.MustParseAddr(text)); name != "" || in {
			t.Errorf("%s is %q, %v", text, name, in)
		}
	}
	for _, name := range []string{"a.test", "b.test", "c.test"} {
		if a := w.bind(t, name); a.IPv4.String() == "28.255.1.1" || a.IPv6.String() == "2d00:6567:7265:7373::102" {
			t.Errorf("%s has %v, which the sandbox connected to when it meant itself", name, a)
		}
	}
	if name, in := w.Names.OfPlaceholder(peer, first); name != "good.test" || !in {
		t.Errorf("%v is %q, %v", first, name, in)
	}
}

// TestSandboxesHaveNamesOfTheirOwn asks in two sandboxes.
func TestSandboxesHaveNamesOfTheirOwn(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Names.placeholders.Range = names.DefaultRange()
	if err := w.config.Sandboxes.Set([]sandbox.Entry{{Name: "a", Listener: "la"}, {Name: "b", Listener: "lb"}}); err != nil {
		t.Fatal(err)
	}
	a, err := w.Names.Bind(t.Context(), sandbox.Peer{Listener: "la"}, policy.DNSQuery{Name: "good.test", Type: "A"})
	if err != nil {
		t.Fatal(err)
	}
	if name, in := w.Names.OfPlaceholder(sandbox.Peer{Listener: "lb"}, a.IPv4); name != "" || in {
		t.Errorf("in the other sandbox it is %q, %v", name, in)
	}
	if name, in := w.Names.OfPlaceholder(sandbox.Peer{Listener: "lc"}, a.IPv4); name != "" || in {
		t.Errorf("for a stranger it is %q, %v", name, in)
	}
	_, err = w.Names.Bind(t.Context(), sandbox.Peer{Listener: "lc"}, policy.DNSQuery{Name: "good.test", Type: "A"})
	refusalOf(t, err, policy.UnknownSandbox)
}

func TestADenialOfTheWayInIsRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	r := w.Deny(peer, ask(t, "93.184.216.34:443"), policy.UDPDenied, "no datagrams")
	if r.Decision.Class != policy.UDPDenied || r.Decision.Policy == "" {
		t.Errorf("%+v", r)
	}
	records := w.records(t, record.KindOpen)
	if len(records) != 1 || records[0].Decision.Class != "udp-denied" || records[0].Dst.Host != "93.184.216.34" {
		t.Errorf("recorded %+v", records)
	}
}

// TestForeseeingPermitsAndRecordsNothing asks what would happen.
func TestForeseeingPermitsAndRecordsNothing(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Port == 443 {
			return allow(r)
		}
		return deny(r)
	})))
	if !w.Outlook.Allows(t.Context(), peer, ask(t, "good.test:443")) || w.Outlook.Allows(t.Context(), peer, ask(t, "good.test:80")) {
		t.Error("it is not foreseen what is decided")
	}
	if n := len(w.records(t, record.KindOpen)); n != 0 || w.Flows.Count() != 0 || w.zone.asked.Load() != 0 {
		t.Errorf("%d records, %d flows", n, w.Flows.Count())
	}
}

// TestATallyCountsWhatPassedAndWhatDidNot drives a gate as ways in do.
func TestATallyCountsWhatPassedAndWhatDidNot(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Host == "evil.test" || r.Destination.Host == "asked.test" {
			return deny(r)
		}
		return allow(r)
	})))
	var tally Tally
	w.config.Tally, w.Names.placeholders.Range = &tally, names.DefaultRange()
	w.zone.addrs["good.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	w.bind(t, "evil.test")
	w.bind(t, "asked.test")
	w.bind(t, "good.test")
	for range 2 {
		f, err := w.Open(t.Context(), peer, ask(t, "good.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close(End{Up: 10, Down: 100, Outcome: "closed"})
		if _, err := w.Open(t.Context(), peer, ask(t, "evil.test:443")); !errors.As(err, new(*Refusal)) {
			t.Fatal(err)
		}
	}
	w.bind(t, "idle.test")
	got := tally.Counts()
	denied := got.Denied
	got.Denied = nil
	if want := (Counts{Requests: 2, Hosts: 1, Up: 20, Down: 200, Names: 1}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if len(denied) != 2 || denied[0].Host != "evil.test" || denied[0].Times != 2 || denied[0].Port != 443 || denied[0].Class == "" {
		t.Fatalf("denied %+v", denied)
	}
	if denied[1].Host != "asked.test" || denied[1].Times != 1 || denied[1].Port != 0 {
		t.Errorf("a name that was only asked for: %+v", denied[1])
	}
}

// TestAnAnswerStandsForItsName asks for the IPv4 addresses of a name that has both, of which egressd does not know how long they hold.
func TestAnAnswerStandsForItsName(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.BindAnswers = true
	six := netip.MustParseAddr("2606:2800:220:1::1")
	w.zone.addrs["a.test"] = append([]netip.Addr{six}, somewhere...)
	a, err := w.Resolve(t.Context(), peer, questionOf("a.test", "A"))
	if err != nil || !slices.Equal(a.Addrs, somewhere) || a.TTL != time.Second {
		t.Fatalf("%+v, %v", a, err)
	}
	if got, other := w.Names.OfAnswer(peer, somewhere[0]), w.Names.OfAnswer(peer, six); got != "a.test" || other != "" {
		t.Errorf("right after the answer the addresses stand for %q and %q", got, other)
	}
}

// TestAPolicyMentionsWhatItsRulesAreAbout, and lets the name decide that a client claims at an address that they do not
// mention.
func TestAPolicyMentionsWhatItsRulesAreAbout(t *testing.T) {
	parsed, err := file.Parse("test.yaml", []byte("version: 1\nallow: [good.test, \"*.any.test:8443\", \"93.184.216.34:443\"]\ndeny: [\"evil.test:*\", 93.184.216.35]\nask: [\"maybe.test:443\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p)
	for text, want := range map[string]struct{ mentions, awaits bool }{
		"good.test:443":      {true, false},
		"good.test:22":       {false, false},
		"evil.test:22":       {true, false},
		"maybe.test:443":     {true, false},
		"other.test:443":     {false, false},
		"93.184.216.34:443":  {true, false},
		"93.184.216.34:80":   {false, true},
		"93.184.216.34:8443": {false, true},
		"93.184.216.34:22":   {false, false}, // where no name could pass
		"93.184.216.35:443":  {true, false},
		"10.0.0.5:443":       {true, false},
		"[fd12::5]:443":      {true, false},
		"127.0.0.1:80":       {true, false},
	} {
		r := ask(t, text)
		if got := w.Outlook.Mentions(t.Context(), peer, r); got != want.mentions {
			t.Errorf("%s: Mentions is %v", text, got)
		}
		if got := w.Outlook.AwaitsName(t.Context(), peer, r); got != want.awaits {
			t.Errorf("%s: AwaitsName is %v", text, got)
		}
	}
	if n := len(w.records(t, record.KindOpen)); n != 0 || w.Flows.Count() != 0 || w.zone.asked.Load() != 0 {
		t.Errorf("%d records, %d flows", n, w.Flows.Count())
	}
}
