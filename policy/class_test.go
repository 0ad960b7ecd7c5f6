package policy

import (
	"encoding/csv"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A block is one row of a registry, read again here by other means.
type block struct {
	prefix    netip.Prefix
	name      string
	reachable string
}

func registryBlocks(t *testing.T, file string) (blocks []block) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines[1:] {
		for _, word := range strings.Fields(strings.ReplaceAll(line[0], ",", " ")) {
			if strings.HasPrefix(word, "[") {
				continue
			}
			blocks = append(blocks, block{netip.MustParsePrefix(word), line[1], line[8]})
		}
	}
	return blocks
}

func allBlocks(t *testing.T) []block {
	return append(registryBlocks(t, "iana/ipv4-special-registry.csv"), registryBlocks(t, "iana/ipv6-special-registry.csv")...)
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// innermost returns the longest block that holds addr.
func innermost(blocks []block, addr netip.Addr) (found block, ok bool) {
	for _, b := range blocks {
		if b.prefix.Contains(addr) && (!ok || b.prefix.Bits() > found.prefix.Bits()) {
			found, ok = b, true
		}
	}
	return found, ok
}

// open says by the rows alone whether addr is public; only mapped and NAT64
// addresses are judged as IPv4 here.
func open(blocks []block, addr netip.Addr) bool {
	addr = addr.Unmap()
	if slices.Contains(metadataAddrs(), addr) || addr.IsMulticast() {
		return false
	}
	b, found := innermost(blocks, addr)
	switch {
	case found && b.prefix.Addr() == netip.MustParseAddr("64:ff9b::"):
		raw := addr.As16()
		return open(blocks, netip.AddrFrom4([4]byte(raw[12:])))
	case found:
		return strings.HasPrefix(b.reachable, "True")
	case addr.Is4():
		return true
	}
	return addr.As16()[0]>>5 == 1
}

func TestTheRegistriesAreReadWhole(t *testing.T) {
	space, err := specialSpace()
	if err != nil || space == nil {
		t.Fatal(err)
	}
	blocks := allBlocks(t)
	if len(blocks) != 26+25 {
		t.Errorf("%d blocks", len(blocks))
	}
	for _, b := range blocks {
		if _, exact := space.Get(b.prefix); !exact {
			t.Errorf("%s (%s) is not in the table", b.prefix, b.name)
		}
	}
}

func TestEveryRowOfTheRegistries(t *testing.T) {
	blocks := allBlocks(t)
	for _, b := range blocks {
		first, final := b.prefix.Addr(), last(b.prefix)
		for _, addr := range []netip.Addr{first, first.Next(), first.Prev(), final, final.Prev(), final.Next()} {
			if !addr.IsValid() {
				continue
			}
			if class := ClassOf(addr); (class == "") != open(blocks, addr) {
				t.Errorf("%s (%s, globally reachable: %s): %s has class %q", b.prefix, b.name, b.reachable, addr, class)
			}
		}
	}
}

func TestEveryAddressIsJudgedByTheRows(t *testing.T) {
	blocks := allBlocks(t)
	rapid.Check(t, func(t *rapid.T) {
		addr := drawAddr(t, "addr")
		if rapid.Bool().Draw(t, "inside a block") {
			b := rapid.SampledFrom(blocks).Draw(t, "block")
			addr = inside(b.prefix, addr)
		}
		if EmbeddedIPv4(addr).IsValid() {
			return // the rows do not say
		}
		if class := ClassOf(addr); (class == "") != open(blocks, addr) {
			t.Fatalf("%s has class %q", addr, class)
		}
	})
}

// inside returns an address in p with the low bits of addr.
func inside(p netip.Prefix, addr netip.Addr) netip.Addr {
	b, low := p.Addr().AsSlice(), addr.As16()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= low[16-len(b)+i/8] & (0x80 >> (i % 8))
	}
	result, _ := netip.AddrFromSlice(b)
	return result
}

func TestAnAddressHasAClass(t *testing.T) {
	rows := []struct {
		class AddressClass
		addrs string
	}{
		{"", "11.0.0.1 172.15.255.255 172.32.0.1 192.167.255.255 192.169.0.0 100.63.255.254 100.128.0.1 126.255.255.255 128.0.0.1 1.1.1.1 8.8.8.8 223.255.255.255 169.253.255.255 169.255.0.0"},
		{"", "192.0.0.9 192.0.0.10 192.31.196.1 192.52.193.1 192.175.48.1 2606:2800:220:1::1 2001:1::1 2001:1::2 2001:1::3 2001:3::1 2001:4:112::1 2001:20::1 2620:4f:8000::1 2001:200::1"},
		{"", "::ffff:93.184.216.34 64:ff9b::93.184.216.34 2606:2800::5efe:93.184.216.34 2606:2800::200:5efe:5db8:d822"},
		{AddrLoopback, "127.0.0.1 127.127.127.127 127.0.0.0 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: ::127.0.0.1 2606::5efe:127.0.0.1 2606::200:5efe:7f00:1 64:ff9b:1::7f00:1"},
		{AddrPrivate, "10.0.0.5 172.16.0.5 172.31.255.255 192.168.0.5 ::ffff:10.0.0.5 64:ff9b::10.0.0.5 2002:a00:5::1 2001:0:1:2:3:4:f5ff:fffa"},
		{AddrCGNAT, "100.64.0.5 100.127.255.254"},
		{AddrLinkLocal, "169.254.0.1 169.254.255.255 fe80::1 febf::1 fe80::1%eth0"},
		{AddrMetadata, "169.254.169.254 169.254.170.2 169.254.170.23 100.100.100.200 192.0.0.192 168.63.129.16 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fe80::a9fe:a9fe fd00:c1::a9fe:a9fe fd00:100::100:200 100.96.0.96 169.254.42.42 fd00:42::42 fd00:a9fe:a9fe::1"},
		{AddrMetadata, "::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 ::169.254.169.254 64:ff9b:1::a9fe:a9fe 2002:a83f:8110::"},
		{AddrUnspecified, "0.0.0.0 :: ::ffff:0.0.0.0 64:ff9b::"},
		{AddrThisNetwork, "0.1.2.3 0.0.0.1 0.255.255.255"},
		{AddrDocumentation, "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1"},
		{AddrBenchmarking, "198.18.0.5 198.19.255.255 2001:2::1"},
		{AddrReserved, "240.0.0.5 255.255.255.254 2606::1%eth0"},
		{AddrMulticast, "224.0.0.1 239.255.255.255 ff02::1 ff0e::1"},
		{AddrBroadcast, "255.255.255.255"},
		{AddrProtocol, "192.0.0.1 192.0.0.8 192.0.0.170 192.0.0.171 2001:1::4 2001:100::"},
		{AddrDeprecated, "192.88.99.1 192.88.99.2 2001:10::1"},
		{AddrUniqueLocal, "fd12::5 fc00::1 fdff::1"},
		{AddrDiscard, "100::1 100:0:0:1::1"},
		{AddrSegmentRoute, "5f00::1"},
		{AddrUnallocated, "4000::1 fec0::1 ::ffff:0:7f00:1 1fff::1 8000::1 ::93.184.216.34 fe00::1"},
		{AddrNAT64Local, "64:ff9b:1::5db8:d822"},
		{Addr6to4, "2002:5db8:d822::1"},
		{AddrTeredo, "2001:0:1:2:3:4:a247:27dd"},
	}
	for _, row := range rows {
		for _, text := range strings.Fields(row.addrs) {
			if class := ClassOf(netip.MustParseAddr(text)); class != row.class {
				t.Errorf("%s has class %q, not %q", text, class, row.class)
			}
		}
	}
	if ClassOf(netip.Addr{}) != AddrReserved {
		t.Error("no address is public")
	}
}

func TestEveryClosedRowHasItsOwnWord(t *testing.T) {
	for _, b := range allBlocks(t) {
		class := registryClass(b.name, strings.HasPrefix(b.reachable, "True"))
		mapped := b.name == "IPv4-mapped Address" // judged as IPv4 before it is looked up
		if class == AddrReserved && b.name != "Reserved" && !mapped {
			t.Errorf("the row %q is only %q", b.name, class)
		}
	}
	if class := registryClass("A row of next year", false); class != AddrReserved {
		t.Errorf("a new row has class %q", class)
	}
}

func TestARegistryThatDoesNotParseIsAnError(t *testing.T) {
	head := "Address Block,Name,Globally Reachable\n"
	for _, text := range []string{"", head, "Name,Globally Reachable\n10.0.0.0/8,x\n", head + "10.0.0.0,x,True\n", head + "10.0.0.0/8,x\n", head + "\"10.0.0.0/8,x,True\n", head + "10.0.0.0/8; 11.0.0.0/8,x,True\n"} {
		if table, err := newSpecialSpace(text); err == nil || table != nil {
			t.Errorf("%q was read", text)
		}
	}
	if _, err := newSpecialSpace(head + "10.0.0.0/8 [1],x,False [2]\n"); err != nil {
		t.Error(err)
	}
}

func TestWhatStandsInsideAnAddress(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.0.0.5":           "10.0.0.5",
		"::10.0.0.5":                "10.0.0.5",
		"64:ff9b::10.0.0.5":         "10.0.0.5",
		"64:ff9b::93.184.216.34":    "93.184.216.34",
		"2002:a00:5::1":             "10.0.0.5",
		"2001:0:1:2:3:4:f5ff:fffa":  "10.0.0.5",
		"2606::5efe:a00:5":          "10.0.0.5",
		"2606::200:5efe:a00:5":      "10.0.0.5",
		"2606::300:5efe:a00:5":      "10.0.0.5",
		"2606::400:5efe:a00:5":      "invalid IP",
		"2606::1:5efe:a00:5":        "invalid IP",
		"2606::a00:5":               "invalid IP",
		"10.0.0.5":                  "invalid IP",
		"fe80::200:5efe:a00:5%eth0": "10.0.0.5",
	} {
		if got := EmbeddedIPv4(netip.MustParseAddr(text)).String(); got != want {
			t.Errorf("inside %s stands %s, not %s", text, got, want)
		}
	}
	if EmbeddedIPv4(netip.Addr{}).IsValid() {
		t.Error("no address holds an address")
	}
}

func TestNoSpellingOfAPrivateAddressIsPublic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "IPv4"))
		v4 := netip.AddrFrom4(b)
		if rapid.Bool().Draw(t, "special") {
			special := rapid.SampledFrom([]string{"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "100.64.0.0/10", "224.0.0.0/4"}).Draw(t, "block")
			v4 = inside(netip.MustParsePrefix(special), v4)
			b = v4.As4()
		}
		if ClassOf(v4) == "" {
			return
		}
		for how, outer := range spellings(b) {
			if ClassOf(outer) == "" || EmbeddedIPv4(outer) != v4 {
				t.Fatalf("%s as %s, %s, is public", v4, how, outer)
			}
		}
	})
}

// spellings returns the ways of writing an IPv4 address as an IPv6 one.
func spellings(b [4]byte) map[string]netip.Addr {
	join := func(parts ...[]byte) netip.Addr { return netip.AddrFrom16([16]byte(slices.Concat(parts...))) }
	zeros := make([]byte, 16)
	flipped := []byte{^b[0], ^b[1], ^b[2], ^b[3]}
	return map[string]netip.Addr{
		"mapped":      join(zeros[:10], []byte{0xff, 0xff}, b[:]),
		"compatible":  join(zeros[:12], b[:]),
		"NAT64":       join([]byte{0, 0x64, 0xff, 0x9b}, zeros[:8], b[:]),
		"local NAT64": join([]byte{0, 0x64, 0xff, 0x9b, 0, 1}, zeros[:6], b[:]),
		"6to4":        join([]byte{0x20, 0x02}, b[:], zeros[:9], []byte{1}),
		"Teredo":      join([]byte{0x20, 0x01, 0, 0}, zeros[:8], flipped),
		"ISATAP":      join([]byte{0x26, 0x06}, zeros[:7], []byte{0, 0x5e, 0xfe}, b[:]),
	}
}

func BenchmarkClassOf(b *testing.B) {
	for _, text := range []string{"93.184.216.34", "2606:2800:220:1::1", "10.0.0.5"} {
		addr := netip.MustParseAddr(text)
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				ClassOf(addr)
			}
		})
	}
}
