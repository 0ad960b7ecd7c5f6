package dns

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/sandbox"
)

// BenchmarkServer is what one question costs beside its two system calls on the
// socket: reading it, the decision, its record, and the response. What a question
// costs that is forwarded, BenchmarkLookupForwarded adds.
func BenchmarkServer(b *testing.B) {
	for _, row := range []struct {
		says, name string
		kind       uint16
	}{
		{"cached", "allowed.test.", dns.TypeA},
		{"denied", "evil.test.", dns.TypeA},
		{"type", "allowed.test.", dns.TypeTXT},
	} {
		b.Run(row.says, func(b *testing.B) {
			d := newFilterWorld(b, setting{questions: names.Limits{PerSecond: 1 << 30}})
			q := questionFor(row.name, row.kind)
			d.ask(b, "udp", q)
			msg, err := q.Pack()
			if err != nil {
				b.Fatal(err)
			}
			peer := sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000"), Listener: "test"}
			at := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53}
			b.ReportAllocs()
			for b.Loop() {
				if d.respond("udp", peer, at, msg) == nil {
					b.Fatal("no response")
				}
			}
		})
	}
}

// BenchmarkReadMessage reads a question with EDNS.
func BenchmarkReadMessage(b *testing.B) {
	msg, err := questionFor("registry.npmjs.allowed.test.", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, bad := readMessage(msg); bad != (flaw{}) {
			b.Fatal(fmt.Sprint(bad))
		}
	}
}
