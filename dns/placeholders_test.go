package dns

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/policy"
)

// A serverWorld is a server with a gate behind it.
type serverWorld struct {
	*Server
	udp, tcp string
	tally    egress.Tally
}

func newServerWorld(t *testing.T, limits Limits) *serverWorld {
	t.Helper()
	f := new(serverWorld)
	gate := egresstest.Open(t, "version: 1\nallow: [allowed.test]\n", egress.Config{Placeholders: names.DefaultRange(), Tally: &f.tally})
	f.Server = &Server{Gate: gate, Limits: limits, Placeholders: true}
	f.listen(t)
	return f
}

func (f *serverWorld) listen(t *testing.T) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.udp, f.tcp = c.LocalAddr().String(), l.Addr().String()
	ended := make(chan error, 2)
	go func() { ended <- f.ServeUDP(c, "test") }()
	go func() { ended <- f.ServeTCP(l, "test") }()
	t.Cleanup(func() {
		f.Shutdown()
		for range 2 {
			if err := <-ended; err != ErrServerClosed {
				t.Errorf("ended with %v", err)
			}
		}
	})
}

// ask sends a query over one of the transports.
func (f *serverWorld) ask(t *testing.T, network string, q *dns.Msg) *dns.Msg {
	t.Helper()
	to := f.udp
	if network == "tcp" {
		to = f.tcp
	}
	c := dns.Client{Net: network, Timeout: 30 * time.Second}
	m, _, err := c.Exchange(q, to)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func questionFor(name string, kind uint16) *dns.Msg {
	q := new(dns.Msg).SetQuestion(name, kind)
	return q.SetEdns0(1232, false)
}

func extended(m *dns.Msg) (code uint16, text string) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e.InfoCode, e.ExtraText
			}
		}
	}
	return 0, ""
}

// TestEveryNameHasAnAddress asks for names that are allowed and that are not, in
// more than one spelling.
func TestEveryNameHasAnAddress(t *testing.T) {
	f := newServerWorld(t, Limits{})
	seen := map[string]string{}
	for _, name := range []string{"allowed.test.", "evil.test.", "sEcReT.eViL.TeSt.", "metadata.google.internal.", "x.onion."} {
		for _, network := range []string{"udp", "tcp"} {
			a, aaaa := f.ask(t, network, questionFor(name, dns.TypeA)), f.ask(t, network, questionFor(name, dns.TypeAAAA))
			if len(a.Answer) != 1 || len(aaaa.Answer) != 1 || a.Rcode+aaaa.Rcode != 0 {
				t.Fatalf("%s: %v %v", name, a, aaaa)
			}
			four, six := a.Answer[0].(*dns.A), aaaa.Answer[0].(*dns.AAAA)
			addr, _ := netip.AddrFromSlice(four.A)
			if !names.DefaultRange().IPv4.Contains(addr.Unmap()) || four.Hdr.Name != name || four.Hdr.Ttl != 60 || six.Hdr.Ttl != 60 {
				t.Errorf("%s: %v %v", name, four, six)
			}
			if before := seen[four.A.String()]; before != "" && before != name {
				t.Errorf("%s and %s are both %v", name, before, four.A)
			}
			seen[four.A.String()] = name
		}
	}
}

func TestWhatIsNoQuestionForAnAddressIsRefused(t *testing.T) {
	f := newServerWorld(t, Limits{})
	for _, kind := range []uint16{dns.TypeTXT, dns.TypeMX, dns.TypeNULL, dns.TypeANY, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeNAPTR, dns.TypeCAA, dns.TypeKEY, 65399} {
		m := f.ask(t, "udp", questionFor("x.allowed.test.", kind))
		code, text := extended(m)
		if m.Rcode != dns.RcodeRefused || len(m.Answer) != 0 || code != dns.ExtendedErrorCodeFiltered || !strings.HasPrefix(text, "dns-type-denied ") {
			t.Errorf("type %d: %v", kind, m)
		}
	}
	chaos := questionFor("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	if m := f.ask(t, "udp", chaos); m.Rcode != dns.RcodeRefused || len(m.Answer) != 0 {
		t.Errorf("CHAOS: %v", m)
	}
	if n := len(f.tally.Counts().Denied); n != 2 {
		t.Errorf("%d names are counted as denied", n)
	}
}

func TestSomeNamesHaveTheSameAnswerEverywhere(t *testing.T) {
	f := newServerWorld(t, Limits{})
	for _, row := range []struct {
		name  string
		kind  uint16
		rcode int
		want  string
	}{
		{"localhost.", dns.TypeA, 0, "127.0.0.1"},
		{"a.LOCALHOST.", dns.TypeAAAA, 0, "::1"},
		{"use-application-dns.net.", dns.TypeA, dns.RcodeNameError, ""},
		{"ipv4only.arpa.", dns.TypeAAAA, 0, ""},
		{"allowed.test.", dns.TypeHTTPS, 0, ""},
		{"_x._tcp.allowed.test.", dns.TypeSVCB, 0, ""},
	} {
		m := f.ask(t, "udp", questionFor(row.name, row.kind))
		var got string
		if len(m.Answer) == 1 {
			text := strings.Fields(m.Answer[0].String())
			got = text[len(text)-1]
		}
		if m.Rcode != row.rcode || got != row.want {
			t.Errorf("%s: %v", row.name, m)
		}
	}
}

// TestNamesThatAreNone sends labels that a careless reader takes for others.
func TestNamesThatAreNone(t *testing.T) {
	f := newServerWorld(t, Limits{})
	for _, name := range []string{`x\.allowed.test.`, `a\000b.allowed.test.`, `\128.allowed.test.`, "-a.test.", "10.0.0.5.", "0x7f.1.", ".", `a\032b.test.`} {
		m := f.ask(t, "udp", questionFor(name, dns.TypeA))
		if m.Rcode != dns.RcodeFormatError || len(m.Answer) != 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
}

// TestMessagesThatAreNoQueries sends what the codec takes and the server must not.
func TestMessagesThatAreNoQueries(t *testing.T) {
	f := newServerWorld(t, Limits{})
	change := map[string]func(*dns.Msg){
		"NOTIFY":        func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify },
		"UPDATE":        func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
		"two questions": func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		"no question":   func(m *dns.Msg) { m.Question = nil },
		"an answer with it": func(m *dns.Msg) {
			m.Answer = append(m.Answer, &dns.NULL{Hdr: dns.RR_Header{Name: "x.test.", Rrtype: dns.TypeNULL, Class: 1}, Data: "secret"})
		},
		"more records": func(m *dns.Msg) {
			m.Extra = append(m.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.test.", Rrtype: dns.TypeTXT, Class: 1}, Txt: []string{"secret"}})
		},
	}
	for says, edit := range change {
		q := questionFor("allowed.test.", dns.TypeA)
		edit(q)
		m := f.ask(t, "udp", q)
		if m.Rcode != dns.RcodeFormatError && m.Rcode != dns.RcodeNotImplemented || len(m.Answer) != 0 {
			t.Errorf("%s: %v", says, m)
		}
	}
	c, err := net.Dial("udp", f.udp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer := peerAt(c.LocalAddr().(*net.UDPAddr).AddrPort(), "test")
	for raw, answered := range map[string]bool{
		"": false, "\x00": false,
		"\x00\x01\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00":                         false, // a response
		"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01": true,
	} {
		c.Write([]byte(raw))
		if b := f.respond("udp", peer, c.RemoteAddr(), []byte(raw)); (b != nil) != answered {
			t.Errorf("%q was answered %q", raw, b)
		}
	}
	if m := f.ask(t, "udp", questionFor("allowed.test.", dns.TypeA)); len(m.Answer) != 1 { // and it is still there
		t.Errorf("afterwards: %v", m)
	}
}

func TestTooManyQuestionsAreRefused(t *testing.T) {
	f := new(serverWorld)
	gate := egresstest.Open(t, onlyAllowed, egress.Config{Placeholders: names.DefaultRange(), NameLimits: names.Limits{PerSecond: 1}})
	f.Server = &Server{Gate: gate, Placeholders: true}
	f.listen(t)
	refused := 0
	for range 12 {
		m := f.ask(t, "udp", questionFor("allowed.test.", dns.TypeA))
		if _, text := extended(m); m.Rcode == dns.RcodeRefused && strings.HasPrefix(text, "dns-budget ") {
			refused++
		}
	}
	if refused < 5 || refused == 12 {
		t.Errorf("%d of 12 were refused", refused)
	}
}

// TestIdleConnectionsMakeRoom fills the connections that there may be with silent
// ones.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	f := newServerWorld(t, Limits{PerSource: 2, Idle: 200 * time.Millisecond})
	var all []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", f.tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	for _, c := range all {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("an idle connection ended with %v", err)
		}
	}
	if m := f.ask(t, "tcp", questionFor("allowed.test.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("read %v", m)
	}
}

// TestWhoAsksIsRecorded has the program looked up by the address it asks from.
func TestWhoAsksIsRecorded(t *testing.T) {
	asked := make(chan string, 8)
	who := func(network string, from, to netip.AddrPort) *policy.Process {
		asked <- network + " " + from.String() + " " + to.String()
		return &policy.Process{PID: 7, Exe: "/bin/tool"}
	}
	f := &serverWorld{Server: &Server{Gate: newServerWorld(t, Limits{}).Gate, Placeholders: true, Program: who}}
	f.listen(t)
	for _, network := range []string{"udp", "tcp"} {
		at := map[string]string{"udp": f.udp, "tcp": f.tcp}[network]
		c, err := dns.Dial(network, at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if err := c.WriteMsg(new(dns.Msg).SetQuestion("a.test.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadMsg(); err != nil {
			t.Fatal(err)
		}
		if got, want := <-asked, network+" "+c.LocalAddr().String()+" "+at; got != want {
			t.Errorf("asked for %q, want %q", got, want)
		}
	}
}
