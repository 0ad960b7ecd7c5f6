package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func mustDestination(t *testing.T, text string) Destination {
	t.Helper()
	d, err := ParseDestination(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestADestinationIsCanonical(t *testing.T) {
	rows := []struct{ text, host, addr string }{
		{"allowed.test:443", "allowed.test", ""},
		{"ALLOWED.TEST:443", "allowed.test", ""},
		{"a.AlLoWeD.tEsT:443", "a.allowed.test", ""},
		{"allowed.test.:443", "allowed.test", ""},
		{"_dmarc.allowed.test:443", "_dmarc.allowed.test", ""},
		{"a_b.allowed.test:443", "a_b.allowed.test", ""},
		{"r3---sn-4g5e6nz7.allowed.test:443", "r3---sn-4g5e6nz7.allowed.test", ""},
		{"1.allowed.test:443", "1.allowed.test", ""},
		{"x.7z:443", "x.7z", ""},
		{"localhost:443", "localhost", ""},
		{strings.Repeat("a", 63) + ".test:443", strings.Repeat("a", 63) + ".test", ""},
		{"93.184.216.34:443", "93.184.216.34", "93.184.216.34"},
		{"0.0.0.0:443", "0.0.0.0", "0.0.0.0"},
		{"[2606:2800:220:1::1]:443", "2606:2800:220:1::1", "2606:2800:220:1::1"},
		{"[2606:2800:0220:0001:0:0:0:1]:443", "2606:2800:220:1::1", "2606:2800:220:1::1"},
		{"[FD12::5]:443", "fd12::5", "fd12::5"},
		{"[0000::1]:443", "::1", "::1"},
		{"[::ffff:93.184.216.34]:443", "93.184.216.34", "93.184.216.34"},
		{"[0:0:0:0:0:ffff:a9fe:a9fe]:443", "169.254.169.254", "169.254.169.254"},
		{"[64:ff9b::10.0.0.5]:443", "64:ff9b::a00:5", "64:ff9b::a00:5"},
	}
	for _, row := range rows {
		d, err := ParseDestination(row.text)
		var addr netip.Addr
		if row.addr != "" {
			addr = netip.MustParseAddr(row.addr)
		}
		if err != nil || d.Host != row.host || d.Addr != addr || d.Port != 443 {
			t.Errorf("ParseDestination(%q) = %q, %v, %d, %v", row.text, d.Host, d.Addr, d.Port, err)
		}
	}
}

func TestTheLongestNameIsOf253Bytes(t *testing.T) {
	label := strings.Repeat("a", 49) + "."
	longest := strings.Repeat(label, 5) + "aaa"
	if len(longest) != 253 {
		t.Fatalf("the row is wrong: %d bytes", len(longest))
	}
	for _, text := range []string{longest, longest + "."} {
		if name, err := ParseName(text); err != nil || name != longest {
			t.Errorf("ParseName of %d bytes: %v", len(text), err)
		}
	}
	if _, err := ParseName(longest + "a"); err == nil {
		t.Error("254 bytes were taken")
	}
}

// hostsThatAreRefused are no host at all, however they arrive.
var hostsThatAreRefused = []string{
	"", ".", "..", "a..test", ".allowed.test", "allowed.test..",
	"127.1", "127.0.1", "0", "1", "2130706433", "2852039166", "0x7f000001", "0x7f.1", "0X7F.1", "0xA9FEA9FE", "0x",
	"017700000001", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "169.254.169.254.", "1.2.3.4.5", "1.2.3.256", "1.2.3",
	"allowed.test.1", "allowed.0x1f", "a.b.123.",
	"::1%lo", "fe80::1%25eth0", "[fe80::1%25eth0]", "[::1%25lo]", "[::1%lo]", "[::ffff:151.101.1.69%25x.allowed.test]",
	"[allowed.test]", "[127.0.0.1]", "[]", "[", "]", "[::1", "::1]", "[[::1]]", "[::1].", "[:]", "[::1]x", ":::", "1::2::3", "::12345",
	"evil.test\x00.allowed.test", "evil.test\t.allowed.test", "evil.test\r.allowed.test", "evil.test\n", " .allowed.test", "evil.test .allowed.test", "\x7f.test",
	"evil.test%00.allowed.test", "allowed.test%2eevil.test", "%65vil.test",
	"allowed.test@evil.test", "user:pass@evil.test", "http://allowed.test", "allowed.test/x", "/x", "allowed.test?q", "allowed.test#f",
	"evil.test;allowed.test", "allowed.test,evil.test", "allowed.test, evil.test", "a!b.allowed.test", `x\.allowed.test`, "*.allowed.test",
	"-.allowed.test", "-a.allowed.test", "a-.allowed.test", "allowed.test-", "--.test",
	"allowed.test。evil.test", "ａllowed.test", "evil。test", "①②⑦.⓪.⓪.①", "bücher.test", "\u212A.test", "\xff.test",
	strings.Repeat("a", 64) + ".test", strings.Repeat("a", 300), strings.Repeat("a.", 128),
	"xn--.test", "xn--zz.test", "xn--foo-.test", "xn--a.test", "xn--0.test", "xn--a-ecp.test", "xn--bcher-kva8.test", "XN--A.test",
}

func TestWhatIsNoHostIsRefusedNotRepaired(t *testing.T) {
	for _, text := range hostsThatAreRefused {
		if name, addr, err := ParseHost(text); err == nil || name != "" || addr.IsValid() {
			t.Errorf("ParseHost(%q) = %q, %v, %v", text, name, addr, err)
		}
		if name, err := ParseName(text); err == nil || name != "" {
			t.Errorf("ParseName(%q) = %q, %v", text, name, err)
		}
		if d, err := ParseDestination(text + ":443"); err == nil || d.Host != "" || d.Addr.IsValid() || d.Port != 0 {
			t.Errorf("ParseDestination(%q) = %v, %v", text+":443", d, err)
		}
	}
}

func TestAPortIsAPlainNumber(t *testing.T) {
	for _, port := range []string{
		"+443", "0443", "443:80", "", "0", "00", "65536", "99999", "100000", "-1", "0x1bb", "https", " 443", "443 ", "4٤3", "443\n", "4_3", "1e2",
	} {
		for _, host := range []string{"allowed.test", "93.184.216.34", "[2606::1]"} {
			if d, err := ParseDestination(host + ":" + port); err == nil {
				t.Errorf("ParseDestination(%q) = %v", host+":"+port, d)
			}
		}
	}
	for port, want := range map[string]uint16{"1": 1, "80": 80, "65535": 65535, "9999": 9999} {
		if d, err := ParseDestination("allowed.test:" + port); err != nil || d.Port != want {
			t.Errorf("port %q became %d, %v", port, d.Port, err)
		}
	}
}

func TestADestinationHasAPort(t *testing.T) {
	for _, text := range []string{"", ":", "allowed.test", "93.184.216.34", "[2606::1]", "2606::1", "2606::1:443", "::1:80"} {
		if d, err := ParseDestination(text); err == nil {
			t.Errorf("ParseDestination(%q) = %v", text, d)
		}
	}
}

func TestAHostIsANameOrAnAddress(t *testing.T) {
	rows := []struct{ text, name, addr string }{
		{"Allowed.Test.", "allowed.test", "invalid IP"},
		{"10.0.0.5", "", "10.0.0.5"},
		{"fd12::5", "", "fd12::5"},
		{"[fd12::5]", "", "fd12::5"},
		{"[::ffff:10.0.0.5]", "", "10.0.0.5"},
		{"::ffff:a00:5", "", "10.0.0.5"},
	}
	for _, row := range rows {
		name, addr, err := ParseHost(row.text)
		if err != nil || name != row.name || addr.String() != row.addr {
			t.Errorf("ParseHost(%q) = %q, %v, %v", row.text, name, addr, err)
		}
	}
}

func TestANameIsNoAddress(t *testing.T) {
	for _, text := range []string{"10.0.0.5", "10.0.0.5.", "::1", "[::1]", "fd12::5", "allowed.test:443"} {
		if name, err := ParseName(text); err == nil {
			t.Errorf("ParseName(%q) = %q", text, name)
		}
	}
}

func TestADestinationErrorIsOneShortLineOfASCII(t *testing.T) {
	for _, text := range []string{"evil.test\x00\r\n\x1b[31m:443", "bücher.test:443", strings.Repeat("\xff", 100_000) + ":443", strings.Repeat("a", 300)} {
		_, err := ParseDestination(text)
		var d *DestinationError
		if !errors.As(err, &d) {
			t.Fatalf("ParseDestination(%.20q) = %T", text, err)
		}
		if len(d.Text) > 256 || !strings.HasPrefix(text, d.Text) {
			t.Errorf("the error keeps %d bytes of text", len(d.Text))
		}
		sentence := err.Error()
		if len(sentence) > 400 {
			t.Errorf("the sentence has %d bytes", len(sentence))
		}
		for _, c := range []byte(sentence) {
			if c < ' ' || c > '~' {
				t.Errorf("the sentence holds byte %#x: %q", c, sentence)
				break
			}
		}
	}
}

func TestADestinationErrorNamesTheProblem(t *testing.T) {
	for text, want := range map[string]string{
		"allowed.test":            `"allowed.test" is not a destination: the port is missing`,
		"allowed.test:":           `"allowed.test:" is not a destination: the port is missing`,
		"2606::1:443":             `"2606::1:443" is not a destination: it has more than one colon; an IPv6 address needs brackets`,
		":443":                    `":443" is not a destination: the host is empty`,
		"127.1:443":               `"127.1:443" is not a destination: it ends in a number and is not four plain decimal octets`,
		"127.0.0.1.:443":          `"127.0.0.1.:443" is not a destination: an address does not end in a dot`,
		"[::1%25lo]:443":          `"[::1%25lo]:443" is not a destination: an address with a zone is not a destination`,
		"-.allowed.test:443":      `"-.allowed.test:443" is not a destination: a label begins or ends with '-'`,
		"evil\u3002test:443":      `"evil\u3002test:443" is not a destination: a name has only ASCII; write its A-labels, xn--...`,
		"http://allowed.test:443": `"http://allowed.test:443" is not a destination: it has more than one colon; an IPv6 address needs brackets`,
	} {
		if _, err := ParseDestination(text); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestCanonicalTextIsNotCopied(t *testing.T) {
	for _, text := range []string{"api.allowed.test:443", "93.184.216.34:443", "[2606:2800:220:1::1]:443"} {
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := ParseDestination(text); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("ParseDestination(%q) allocates %v times", text, allocs)
		}
	}
}

func FuzzParseDestination(f *testing.F) {
	f.Add("allowed.test:443")
	f.Add("A.allowed.test.:1")
	f.Add("93.184.216.34:65535")
	f.Add("[::ffff:10.0.0.5]:80")
	f.Add("[2606:2800::1]:80")
	f.Add("xn--bcher-kva.test:80")
	for _, host := range hostsThatAreRefused {
		f.Add(host + ":443")
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDestination(text)
		if err != nil {
			if d.Host != "" || d.Addr.IsValid() || d.Port != 0 {
				t.Fatalf("%q: refused, yet read as %v", text, d)
			}
			return
		}
		checkCanonical(t, text, d)
		again, err := ParseDestination(d.String())
		if err != nil || again.Host != d.Host || again.Addr != d.Addr || again.Port != d.Port || again.String() != d.String() {
			t.Fatalf("%q: %v reads as %v, %v", text, d, again, err)
		}
	})
}

// checkCanonical holds a destination to what the laws say of every one.
func checkCanonical(t *testing.T, text string, d Destination) {
	if i := strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`%@/\?#;,*`, c) }); i >= 0 {
		t.Fatalf("%q: accepted with %q", text, text[i])
	}
	if d.Port == 0 {
		t.Fatalf("%q: port 0", text)
	}
	if d.Addr.IsValid() {
		if addr, err := netip.ParseAddr(d.Host); err != nil || addr != d.Addr || addr.Zone() != "" || addr.Is4In6() || addr.String() != d.Host {
			t.Fatalf("%q: host %q is not the text of %v", text, d.Host, d.Addr)
		}
		return
	}
	if _, err := netip.ParseAddr(d.Host); err == nil {
		t.Fatalf("%q: the address %q became a name", text, d.Host)
	}
	if strings.Trim(d.Host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || len(d.Host) > 253 {
		t.Fatalf("%q: %q is not a name", text, d.Host)
	}
	for label := range strings.SplitSeq(d.Host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label {
			t.Fatalf("%q: label %q", text, label)
		}
	}
}

func BenchmarkParseDestination(b *testing.B) {
	for _, text := range []string{"api.anthropic.com:443", "93.184.216.34:443", "[2606:2800:220:1::1]:443", "API.Anthropic.Com:443"} {
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseDestination(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
