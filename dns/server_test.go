package dns

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// TestWhatIsAnswered asks one question a row, over UDP and TCP, and compares the
// response, the record's class, and what the name server was asked.
func TestWhatIsAnswered(t *testing.T) {
	for _, row := range []struct {
		name string
		kind uint16
		want string
		rule string // class of the last record, "" where it allows
		asks bool
	}{
		{"allowed.test.", dns.TypeA, "NOERROR allowed.test. 60 IN A 93.184.216.34", "", true},
		{"a.b.allowed.test.", dns.TypeAAAA, "NOERROR a.b.allowed.test. 60 IN AAAA 2606:2800:220:1::1", "", true},
		{"AlLoWeD.TeSt.", dns.TypeA, "NOERROR AlLoWeD.TeSt. 60 IN A 93.184.216.34", "", true},
		{"good.allowed.test.", dns.TypeA, "NOERROR good.allowed.test. 60 IN A 93.184.216.34", "", true},
		{"forever.allowed.test.", dns.TypeA, "NOERROR forever.allowed.test. 300 IN A 93.184.216.34", "", true},
		{"moment.allowed.test.", dns.TypeA, "NOERROR moment.allowed.test. 1 IN A 93.184.216.34", "", true},
		{"nx.allowed.test.", dns.TypeA, "NXDOMAIN", "", true},
		{"nodata.allowed.test.", dns.TypeA, "NOERROR", "", true},
		{"mixed.allowed.test.", dns.TypeAAAA, "REFUSED EDE 17", "address-denied", true},
		{"broken.allowed.test.", dns.TypeA, "SERVFAIL EDE 23", "", true},
		{"priv.allowed.test.", dns.TypeA, "REFUSED EDE 17", "address-denied", true},
		{"split.allowed.test.", dns.TypeA, "REFUSED EDE 17", "address-denied", true},
		{"cname.allowed.test.", dns.TypeA, "REFUSED EDE 17", "address-denied", true},
		{"evil.test.", dns.TypeA, "REFUSED EDE 15", "default-deny", false},
		{"736563726574.evil.test.", dns.TypeAAAA, "REFUSED EDE 15", "default-deny", false},
		{"xallowed.test.", dns.TypeA, "REFUSED EDE 15", "default-deny", false},
		{"allowed.test.evil.test.", dns.TypeA, "REFUSED EDE 15", "default-deny", false},
		{"metadata.google.internal.", dns.TypeA, "REFUSED EDE 17", "address-denied", false},
		{"dns.google.", dns.TypeA, "REFUSED EDE 15", "default-deny", false},
		{"allowed.test.", dns.TypeHTTPS, "NOERROR", "", false},
		{"_8443._https.allowed.test.", dns.TypeSVCB, "NOERROR", "", false},
		{"evil.test.", dns.TypeHTTPS, "REFUSED EDE 15", "default-deny", false},
		{"allowed.test.", dns.TypeANY, "REFUSED EDE 17", "dns-type-denied", false},
		{"x.allowed.test.", dns.TypeTXT, "REFUSED EDE 17", "dns-type-denied", false},
		{"x.allowed.test.", dns.TypeNULL, "REFUSED EDE 17", "dns-type-denied", false},
		{"x.allowed.test.", dns.TypeMX, "REFUSED EDE 17", "dns-type-denied", false},
		{"_x._tcp.allowed.test.", dns.TypeSRV, "REFUSED EDE 17", "dns-type-denied", false},
		{"x.allowed.test.", dns.TypeCNAME, "REFUSED EDE 17", "dns-type-denied", false},
		{"allowed.test.", dns.TypeKEY, "REFUSED EDE 17", "dns-type-denied", false},
		{"allowed.test.", dns.TypeAXFR, "REFUSED EDE 17", "dns-type-denied", false},
		{"allowed.test.", 65399, "REFUSED EDE 17", "dns-type-denied", false},
		{"34.216.184.93.in-addr.arpa.", dns.TypePTR, "REFUSED EDE 17", "dns-type-denied", false},
		{"x\\.allowed.test.", dns.TypeA, "FORMERR EDE 0", "malformed-host", false},
		{"evil\\000.allowed.test.", dns.TypeA, "FORMERR EDE 0", "malformed-host", false},
		{"a\\ b.allowed.test.", dns.TypeA, "FORMERR EDE 0", "malformed-host", false},
		{".", dns.TypeA, "FORMERR EDE 0", "malformed-host", false},
		{"127.0.0.1.", dns.TypeA, "FORMERR EDE 0", "malformed-host", false},
		{"localhost.", dns.TypeA, "NOERROR localhost. 300 IN A 127.0.0.1", "", false},
		{"x.localhost.", dns.TypeAAAA, "NOERROR x.localhost. 300 IN AAAA ::1", "", false},
		{"use-application-dns.net.", dns.TypeA, "NXDOMAIN", "", false},
		{"ipv4only.arpa.", dns.TypeAAAA, "NOERROR", "", false},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(row.name+" "+dns.Type(row.kind).String()+" "+network, func(t *testing.T) {
				d := newFilterWorld(t, setting{})
				m := d.ask(t, network, questionFor(row.name, row.kind))
				if got := summary(m); got != strings.TrimSuffix(row.want, " EDE 0") {
					t.Errorf("answered %q, want %q", got, row.want)
				}
				if len(m.Ns) != 0 || len(m.Extra) > 1 || m.Rcode != dns.RcodeFormatError && len(m.Extra) == 0 || !m.RecursionAvailable || m.Authoritative {
					t.Errorf("the response holds more than an answer: %v", m)
				}
				d.recorded(t, row.name, row.kind, row.rule)
				if asked := d.up.queries(); (len(asked) > 0) != row.asks {
					t.Errorf("the name server was asked %v", asked)
				}
			})
		}
	}
}

// recorded checks the last record, that it says what was asked, and that there is
// no other unless the first let the name be looked up.
func (d *filterWorld) recorded(t *testing.T, name string, kind uint16, class string) {
	t.Helper()
	all := d.records(t)
	if len(all) == 0 || len(all) > 2 {
		t.Fatalf("%d records: %+v", len(all), all)
	}
	if len(all) == 2 && (all[0].Decision.Action != "allow" || class != "address-denied") {
		t.Errorf("two records: %+v", all)
	}
	r := all[len(all)-1]
	action := map[bool]string{true: "allow", false: "deny"}[class == ""]
	if r.Decision.Class != class || r.Decision.Action != action || r.Sandbox != "default" || r.Via != "dns" || r.Src == "" || r.Decision.Policy == "" {
		t.Errorf("recorded %+v with %+v", r, r.Decision)
	}
	if class == "malformed-host" {
		if r.Kind != record.KindRefused || r.Raw == "" {
			t.Errorf("recorded as %+v", r)
		}
		return
	}
	if want := strings.ToLower(strings.TrimSuffix(name, ".")); r.DNS == nil || r.DNS.Name != want || r.DNS.Type != dns.Type(kind).String() {
		t.Errorf("recorded the question as %+v", r.DNS)
	}
	if class == "address-denied" && (r.Dst == nil || r.Dst.Class == "" || r.Dst.Port != 0) {
		t.Errorf("recorded the destination as %+v", r.Dst)
	}
}

// TestADeniedAliasRefusesTheName has a name lead by way of another that a line
// denies.
func TestADeniedAliasRefusesTheName(t *testing.T) {
	d := newFilterWorld(t, setting{policy: onlyAllowed + "deny: [denied.test]\n"})
	m := d.ask(t, "udp", questionFor("evil.allowed.test.", dns.TypeA))
	if got := summary(m); got != "REFUSED EDE 15" {
		t.Errorf("answered %s", got)
	}
	if _, text := extended(m); !strings.HasPrefix(text, "rule-deny ") || len(text) < len("rule-deny 01KB6ZQ4SZ") {
		t.Errorf("the extended error says %q", text)
	}
}

// TestACachedAnswerIsDecidedAgain asks for a cached name under a new policy.
func TestACachedAnswerIsDecidedAgain(t *testing.T) {
	d := newFilterWorld(t, setting{})
	q := questionFor("allowed.test.", dns.TypeA)
	for range 2 {
		if got := summary(d.ask(t, "udp", q)); !strings.HasPrefix(got, "NOERROR allowed.test.") {
			t.Fatal(got)
		}
	}
	if asked := d.up.queries(); len(asked) != 2 {
		t.Errorf("the name server was asked %v", asked)
	}
	if n := len(d.records(t)); n != 2 {
		t.Errorf("%d records of two questions", n)
	}
	d.enforce(t, "version: 1\nallow: [other.test]\n")
	if got := summary(d.ask(t, "udp", q)); got != "REFUSED EDE 15" {
		t.Errorf("after the change: %s", got)
	}
	d.enforce(t, "version: 1\nallow: [allowed.test]\ndeny: [93.184.216.0/24]\n")
	if got := summary(d.ask(t, "udp", q)); got != "REFUSED EDE 15" {
		t.Errorf("with its address denied: %s", got)
	}
}

// TestRebindingNames has a name change its address from one answer to the next.
func TestRebindingNames(t *testing.T) {
	var asked4 int
	d := newFilterWorld(t, setting{script: func(q *asked) {
		at := "93.184.216.34"
		if q.family() == "A" {
			if asked4++; asked4 > 1 {
				at = "127.0.0.1"
			}
		}
		q.answer(q.msg.Question[0].Name + " 0 A " + at)
	}})
	q := questionFor("rebind.allowed.test.", dns.TypeA)
	if got := summary(d.ask(t, "udp", q)); got != "NOERROR rebind.allowed.test. 1 IN A 93.184.216.34" {
		t.Fatal(got)
	}
	for range 5 {
		if got := summary(d.ask(t, "udp", q)); got != "REFUSED EDE 17" {
			t.Error(got)
		}
	}
}

// TestSandboxesAreKnownByTheirAddress gives one source to a sandbox, and asks from
// there and from elsewhere.
func TestSandboxesAreKnownByTheirAddress(t *testing.T) {
	d := newFilterWorld(t, setting{
		policy:    onlyAllowed + "sandboxes: [{name: web, source: [127.0.0.2/32], allow: [allowed.test]}]\n",
		sandboxes: []sandbox.Entry{{Name: "web", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}},
	})
	from := func(at string, q *dns.Msg) *dns.Msg {
		c := dns.Client{Timeout: 30 * time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(at)}}}
		m, _, err := c.Exchange(q, d.udp)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if got := summary(from("127.0.0.2", questionFor("allowed.test.", dns.TypeA))); !strings.HasPrefix(got, "NOERROR allowed.test.") {
		t.Errorf("its own sandbox: %s", got)
	}
	if got := summary(from("127.0.0.2", questionFor("x.allowed.test.", dns.TypeA))); got != "REFUSED EDE 15" {
		t.Errorf("a name that others may ask for: %s", got)
	}
	q := questionFor("allowed.test.", dns.TypeA)
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"})
	m := from("127.0.0.3", q)
	if got := summary(m); got != "REFUSED EDE 18" {
		t.Errorf("nobody: %s", got)
	}
	last := d.records(t)
	if r := last[len(last)-1]; r.Decision.Class != "unknown-sandbox" || r.Sandbox != "" || !strings.HasPrefix(r.Src, "127.0.0.3:") {
		t.Errorf("recorded %+v", r)
	}
	for _, more := range []int{0, 1, 10, 20, 100} {
		q := questionFor("allowed.test.", dns.TypeA)
		if more > 0 {
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, more)}}
		}
		sent, _ := q.Pack()
		got, _ := from("127.0.0.3", q).Pack()
		if len(got) > len(sent) {
			t.Errorf("%d bytes were answered to %d from nobody", len(got), len(sent))
		}
	}
}

// TestNobodysMessagesAreFewRecords floods from an address that is no sandbox's.
func TestNobodysMessagesAreFewRecords(t *testing.T) {
	d := newFilterWorld(t, setting{sandboxes: []sandbox.Entry{{Name: "web", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}}})
	for range 300 {
		if m := d.ask(t, "udp", questionFor("allowed.test.", dns.TypeA)); m.Rcode != dns.RcodeRefused {
			t.Fatal(summary(m))
		}
	}
	d.gate.Records.Settle()
	times := int64(0)
	for _, r := range d.records(t) {
		times += r.Times()
	}
	if n := len(d.records(t)); times != 300 || n > 200 {
		t.Errorf("%d records of %d refusals, want few of 300", n, times)
	}
}

// TestTooManyQuestions asks without pause.
func TestTooManyQuestions(t *testing.T) {
	d := newFilterWorld(t, setting{questions: names.Limits{PerSecond: 1}})
	refused := 0
	for range 20 {
		m := d.ask(t, "udp", questionFor("allowed.test.", dns.TypeA))
		if _, text := extended(m); m.Rcode == dns.RcodeRefused && strings.HasPrefix(text, "dns-budget") {
			refused++
		}
	}
	if refused < 10 || refused == 20 {
		t.Errorf("%d of 20 were refused", refused)
	}
	d.gate.Records.Settle()
	told := 0
	for _, r := range d.records(t) {
		if r.Decision.Class == "dns-budget" {
			told += int(r.Times())
		}
	}
	if told != refused {
		t.Errorf("the records say that %d were refused, and %d were", told, refused)
	}
}

// TestAnswersThatAreTooLong asks for a name with many addresses.
func TestAnswersThatAreTooLong(t *testing.T) {
	d := newFilterWorld(t, setting{})
	small := new(dns.Msg).SetQuestion("many.allowed.test.", dns.TypeAAAA)
	if m := d.ask(t, "udp", small); !m.Truncated || len(m.Answer) != 0 {
		t.Errorf("without EDNS: truncated %v, %d addresses", m.Truncated, len(m.Answer))
	}
	large := questionFor("many.allowed.test.", dns.TypeAAAA)
	m := d.ask(t, "udp", large)
	if b, _ := m.Pack(); m.Truncated || len(m.Answer) != maxAddrs || len(b) > 4096 {
		t.Errorf("with EDNS: truncated %v, %d addresses", m.Truncated, len(m.Answer))
	}
	if m := d.ask(t, "tcp", small); m.Truncated || len(m.Answer) != maxAddrs {
		t.Errorf("over TCP: truncated %v, %d addresses", m.Truncated, len(m.Answer))
	}
}

// TestWhatCannotBeRecordedIsNotAnswered closes the log.
func TestWhatCannotBeRecordedIsNotAnswered(t *testing.T) {
	d := newFilterWorld(t, setting{})
	d.log.Close()
	for _, name := range []string{"allowed.test.", "evil.test.", "localhost.", "x\\.allowed.test."} {
		if got := summary(d.ask(t, "udp", questionFor(name, dns.TypeA))); !strings.HasPrefix(got, "SERVFAIL") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if asked := d.up.queries(); len(asked) > 0 {
		t.Errorf("the name server was asked %v", asked)
	}
}

// TestAnswersComeFromWhereTheQuestionWent asks a socket on every address by one
// that is not the host's first.
func TestAnswersComeFromWhereTheQuestionWent(t *testing.T) {
	d := newFilterWorld(t, setting{at: "0.0.0.0"})
	_, port, _ := net.SplitHostPort(d.udp)
	for _, name := range []string{"allowed.test.", "allowed.test.", "evil.test."} {
		c := dns.Client{Timeout: 30 * time.Second} // its socket takes packets of one address alone
		if _, _, err := c.Exchange(questionFor(name, dns.TypeA), "127.0.0.7:"+port); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
