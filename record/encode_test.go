package record

import (
	"net/netip"
	"strings"
	"testing"
)

// TestTheEncodingOfEachPartIsCanonical writes the parts that the Encoder knows and decodes the line.
func TestTheEncodingOfEachPartIsCanonical(t *testing.T) {
	every := make([]byte, 0, 256)
	for b := range 256 {
		every = append(every, byte(b))
	}
	var e Encoder
	e.Open("")
	e.Text("kind", string(KindRefused))
	e.Number("count", 3)
	e.Text("sandbox", "")
	e.AddrPort("src", netip.MustParseAddrPort("[2001:db8::1]:7"))
	e.Open("dst")
	e.Addrs("addrs", []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")})
	e.Addr("addr", netip.MustParseAddr("192.0.2.1"))
	e.Addr("class", netip.Addr{})
	e.Close()
	e.Open("tls")
	e.List("alpn", []string{"h2", "\x00"})
	e.Flag("ech", true)
	e.Flag("inspected", false)
	e.Close()
	e.Raw(every)
	e.TextWithin("note", strings.Repeat("\n", 100), 20)
	e.Close()
	var d Decoder
	var b Buffer
	if !d.canonical(&b, string(e.Line)) {
		t.Fatalf("not canonical: %s", e.Line)
	}
	raw := make([]byte, 0, 256)
	for _, r := range b.Raw { // a character stands for a byte
		raw = append(raw, byte(r))
	}
	if string(raw) != string(every) || b.Note != "\n\n\n" || b.Src != "[2001:db8::1]:7" || b.Dst.Addrs[1] != "2001:db8::1" || b.TLS.ALPN[1] != "\x00" || b.Times() != 3 {
		t.Errorf("%s\nis %+v", e.Line, b.Record)
	}
}
