package dns

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	miekg "github.com/miekg/dns"
)

func TestOnlyTheChainIsFollowed(t *testing.T) {
	for _, row := range []struct {
		name    string
		records []string
		want    []string
		aliases []string
	}{
		{
			"one alias",
			[]string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1"},
			[]string{"192.0.2.1"},
			[]string{"b.test"},
		}, {
			"aliases in any order and case",
			[]string{"C.test. 60 IN A 192.0.2.1", "B.TEST. 60 IN CNAME c.Test.", "A.test. 60 IN CNAME b.test."},
			[]string{"192.0.2.1"},
			[]string{"b.test", "c.test"},
		}, {
			"addresses beside the chain",
			[]string{
				"a.test. 60 IN A 192.0.2.66", "a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1",
				"c.test. 60 IN A 192.0.2.67", "c.test. 60 IN CNAME d.test.", "x.a.test. 60 IN A 192.0.2.68", "test. 60 IN A 192.0.2.69",
			},
			[]string{"192.0.2.1"},
			[]string{"b.test"},
		}, {
			"addresses in other sections",
			[]string{"a.test. 60 IN A 192.0.2.1", "ns:a.test. 60 IN A 192.0.2.66", "extra:a.test. 60 IN A 192.0.2.67"},
			[]string{"192.0.2.1"},
			nil,
		}, {
			"another class",
			[]string{"a.test. 60 CH A 192.0.2.66", "a.test. 60 CH CNAME x.test.", "a.test. 60 IN A 192.0.2.1"},
			[]string{"192.0.2.1"},
			nil,
		}, {
			"a dot inside a label",
			[]string{`a\.test. 60 IN A 192.0.2.66`, "a.test. 60 IN A 192.0.2.1"},
			[]string{"192.0.2.1"},
			nil,
		}, {
			"the same alias twice",
			[]string{"a.test. 60 IN CNAME b.test.", "a.test. 60 IN CNAME B.test.", "b.test. 60 IN A 192.0.2.1"},
			[]string{"192.0.2.1"},
			[]string{"b.test"},
		}, {
			"records of other types",
			[]string{
				"a.test. 60 IN HTTPS 1 evil.test. ipv4hint=192.0.2.66 port=8443", "a.test. 60 IN TXT x",
				"a.test. 60 IN SVCB 0 evil.test.", "a.test. 60 IN DNAME evil.test.", "a.test. 60 IN A 192.0.2.1",
			},
			[]string{"192.0.2.1"},
			nil,
		}, {
			"an alias to localhost is followed inside the message",
			[]string{"a.test. 60 IN CNAME localhost.", "localhost. 60 IN A 127.0.0.1"},
			[]string{"127.0.0.1"}, // for the gate to refuse
			[]string{"localhost"},
		}, {
			"16 aliases",
			chainOf(16),
			[]string{"192.0.2.1"},
			strings.Split("n1.test n2.test n3.test n4.test n5.test n6.test n7.test n8.test n9.test n10.test n11.test n12.test n13.test n14.test n15.test n16.test", " "),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			up := startUpstream(t, answering(append(row.records, soa)...))
			aliases := wantAddrs(t, forwarder(up), "a.test", row.want...)
			if !slices.Equal(aliases, row.aliases) {
				t.Errorf("aliases %q, want %q", aliases, row.aliases)
			}
		})
	}
}

func TestAliasesOfBothFamiliesAreTold(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		if q.family() == "A" {
			q.answer("a.test. 60 IN CNAME b.test.", "b.test. 60 IN CNAME c.test.", "c.test. 60 IN A 192.0.2.1")
			return
		}
		q.answer("a.test. 60 IN CNAME c.test.", "c.test. 60 IN CNAME d.test.", soa) // NODATA
	})
	aliases := wantAddrs(t, forwarder(up), "a.test", "192.0.2.1")
	if want := []string{"c.test", "d.test", "b.test"}; !slices.Equal(aliases, want) {
		t.Errorf("aliases %q, want %q", aliases, want)
	}
}

// chainOf is a chain of n aliases from a.test to an address.
func chainOf(n int) []string {
	owner, records := "a.test.", []string{}
	for i := range n {
		next := fmt.Sprintf("n%d.test.", i+1)
		records = append(records, owner+" 60 IN CNAME "+next)
		owner = next
	}
	return append(records, owner+" 60 IN A 192.0.2.1")
}

func TestAnswersThatAreRefused(t *testing.T) {
	long := strings.Repeat("a.", 126) + "b."
	for _, row := range []struct {
		name    string
		records []string
		want    Kind
	}{
		{"17 aliases", chainOf(17), ServerFailure},
		{"an alias of itself", []string{"a.test. 60 IN CNAME a.test."}, ServerFailure},
		{"an alias of itself beside an address", []string{"a.test. 60 IN CNAME A.test.", "a.test. 60 IN A 192.0.2.66"}, ServerFailure},
		{"a loop", []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN CNAME c.test.", "c.test. 60 IN CNAME b.test.", "c.test. 60 IN A 192.0.2.66"}, ServerFailure},
		{"two aliases", []string{"a.test. 60 IN CNAME b.test.", "a.test. 60 IN CNAME c.test.", "b.test. 60 IN A 192.0.2.66"}, Malformed},
		{"no address at the end", []string{"a.test. 60 IN CNAME b.test.", "a.test. 60 IN A 192.0.2.66"}, NotFound},
		{"an alias to localhost", []string{"a.test. 60 IN CNAME localhost."}, NotFound},
		{"only addresses of others", []string{"b.test. 60 IN A 192.0.2.66"}, NotFound},
		{"an address under a wildcard owner", []string{"*.test. 60 IN A 192.0.2.66"}, NotFound},
		{"an alias to the root", []string{"a.test. 60 IN CNAME ."}, Malformed},
		{"an alias to an address", []string{"a.test. 60 IN CNAME 127.0.0.1.", "127.0.0.1. 60 IN A 192.0.2.66"}, Malformed},
		{"an alias with a dot in a label", []string{`a.test. 60 IN CNAME x\.b.test.`, `x\.b.test. 60 IN A 192.0.2.66`}, Malformed},
		{"an alias with a NUL", []string{`a.test. 60 IN CNAME b\000.test.`}, Malformed},
		{"an alias with a space", []string{`a.test. 60 IN CNAME b\032c.test.`}, Malformed},
		{"an alias with a star", []string{"a.test. 60 IN CNAME *.b.test."}, Malformed},
		{"an alias that is long and ends in nothing", []string{"a.test. 60 IN CNAME " + long}, NotFound},
	} {
		t.Run(row.name, func(t *testing.T) {
			up := startUpstream(t, answering(append(row.records, soa)...))
			wantKind(t, forwarder(up), "a.test", row.want)
			if n := len(up.queries()); n != 2 {
				t.Errorf("%d queries", n)
			}
		})
	}
}

func TestNoSuchNameHasNoAddresses(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		q.send(q.reply(miekg.RcodeNameError, q.fitting([]string{"a.test. 60 IN A 192.0.2.66", soa})...))
	})
	wantKind(t, forwarder(up), "a.test", NotFound)
}

func TestAddressesAreBounded(t *testing.T) {
	var records []string
	for i := range 50 {
		records = append(records, fmt.Sprintf("a.test. 60 IN A 192.0.2.%d", i+1), fmt.Sprintf("a.test. 60 IN AAAA 2001:db8::%x", i+1))
	}
	addrs, _, err := forwarder(startUpstream(t, answering(records...))).Lookup(t.Context(), "a.test")
	if err != nil || len(addrs) != maxAddrs {
		t.Fatalf("%d addresses, %v", len(addrs), err)
	}
	if first, last := addrs[0].String(), addrs[maxAddrs-1].String(); first != "2001:db8::1" || last != "192.0.2.16" {
		t.Errorf("from %s to %s", first, last)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	records := slices.Repeat([]string{"a.test. 60 IN A 192.0.2.1"}, maxRecords+1)
	up := startUpstream(t, func(q *asked) {
		if q.network == "udp" {
			b := q.reply(miekg.RcodeSuccess)
			b[2] |= flagTruncated
			q.send(b)
			return
		}
		q.send(q.reply(miekg.RcodeSuccess, records...))
	})
	wantKind(t, forwarder(up), "a.test", Malformed)
}

func TestAddressesOfTheWrongLength(t *testing.T) {
	for _, family := range []uint16{typeA, typeAAAA} {
		for _, length := range []int{0, 3, 4, 5, 15, 16, 17} {
			r := &reply{rtype: family}
			q := queryFor(t, "a.test", r)
			msg := append(slices.Clone(q.wire[:q.end]), 0xc0, 12, 0, byte(family), 0, 1, 0, 0, 0, 60, 0, byte(length))
			msg = append(msg, make([]byte, length)...)
			copy(msg[2:], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0})
			r.read(msg, q.end, "a.test")
			right := family == typeA && length == 4 || family == typeAAAA && length == 16
			if want := map[bool]Kind{false: Malformed}[right]; r.kind != want {
				t.Errorf("type %d with %d bytes is %d, want %d", family, length, r.kind, want)
			}
		}
	}
}

// TestMessageCutAnywhere cuts a message at every byte behind its question.
func TestMessageCutAnywhere(t *testing.T) {
	r := &reply{rtype: typeA}
	q := queryFor(t, "a.test", r)
	a := &asked{t: t, msg: new(miekg.Msg)}
	if err := a.msg.Unpack(q.wire); err != nil {
		t.Fatal(err)
	}
	whole := a.reply(miekg.RcodeSuccess, "a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1", soa, "extra:x.test. 1 IN A 192.0.2.2")
	for n := q.end; n < len(whole); n++ {
		if r.read(whole[:n:n], q.end, "a.test"); r.kind != Malformed || r.addrs != nil {
			t.Errorf("%d of %d bytes read as %+v", n, len(whole), r)
		}
	}
	if r.read(whole, q.end, "a.test"); r.kind != 0 {
		t.Errorf("the whole reads as %+v", r)
	}
}

func TestDataThatIsLongerThanItsAlias(t *testing.T) {
	r := &reply{rtype: typeA}
	q := queryFor(t, "a.test", r)
	msg := append(slices.Clone(q.wire[:q.end]), 0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, 'b', 0, 0)
	copy(msg[2:], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0})
	if r.read(msg, q.end, "a.test"); r.kind != Malformed {
		t.Errorf("read as %+v", r)
	}
}

func TestShortSOAIsNoReasonToKeep(t *testing.T) {
	msg := bytes.Repeat([]byte{1}, 40)
	if got := negativeTTL(msg, resource{ttl: 60, start: 0, end: 21}); got != 0 {
		t.Errorf("21 bytes of SOA hold for %v", got)
	}
}

func queryFor(t testing.TB, name string, r *reply) *query {
	t.Helper()
	q, err := newQuery(name, r)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// FuzzAnswer puts arbitrary records behind a question that fits. Whatever they
// are, an address comes out only where the codec's own decoder, which shares
// no code with read, sees it in an IN record at the end of the alias chain.
func FuzzAnswer(f *testing.F) {
	seed := func(rcode int, records ...string) {
		q := queryFor(f, "a.test", &reply{rtype: typeA})
		a := &asked{t: f, msg: new(miekg.Msg)}
		if err := a.msg.Unpack(q.wire); err != nil {
			f.Fatal(err)
		}
		msg := a.reply(rcode, records...)
		f.Add(msg[3], msg[6:headerSize], msg[q.end:])
	}
	seed(miekg.RcodeSuccess, "a.test. 60 IN A 192.0.2.1", soa)
	seed(miekg.RcodeSuccess, chainOf(3)...)
	seed(miekg.RcodeSuccess, chainOf(17)...)
	seed(miekg.RcodeNameError, soa)
	seed(miekg.RcodeSuccess, "a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 10.0.0.5", "c.test. 60 IN A 192.0.2.66")
	seed(miekg.RcodeSuccess, `a\.test. 60 IN A 192.0.2.66`, "a.test. 60 CH A 192.0.2.66")
	f.Fuzz(func(t *testing.T, rcode byte, counts, records []byte) {
		r := &reply{rtype: typeA}
		q := queryFor(t, "a.test", r)
		msg := append(slices.Clone(q.wire[:q.end]), records...)
		msg[2], msg[3] = flagResponse, rcode
		copy(msg[6:headerSize], counts)
		if folded, exact := q.fits(msg); !folded || !exact {
			t.Fatal("the response does not fit its query")
		}
		r.read(msg, q.end, "a.test")
		checkReply(t, r, msg)
	})
}

func checkReply(t *testing.T, r *reply, msg []byte) {
	t.Helper()
	if (r.kind == 0) != (len(r.addrs) > 0) || len(r.addrs) > maxRecords || len(r.aliases) > maxChain || r.ttl < 0 {
		t.Fatalf("reply %+v contradicts itself", r)
	}
	owner := "a.test"
	for _, alias := range r.aliases {
		if !canonical(alias) {
			t.Fatalf("alias %q", alias)
		}
		owner = alias
	}
	for _, addr := range r.addrs {
		if !addr.Is4() || !bytes.Contains(msg, addr.AsSlice()) {
			t.Fatalf("address %v is not in the message", addr)
		}
	}
	var m miekg.Msg
	if m.Unpack(msg) != nil {
		return // a record that read passes over does not decode
	}
	for _, addr := range r.addrs {
		if !slices.ContainsFunc(m.Answer, func(rr miekg.RR) bool { return holds(rr, owner, addr) }) {
			t.Fatalf("%v is no address of %s in\n%v", addr, owner, &m)
		}
	}
	for i, alias := range r.aliases {
		from := append([]string{"a.test"}, r.aliases...)[i]
		if !slices.ContainsFunc(m.Answer, func(rr miekg.RR) bool { return leads(rr, from, alias) }) {
			t.Fatalf("%s is no alias of %s in\n%v", from, alias, &m)
		}
	}
}

func holds(rr miekg.RR, owner string, addr netip.Addr) bool {
	a, ok := rr.(*miekg.A)
	if !ok || rr.Header().Class != miekg.ClassINET || !strings.EqualFold(rr.Header().Name, owner+".") {
		return false
	}
	got, _ := netip.AddrFromSlice(a.A)
	return got.Unmap() == addr
}

func leads(rr miekg.RR, from, to string) bool {
	c, ok := rr.(*miekg.CNAME)
	return ok && rr.Header().Class == miekg.ClassINET && strings.EqualFold(rr.Header().Name, from+".") && strings.EqualFold(c.Target, to+".")
}
