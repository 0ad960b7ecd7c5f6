package dns

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/policy"
)

// head is a header with one question and what follows it.
func head(flags string, counts ...byte) string {
	b := "\xab\xcd" + flags
	for _, n := range counts {
		b += "\x00" + string([]byte{n})
	}
	return b
}

const (
	allowedA = "\x07allowed\x04test\x00\x00\x01\x00\x01"
	plainOPT = "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
	query1   = "\x01\x00"
)

// TestMessagesThatAreNoQuery reads what has to be refused, and says how.
func TestMessagesThatAreNoQuery(t *testing.T) {
	long := "\x3f" + strings.Repeat("a", 63)
	for says, row := range map[string]struct {
		msg   string
		rcode int
		class policy.Class
	}{
		"nothing":                       {"", 0, policy.MalformedRequest},
		"eleven bytes":                  {head(query1, 1, 0, 0, 0)[:11], 0, policy.MalformedRequest},
		"a response":                    {head("\x81\x80", 1, 0, 0, 0) + allowedA, 0, policy.MalformedRequest},
		"a notification":                {head("\x21\x00", 1, 0, 0, 0) + allowedA, dns.RcodeNotImplemented, policy.MalformedRequest},
		"a truncated query":             {head("\x03\x00", 1, 0, 0, 0) + allowedA, dns.RcodeFormatError, policy.MalformedRequest},
		"no question":                   {head(query1, 0, 0, 0, 0), dns.RcodeFormatError, policy.MalformedRequest},
		"two questions":                 {head(query1, 2, 0, 0, 0) + allowedA + allowedA, dns.RcodeFormatError, policy.MalformedRequest},
		"an answer":                     {head(query1, 1, 1, 0, 0) + allowedA, dns.RcodeFormatError, policy.MalformedRequest},
		"an authority":                  {head(query1, 1, 0, 1, 0) + allowedA, dns.RcodeFormatError, policy.MalformedRequest},
		"two additional records":        {head(query1, 1, 0, 0, 2) + allowedA + plainOPT + plainOPT, dns.RcodeFormatError, policy.MalformedRequest},
		"a question that is cut":        {head(query1, 1, 0, 0, 0) + allowedA[:16], dns.RcodeFormatError, policy.MalformedRequest},
		"a byte after it":               {head(query1, 1, 0, 0, 0) + allowedA + "\x00", dns.RcodeFormatError, policy.MalformedRequest},
		"an OPT that is announced":      {head(query1, 1, 0, 0, 1) + allowedA, dns.RcodeFormatError, policy.MalformedRequest},
		"an OPT that is not":            {head(query1, 1, 0, 0, 0) + allowedA + plainOPT, dns.RcodeFormatError, policy.MalformedRequest},
		"an OPT of somebody":            {head(query1, 1, 0, 0, 1) + allowedA + "\x01a" + plainOPT, dns.RcodeFormatError, policy.MalformedRequest},
		"a TSIG":                        {head(query1, 1, 0, 0, 1) + allowedA + "\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x00", dns.RcodeFormatError, policy.MalformedRequest},
		"an OPT that is longer":         {head(query1, 1, 0, 0, 1) + allowedA + plainOPT + "\x00", dns.RcodeFormatError, policy.MalformedRequest},
		"an option that is longer":      {head(query1, 1, 0, 0, 1) + allowedA + plainOPT[:10] + "\x05\x00\x0a\x00\x02\x00", dns.RcodeFormatError, policy.MalformedRequest},
		"half an option":                {head(query1, 1, 0, 0, 1) + allowedA + plainOPT[:10] + "\x02\x00\x0a", dns.RcodeFormatError, policy.MalformedRequest},
		"EDNS of version 1":             {head(query1, 1, 0, 0, 1) + allowedA + "\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00", dns.RcodeBadVers, policy.MalformedRequest},
		"a label with a dot":            {head(query1, 1, 0, 0, 0) + "\x09x.allowed\x04test\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a label with a NUL":            {head(query1, 1, 0, 0, 0) + "\x05evil\x00\x07allowed\x04test\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a label of 64 bytes":           {head(query1, 1, 0, 0, 0) + "\x40" + strings.Repeat("a", 64) + "\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a pointer":                     {head(query1, 1, 0, 0, 0) + "\xc0\x0c\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a pointer that is cut":         {head(query1, 1, 0, 0, 0) + "\x01a\xc0", dns.RcodeFormatError, policy.MalformedHost},
		"a name without an end":         {head(query1, 1, 0, 0, 0) + "\x07allowed", dns.RcodeFormatError, policy.MalformedHost},
		"a label that is cut":           {head(query1, 1, 0, 0, 0) + "\x07allow", dns.RcodeFormatError, policy.MalformedHost},
		"a name of 255 bytes":           {head(query1, 1, 0, 0, 0) + long + long + long + "\x3e" + strings.Repeat("a", 62) + "\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a name of 257 bytes":           {head(query1, 1, 0, 0, 0) + long + long + long + long + "\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"the root":                      {head(query1, 1, 0, 0, 0) + "\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"an address":                    {head(query1, 1, 0, 0, 0) + "\x03127\x010\x010\x011\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
		"a label that begins with dash": {head(query1, 1, 0, 0, 0) + "\x02-a\x04test\x00\x00\x01\x00\x01", dns.RcodeFormatError, policy.MalformedHost},
	} {
		m, bad := readMessage([]byte(row.msg))
		silent := len(row.msg) < headerSize || row.msg[2]&0x80 != 0
		if bad.class != row.class || bad.rcode != row.rcode || bad.silent != silent || bad.why == "" || m.name != "" {
			t.Errorf("%s: %+v and %q", says, bad, m.name)
		}
	}
}

func TestQueriesAreRead(t *testing.T) {
	m, bad := readMessage([]byte(head("\x01\x30", 1, 0, 0, 1) + "\x07AlloWED\x04tEst\x00\x00\x1c\x00\x03" + "\x00\x00\x29\xff\xff\x00\x00\x80\x00\x00\x05\x00\x0c\x00\x01\x00"))
	if bad != (flaw{}) || m.name != "allowed.test" || m.kind != typeAAAA || m.class != 3 || m.id != 0xabcd || !m.edns || m.size != mostUDP || m.keep != flagRecursion|flagChecking {
		t.Errorf("%+v, %+v", m, bad)
	}
	if string(m.question) != "\x07AlloWED\x04tEst\x00\x00\x1c\x00\x03" {
		t.Errorf("the question is %q", m.question)
	}
	long := "\x3f" + strings.Repeat("a", 63)
	m, bad = readMessage([]byte(head(query1, 1, 0, 0, 0) + long + long + long + "\x3d" + strings.Repeat("a", 61) + "\x00\x00\x01\x00\x01"))
	if bad != (flaw{}) || len(m.name) != maxName || m.size != leastUDP {
		t.Errorf("the longest name: %d bytes, %+v", len(m.name), bad)
	}
}

func TestExtendedErrorsFitOrAreLeftOut(t *testing.T) {
	m, _ := readMessage([]byte(head(query1, 1, 0, 0, 1) + allowedA + plainOPT))
	a := answer{rcode: dns.RcodeRefused, ede: 18, text: "unknown-sandbox 01KB6ZQ4SZ"}
	bare := headerSize + len(allowedA) + optSize
	for size, want := range map[int]int{512: bare + 6 + len(a.text), bare + 6 + len(a.text) - 1: bare + 6, bare + 6: bare + 6, bare + 5: bare, bare: bare} {
		if b := a.appendTo(nil, &m, size); len(b) != want || new(dns.Msg).Unpack(b) != nil {
			t.Errorf("within %d bytes: %d, want %d", size, len(b), want)
		}
	}
	short := bare + 6 + len(a.text)
	a.more = ". The operator says: ask"
	for size, want := range map[int]int{512: short + len(a.more), short + len(a.more) - 1: short, short - 1: bare + 6} {
		if b := a.appendTo(nil, &m, size); len(b) != want {
			t.Errorf("with words of the operator, within %d bytes: %d, want %d", size, len(b), want)
		}
	}
}

// FuzzMessages reads anything. What is read as a query has the name that the codec
// reads, a name that policies can be asked about, and nothing but one question; and
// the response to anything can be read, is about the same, and not too long.
func FuzzMessages(f *testing.F) {
	for _, msg := range []string{"", head(query1, 1, 0, 0, 0) + allowedA, head(query1, 1, 0, 0, 1) + allowedA + plainOPT,
		head(query1, 1, 0, 0, 0) + "\x09x.allowed\x04test\x00\x00\x01\x00\x01", head(query1, 1, 0, 0, 0) + "\xc0\x0c\x00\x01\x00\x01",
		head(query1, 2, 0, 0, 0) + allowedA + allowedA} {
		f.Add([]byte(msg))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		before := bytes.Clone(msg)
		m, bad := readMessage(msg)
		if !bytes.Equal(msg, before) {
			t.Fatal("reading changed the message")
		}
		if bad == (flaw{}) {
			sameAsCodec(t, msg, &m)
		} else if m.name != "" || bad.class == "" {
			t.Fatalf("%+v, %q", bad, m.name)
		}
		if bad.silent {
			return
		}
		a := answer{rcode: bad.rcode, ttl: time.Second, ede: 17, text: "class id"}
		if bad == (flaw{}) {
			a.addrs = []netip.Addr{netip.IPv6Loopback()}
		}
		b := a.appendTo(nil, &m, m.size)
		said := new(dns.Msg)
		if err := said.Unpack(b); err != nil || len(b) > m.size || said.Id != m.id || !said.Response || said.Rcode&0xf != bad.rcode&0xf {
			t.Fatalf("response %x: %v", b, err)
		}
	})
}

// sameAsCodec compares what was read with what the codec reads.
func sameAsCodec(t *testing.T, msg []byte, m *message) {
	theirs := new(dns.Msg)
	if err := theirs.Unpack(msg); err != nil {
		t.Fatalf("the codec refuses %x: %v", msg, err)
	}
	if !canonical(m.name) || len(theirs.Question) != 1 || plain(theirs.Question[0].Name) != m.name ||
		theirs.Question[0].Qtype != m.kind || theirs.Question[0].Qclass != m.class || len(theirs.Answer)+len(theirs.Ns) > 0 {
		t.Fatalf("%x was read as %+v, and by the codec as %v", msg, m, theirs)
	}
}
