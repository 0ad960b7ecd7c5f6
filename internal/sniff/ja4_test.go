package sniff

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The suites, extensions and signature algorithms of a browser whose
// fingerprints are published with their raw, unhashed form.
var (
	browserSuites = []uint16{
		0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
	}
	browserSignatures = []uint16{0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601}
)

func browserExtensions(last ...[]byte) [][]byte {
	return append([][]byte{
		serverName("a.test"),
		extension(extExtendedMasterSecret, nil),
		extension(extRenegotiation, []byte{0}),
		extension(extSupportedGroups, vec16(uint16s(0x4a4a, 29, 23))),
		extension(extPointFormats, vec8([]byte{0})),
		extension(35, nil),
		alpn("h2", "http/1.1"),
		extension(extStatusRequest, []byte{1, 0, 0, 0, 0}),
		extension(extSignatureAlgorithms, vec16(uint16s(browserSignatures...))),
		extension(extSignedTimestamps, nil),
		extension(extKeyShare, vec16(slices.Concat(uint16s(29), vec16(make([]byte, 32))))),
		extension(extPSKModes, vec8([]byte{1})),
		extension(extSupportedVersions, vec8(uint16s(0x5a5a, 0x0304, 0x0303))),
		extension(27, []byte{2, 0, 2}),
	}, last...)
}

func ja4Of(t *testing.T, h hello) string {
	t.Helper()
	got, err := parseHello(inRecords(h.message(), maxRecord))
	if err != nil {
		t.Fatal(err)
	}
	return got.JA4()
}

func TestJA4OfPublishedVectors(t *testing.T) {
	suites := uint16s(browserSuites...)
	for _, row := range []struct {
		name, ja4  string
		extensions [][]byte
	}{
		{"with ALPS and padding", "t13d1516h2_8daaf6152771_e5627efa2ab1",
			browserExtensions(extension(0x4469, nil), extension(21, make([]byte, 9)))},
		{"with new ALPS and ECH", "t13d1516h2_8daaf6152771_d8a2da3f94cd",
			browserExtensions(extension(0x44cd, nil), extension(extECH, []byte{1}))},
	} {
		if got := ja4Of(t, hello{suites: suites, extensions: row.extensions}); got != row.ja4 {
			t.Errorf("%s: %s, want %s", row.name, got, row.ja4)
		}
	}
}

// TestJA4IgnoresOrderAndGREASE: what browsers shuffle and what they make up.
func TestJA4IgnoresOrderAndGREASE(t *testing.T) {
	plain := hello{suites: uint16s(browserSuites...), extensions: browserExtensions()}
	suites := slices.Clone(browserSuites)
	slices.Reverse(suites)
	extensions := browserExtensions(extension(0x0a0a, nil), extension(0xcaca, []byte{0}))
	slices.Reverse(extensions)
	shuffled := hello{suites: append(uint16s(0x8a8a), uint16s(suites...)...), extensions: extensions}
	if a, b := ja4Of(t, plain), ja4Of(t, shuffled); a != b {
		t.Errorf("%s is not %s", a, b)
	}
}

func TestJA4Parts(t *testing.T) {
	versions := func(v ...uint16) [][]byte { return [][]byte{extension(extSupportedVersions, vec8(uint16s(v...)))} }
	for _, row := range []struct {
		name  string
		hello hello
		want  string // what the fingerprint begins with
	}{
		{"no extensions", hello{}, "t12i010000_"},
		{"no extensions hash to zeros", hello{}, ja4Of(t, hello{})[:24] + "000000000000"},
		{"TLS 1.1 by the old field", hello{version: 0x0302}, "t11i"},
		{"SSL 3.0", hello{version: 0x0300}, "ts3i"},
		{"the highest of several versions", hello{extensions: versions(0x0302, 0x0304, 0x0303)}, "t13i0101"},
		{"GREASE is no version", hello{extensions: versions(0xfafa, 0x0303)}, "t12i"},
		{"an unknown version", hello{extensions: versions(0x0399)}, "t00i"},
		{"only GREASE suites", hello{suites: uint16s(0x1a1a)}, "t12i000000_000000000000_"},
		{"suites that only look like GREASE", hello{suites: uint16s(0x0a1a, 0x1a2a, 0x1b1b)}, "t12i0300"},
		{"more than 99 suites", hello{suites: uint16s(slices.Repeat([]uint16{0x1301}, 120)...)}, "t12i9900"},
		{"ALPN of one letter", hello{extensions: [][]byte{alpn("x")}}, "t12i0101xx_"},
		{"ALPN http/1.1", hello{extensions: [][]byte{alpn("http/1.1", "h2")}}, "t12i0101h1_"},
		{"ALPN that is not alphanumeric", hello{extensions: [][]byte{alpn("\xab\xcd")}}, "t12i0101ad_"},
		{"ALPN that ends oddly", hello{extensions: [][]byte{alpn("h\xab")}}, "t12i01016b_"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := ja4Of(t, row.hello); !strings.HasPrefix(got, row.want) {
				t.Errorf("%s does not begin with %s", got, row.want)
			}
		})
	}
}

func TestJA4IsStable(t *testing.T) {
	shape := regexp.MustCompile(`^t1[23][di][0-9]{4}[0-9a-z]{2}_[0-9a-f]{12}_[0-9a-f]{12}$`)
	for id, f := range fixtures {
		if f.name == refused {
			continue
		}
		b := fixture(t, id)
		h, err := parseHello(b)
		if err != nil {
			t.Fatal(err)
		}
		first := h.JA4()
		copied := h
		clear(b)
		if !shape.MatchString(first) || h.JA4() != first || copied.JA4() != first {
			t.Errorf("%s: %s, then %s", id, first, h.JA4())
		}
	}
}

// TestJA4OfOverwrittenBytes: a caller that breaks the contract gets a wrong
// fingerprint, and nothing worse.
func TestJA4OfOverwrittenBytes(t *testing.T) {
	b := fixture(t, "base-allowed")
	h, err := parseHello(b)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, bytes.Repeat([]byte{0xff}, len(b)))
	if got := h.JA4(); len(got) != 36 {
		t.Errorf("got %q", got)
	}
}
