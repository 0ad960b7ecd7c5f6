package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/egress/names"
)

// lookedUp returns what a forwarder finds, as text.
func lookedUp(t *testing.T, f *Forwarder, name, kind string) (all []string, ttl time.Duration, err error) {
	t.Helper()
	rrs, _, err := f.LookupRRs(t.Context(), name, kind)
	for _, data := range rrs.Data {
		wire := answer{data: [][]byte{data}}.appendRecords(make([]byte, headerSize), dns.StringToType[kind])
		wire[headerSize] = 0 // the root in place of the question's name
		rr, _, err := dns.UnpackRR(slices.Delete(wire, headerSize+1, headerSize+2), headerSize)
		if err != nil {
			t.Fatalf("%x: %v", data, err)
		}
		all = append(all, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return all, rrs.TTL, err
}

func TestRecordsAreReadStrictly(t *testing.T) {
	long := strings.Repeat("x", 250)
	var many, large []string
	for i := range 40 {
		many = append(many, fmt.Sprintf(`a.test. 60 IN TXT "%d"`, i))
		large = append(large, fmt.Sprintf(`a.test. 60 IN TXT "%03d%s"`, i, long))
	}
	for _, row := range []struct {
		says, kind string
		records    []string
		want       []string
		number     int // of what is found, where want is nil
		problem    Kind
	}{
		{"services", "SRV", []string{"a.test. 60 IN SRV 1 2 5060 sip.B.test.", "a.test. 30 IN SRV 0 0 0 ."}, []string{"1 2 5060 sip.b.test.", "0 0 0 ."}, 0, 0},
		{"texts of several strings", "TXT", []string{`a.test. 30 IN TXT "v=1 \"q\"" "" "two"`}, []string{`"v=1 \"q\"" "" "two"`}, 0, 0},
		{"the end of an alias", "TXT", []string{"a.test. 30 IN CNAME b.test.", `b.test. 60 IN TXT "b"`, `c.test. 60 IN TXT "c"`}, []string{`"b"`}, 0, 0},
		{"another type", "TXT", []string{"a.test. 30 IN SRV 1 2 3 b.test."}, nil, 0, NotFound},
		{"another class", "TXT", []string{`a.test. 30 CH TXT "x"`}, nil, 0, NotFound},
		{"a target that is no name", "SRV", []string{`a.test. 30 IN SRV 1 2 3 a\.b.test.`}, nil, 0, Malformed},
		{"many", "TXT", many, nil, maxData, 0},
		{"many large ones", "TXT", large, nil, maxDataBytes / 254, 0},
	} {
		t.Run(row.says, func(t *testing.T) {
			f := forwarder(startUpstream(t, func(q *asked) {
				b := q.reply(dns.RcodeSuccess, row.records...)
				if q.network == "udp" && len(b) > maxPacket {
					b = q.reply(dns.RcodeSuccess)
					b[2] |= flagTruncated
				}
				q.send(b)
			}))
			f.RecordTypes = []string{"SRV", "TXT"}
			got, ttl, err := lookedUp(t, f, "a.test", row.kind)
			switch {
			case row.problem != 0:
				if !errors.Is(err, row.problem) || got != nil {
					t.Errorf("%q, %v", got, err)
				}
			case row.want == nil:
				if len(got) != row.number || err != nil {
					t.Errorf("%d records, %v", len(got), err)
				}
			case !slices.Equal(got, row.want) || ttl != 30*time.Second || err != nil:
				t.Errorf("%q for %v, %v", got, ttl, err)
			}
		})
	}
}

func TestDataHasToEndWhereItSays(t *testing.T) {
	for _, row := range []struct {
		rtype uint16
		data  string
		whole bool
	}{
		{dns.TypeTXT, "\x01a", true},
		{dns.TypeTXT, "\x00", true},
		{dns.TypeTXT, "\x01a\x02bc", true},
		{dns.TypeTXT, "", false},
		{dns.TypeTXT, "\x02a", false},
		{dns.TypeTXT, "\x01a\x02b", false},
		{dns.TypeSRV, "\x00\x01\x00\x02\x00\x03\x01b\x00", true},
		{dns.TypeSRV, "\x00\x01\x00\x02\x00\x03", false},
		{dns.TypeSRV, "\x00\x01\x00\x02\x00\x03\x01b", false},
		{dns.TypeSRV, "\x00\x01\x00\x02\x00\x03\x01b\x00x", false},
		{dns.TypeMX, "\x00\x01\x01b\x00", false},
	} {
		msg := append(make([]byte, headerSize), row.data...)
		if got, whole := dataOf(msg, resource{rtype: row.rtype, start: headerSize, end: len(msg)}); whole != row.whole || whole && string(got) != row.data {
			t.Errorf("%d %q: %q, %t", row.rtype, row.data, got, whole)
		}
	}
}

func TestOnlyConfiguredTypesAreLookedUp(t *testing.T) {
	up := startUpstream(t, answering(`a.test. 30 IN TXT "x"`))
	f := forwarder(up)
	for _, types := range [][]string{nil, {"SRV"}, {"txt"}} {
		f.RecordTypes = types
		if got, _, err := lookedUp(t, f, "a.test", "TXT"); err == nil || len(up.queries()) != 0 {
			t.Errorf("with %q: %q, %v", types, got, up.queries())
		}
	}
	f.RecordTypes = []string{"TXT"}
	f.Close()
	if _, _, err := lookedUp(t, f, "a.test", "TXT"); !errors.Is(err, Timeout) || len(up.queries()) != 0 {
		t.Errorf("after Close: %v, %v", err, up.queries())
	}
}

func TestTheNextUpstreamIsAskedForRecords(t *testing.T) {
	f := forwarder(startUpstream(t, failing(dns.RcodeServerFailure)), startUpstream(t, answering(`a.test. 30 IN TXT "x"`)))
	f.RecordTypes = []string{"TXT"}
	if got, _, err := lookedUp(t, f, "a.test", "TXT"); err != nil || !slices.Equal(got, []string{`"x"`}) {
		t.Errorf("%q, %v", got, err)
	}
	f = forwarder(startUpstream(t, silent))
	f.RecordTypes = []string{"TXT"}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := f.LookupRRs(ctx, "a.test", "TXT"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent one: %v", err)
	}
}

// withTypes is an upstream of allowed.test that has records of types that are looked up where they are configured.
func withTypes(q *asked) {
	switch name := plain(q.msg.Question[0].Name); {
	case strings.HasPrefix(name, "nx."):
		q.send(q.reply(dns.RcodeNameError))
	case strings.HasPrefix(name, "alias."):
		q.answer(name+". 60 IN CNAME denied.test.", `denied.test. 60 IN TXT "x"`)
	case strings.HasPrefix(name, "long."):
		q.answer(name + `. 600 IN TXT "` + strings.Repeat("x", 250) + `"`)
	case q.family() == "SRV":
		q.answer(name + ". 60 IN SRV 1 2 5060 evil.test.")
	default:
		q.answer(name+`. 60 IN TXT "x"`, "extra:more.test. 60 A 1.2.3.4")
	}
}

// recordRows are questions for records that both name servers answer alike.
var recordRows = []struct {
	name string
	kind uint16
	want string
	asks bool
}{
	{"allowed.test.", dns.TypeTXT, `NOERROR allowed.test. 60 IN TXT "x"`, true},
	{"_sip._tcp.AlLowed.test.", dns.TypeSRV, "NOERROR _sip._tcp.AlLowed.test. 60 IN SRV 1 2 5060 evil.test.", true},
	{"nx.allowed.test.", dns.TypeTXT, "NXDOMAIN", true},
	{"alias.allowed.test.", dns.TypeTXT, "REFUSED EDE 15", true},
	{"long.allowed.test.", dns.TypeTXT, `NOERROR long.allowed.test. 300 IN TXT "` + strings.Repeat("x", 250) + `"`, true},
	{"evil.test.", dns.TypeTXT, "REFUSED EDE 15", false},
	{"c2VjcmV0._tcp.evil.test.", dns.TypeSRV, "REFUSED EDE 15", false},
	{"allowed.test.", dns.TypeMX, "REFUSED EDE 17", false},
	{"allowed.test.", dns.TypeNULL, "REFUSED EDE 17", false},
	{"allowed.test.", dns.TypeANY, "REFUSED EDE 17", false},
	{"allowed.test.", dns.TypeHTTPS, "NOERROR", false},
}

const typedPolicy = onlyAllowed + "deny: [denied.test]\n"

func TestConfiguredTypesAreAnswered(t *testing.T) {
	for _, row := range recordRows {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(row.name+" "+dns.Type(row.kind).String()+" "+network, func(t *testing.T) {
				d := newFilterWorld(t, setting{policy: typedPolicy, script: withTypes, types: []string{"SRV", "TXT"}})
				if got := summary(d.ask(t, network, questionFor(row.name, row.kind))); got != row.want {
					t.Errorf("answered %q, want %q", got, row.want)
				}
				if asked := d.up.queries(); (len(asked) > 0) != row.asks {
					t.Errorf("the name server was asked %v", asked)
				}
			})
		}
	}
}

// TestConfiguredTypesAreAnsweredToCaptured asks the name server of captured sandboxes.
func TestConfiguredTypesAreAnsweredToCaptured(t *testing.T) {
	for _, row := range recordRows {
		if row.kind == dns.TypeHTTPS { // which no name has there, denied ones included
			continue
		}
		t.Run(row.name+" "+dns.Type(row.kind).String(), func(t *testing.T) {
			up := startUpstream(t, withTypes)
			f := forwarder(up)
			f.RecordTypes = []string{"SRV", "TXT"}
			s := new(serverWorld)
			s.Server = &Server{Placeholders: true, Gate: egresstest.Open(t, typedPolicy, egress.Config{Resolver: f, Placeholders: names.DefaultRange()})}
			s.listen(t)
			for _, network := range []string{"udp", "tcp"} {
				if got := summary(s.ask(t, network, questionFor(row.name, row.kind))); got != row.want {
					t.Errorf("answered %q, want %q", got, row.want)
				}
			}
			if asked := up.queries(); (len(asked) > 0) != row.asks {
				t.Errorf("the name server was asked %v", asked)
			}
		})
	}
}

// TestShutdownWaitsForNoUpstream shuts a server whose upstream never answers.
func TestShutdownWaitsForNoUpstream(t *testing.T) {
	reached := make(chan struct{}, 8)
	f := forwarder(startUpstream(t, func(*asked) { reached <- struct{}{} }))
	f.RecordTypes, f.TotalTimeout, f.Timeout = []string{"TXT"}, time.Hour, time.Hour
	s := new(serverWorld)
	s.Server = &Server{Placeholders: true, Gate: egresstest.Open(t, typedPolicy, egress.Config{Resolver: f, DialTimeout: time.Hour, Placeholders: names.DefaultRange()})}
	s.listen(t)
	c, err := net.Dial("udp", s.udp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, _ := questionFor("allowed.test.", dns.TypeTXT).Pack()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	<-reached
	s.Shutdown() // or the test does not end
}

// TestNamesThatCarryDataToAskForTextAreBounded counts what one sandbox gets through.
func TestNamesThatCarryDataToAskForTextAreBounded(t *testing.T) {
	up := startUpstream(t, withTypes)
	f := forwarder(up)
	f.RecordTypes = []string{"TXT"}
	s := new(serverWorld)
	s.Server = &Server{Placeholders: true, Gate: egresstest.Open(t, typedPolicy, egress.Config{Resolver: f, Placeholders: names.DefaultRange(), NameLimits: names.Limits{NameBytes: 256}})}
	s.listen(t)
	for i := range 40 {
		s.ask(t, "udp", questionFor(fmt.Sprintf("%08x%08x%08x%08x.allowed.test.", i*2654435761, i*40503+77777, i*2246822519, i*3266489917), dns.TypeTXT))
	}
	if n := len(up.queries()); n < 8 || n > 24 {
		t.Errorf("%d of 40 names left", n)
	}
	m := s.ask(t, "udp", questionFor("ffeeddccbbaa99887766.allowed.test.", dns.TypeTXT))
	if _, text := extended(m); m.Rcode != dns.RcodeRefused || !strings.HasPrefix(text, "dns-budget ") {
		t.Errorf("answered %v", m)
	}
}
