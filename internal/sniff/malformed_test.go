package sniff

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// one returns a stream with a hello of the given extensions in one record.
func one(extensions ...[]byte) []byte {
	return inRecords(hello{extensions: extensions}.message(), maxRecord)
}

func TestMalformedHellos(t *testing.T) {
	name := serverName("a.test")
	whole := one(name)
	trailing := func(b []byte, extra ...byte) []byte {
		b = append(bytes.Clone(b), extra...)
		n := len(b) - recordHeader
		b[3], b[4] = byte(n>>8), byte(n)
		return b
	}
	first := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	for _, row := range []struct {
		name   string
		stream []byte
	}{
		{"an alert record between two handshake records", slices.Concat(inRecords(whole[5:], 20)[:25], []byte{21, 3, 1, 0, 2, 1, 0})},
		{"an empty record between two handshake records", slices.Concat(inRecords(whole[5:], 20)[:25], []byte{22, 3, 1, 0, 0})},
		{"a record of major version 2", first(whole, 1, 2)},
		{"a good hello in a record of 2^14+1 bytes", inRecords(hello{extensions: [][]byte{extension(0x1234, make([]byte, 20000))}}.message(), maxRecord+1)},
		{"an empty PSK binder", one(extension(extPreSharedKey, slices.Concat(vec16(append(vec16([]byte("x")), 0, 0, 0, 0)), vec16(vec8(nil)))))},
		{"an empty PSK label", one(extension(extPreSharedKey, slices.Concat(vec16(append(vec16(nil), 0, 0, 0, 0)), vec16(vec8([]byte("x"))))))},
		{"a server hello", first(whole, 5, 2)},
		{"a server hello of which one byte came", first(whole, 5, 2)[:6]},
		{"a hello of 16 MiB", first(whole, 6, 0xff)},
		{"a byte after the hello in its record", trailing(whole, 0)},
		{"a second handshake message in the record", trailing(whole, whole[5:]...)},
		{"a second hello before the first record is whole", trailing(whole, whole[5:]...)[:9]},
		{"SSL 2.0 in the hello", inRecords(hello{version: 0x0002}.message(), maxRecord)},
		{"DTLS in the hello", inRecords(hello{version: 0xfefd}.message(), maxRecord)},
		{"a session id of 33 bytes", inRecords(hello{session: make([]byte, 33)}.message(), maxRecord)},
		{"no cipher suites", inRecords(hello{suites: []byte{}}.message(), maxRecord)},
		{"half a cipher suite", inRecords(hello{suites: []byte{1}}.message(), maxRecord)},
		{"no compression methods", inRecords(hello{compression: []byte{}}.message(), maxRecord)},
		{"no null compression", inRecords(hello{compression: []byte{1}}.message(), maxRecord)},
		{"an empty hello", []byte{22, 3, 1, 0, 4, 1, 0, 0, 0}},
		{"bytes after the extensions", inRecords(hello{extensions: [][]byte{name}, tail: []byte{0}}.message(), maxRecord)},
		{"half an extensions length", inRecords(hello{tail: []byte{0}}.message(), maxRecord)},
		{"an extension cut short", one([]byte{0, 0, 0, 5, 1})},
		{"half an extension type", one([]byte{0})},
		{"server_name twice", one(name, name)},
		{"an unknown extension twice", one(extension(0x1234, nil), extension(0x1234, nil))},
		{"an unknown small extension twice", one(extension(63, nil), name, extension(63, nil))},
		{"pre_shared_key before another extension", one(extension(extPreSharedKey, slices.Concat(vec16(append(vec16([]byte("x")), 0, 0, 0, 0)), vec16(vec8([]byte("x"))))), name)},
		{"an empty server_name", one(extension(extServerName, nil))},
		{"a server_name without names", one(extension(extServerName, vec16(nil)))},
		{"an empty host name", one(serverName(""))},
		{"a name of another type", one(extension(extServerName, vec16([]byte{1, 0, 1, 'a'})))},
		{"a name of another type beside a host name", one(extension(extServerName, vec16(append([]byte{1, 0, 1, 'a'}, serverName("a.test")[6:]...))))},
		{"a host name cut short", one(extension(extServerName, vec16([]byte{0, 0, 5, 'a'})))},
		{"bytes after the name", one(extension(extServerName, append(vec16([]byte{0, 0, 1, 'a'}), 0)))},
		{"bytes after the name in the list", one(extension(extServerName, vec16([]byte{0, 0, 1, 'a', 0})))},
		{"a NUL in the name", one(serverName("evil.test\x00.allowed.test"))},
		{"a newline in the name", one(serverName("a.test\r\n"))},
		{"a space in the name", one(serverName("a .test"))},
		{"DEL in the name", one(serverName("a\x7f.test"))},
		{"UTF-8 in the name", one(serverName("é.test"))},
		{"a trailing dot", one(serverName("a.test."))},
		{"a name of 256 bytes", one(serverName(strings.Repeat("a", 256)))},
		{"an empty ALPN", one(extension(extALPN, nil))},
		{"ALPN without protocols", one(extension(extALPN, vec16(nil)))},
		{"ALPN with an empty protocol", one(alpn("h2", ""))},
		{"ALPN with a protocol cut short", one(extension(extALPN, vec16([]byte{3, 'h', '2'})))},
		{"bytes after ALPN", one(extension(extALPN, append(vec16([]byte{2, 'h', '2'}), 0)))},
		{"empty supported_versions", one(extension(extSupportedVersions, vec8(nil)))},
		{"half a supported version", one(extension(extSupportedVersions, vec8([]byte{3})))},
		{"empty signature_algorithms", one(extension(extSignatureAlgorithms, vec16(nil)))},
		{"half a signature algorithm", one(extension(extSignatureAlgorithms, vec16([]byte{4})))},
		{"empty supported_groups", one(extension(extSupportedGroups, vec16(nil)))},
		{"early_data with content", one(extension(extEarlyData, []byte{0}))},
		{"extended_master_secret with content", one(extension(extExtendedMasterSecret, []byte{0}))},
		{"ECH without content", one(extension(extECH, nil))},
		{"ECH of an unknown type", one(extension(extECH, []byte{2}))},
		{"inner ECH with content", one(extension(extECH, []byte{1, 0}))},
		{"outer ECH without payload", one(extension(extECH, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 0}))},
		{"an empty key in key_share", one(extension(extKeyShare, vec16([]byte{0, 29, 0, 0})))},
		{"a status request cut short", one(extension(extStatusRequest, []byte{1, 0, 0}))},
		{"an empty cookie", one(extension(extCookie, vec16(nil)))},
		{"an empty list of point formats", one(extension(extPointFormats, []byte{0}))},
	} {
		t.Run(row.name, func(t *testing.T) {
			checkName(t, "in one piece", refused)(parseHello(row.stream))
			checkName(t, "byte by byte", refused)(byteByByte(t, row.stream))
		})
	}
}

func TestAcceptedOddHellos(t *testing.T) {
	for _, row := range []struct {
		name   string
		stream []byte
		ech    bool
		sni    string
	}{
		{"no extensions at all", inRecords(hello{}.message(), maxRecord), false, ""},
		{"an empty list of extensions", inRecords(hello{extensions: [][]byte{}}.message(), maxRecord), false, ""},
		{"a name of 255 bytes", one(serverName(strings.Repeat("a", 255))), false, strings.Repeat("a", 255)},
		{"an IP literal with a port", one(serverName("127.0.0.1:443")), false, "127.0.0.1:443"},
		{"GREASE here and there", one(extension(0x0a0a, nil), serverName("a.test"), extension(0xfafa, []byte{0}), extension(extSupportedVersions, vec8(uint16s(0x3a3a, 0x0304)))), false, "a.test"},
		{"ECH of draft 8", one(extension(0xfe08, []byte("x"))), true, ""},
		{"ECH of draft 12", one(extension(0xfe0c, nil)), true, ""},
		{"ESNI", one(extension(extESNI, []byte("x"))), true, ""},
		{"inner ECH", one(extension(extECH, []byte{1})), true, ""},
		{"an empty key_share", one(extension(extKeyShare, vec16(nil))), false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			checkName(t, "in one piece", row.sni)(parseHello(row.stream))
			checkName(t, "byte by byte", row.sni)(byteByByte(t, row.stream))
			compareWithOracle(t, row.stream)
			if h, _ := parseHello(row.stream); h.ECH != row.ech {
				t.Errorf("ECH = %t", h.ECH)
			}
		})
	}
}

func TestTooManyExtensions(t *testing.T) {
	var extensions [][]byte
	for i := range 33 {
		extensions = append(extensions, extension(uint16(0x1000+i), nil))
	}
	if _, err := parseHello(one(extensions[:32]...)); err != nil {
		t.Errorf("32 unknown extensions: %v", err)
	}
	checkName(t, "33 unknown extensions", refused)(parseHello(one(extensions...)))
}

// A fingerprint sorts and sums these lists: tens of thousands of entries would keep an event loop
// busy for milliseconds, for each hello.
func TestLongListsAreRefused(t *testing.T) {
	numbers := func(n int) (list []byte) {
		for i := range n {
			list = append(list, uint16s(uint16(i))...)
		}
		return list
	}
	for _, row := range []struct {
		name   string
		stream func(n int) []byte
	}{
		{"cipher suites", func(n int) []byte { return inRecords(hello{suites: numbers(n)}.message(), maxRecord) }},
		{"protocols", func(n int) []byte { return one(alpn(slices.Repeat([]string{"h2"}, n)...)) }},
		{"signature algorithms", func(n int) []byte { return one(extension(extSignatureAlgorithms, vec16(numbers(n)))) }},
	} {
		h, err := parseHello(row.stream(512))
		if err != nil || len(h.JA4()) != 36 {
			t.Errorf("512 %s: %v", row.name, err)
		}
		checkName(t, "513 "+row.name, refused)(parseHello(row.stream(513)))
	}
}

func TestMalformedErrorHidesTheClient(t *testing.T) {
	_, err := parseHello(one(serverName("secret\x00.test")))
	var bad *MalformedError
	if !errors.As(err, &bad) || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), bad.Problem) {
		t.Errorf("got %v", err)
	}
}

func TestHelloOfOpenSSL(t *testing.T) {
	for _, row := range []struct {
		file, name string
		alpn       []string
		version    uint16
	}{
		{"openssl-tls13", "openssl.allowed.test", []string{"h2", "http/1.1"}, 0x0304},
		{"openssl-tls12", "openssl.allowed.test", nil, 0x0303},
		{"openssl-nosni", "", nil, 0x0304},
	} {
		b, err := os.ReadFile(filepath.Join("testdata", row.file+".bin"))
		if err != nil {
			t.Fatal(err)
		}
		h, err := byteByByte(t, b)
		checkName(t, row.file, row.name)(h, err)
		if !slices.Equal(h.ALPN, row.alpn) || h.Version != row.version {
			t.Errorf("%s: ALPN %q, version %#x", row.file, h.ALPN, h.Version)
		}
		compareWithOracle(t, b)
	}
}

// FuzzParseHello: what is accepted, crypto/tls accepts and reads the same, no
// matter how it is cut; and a prefix of it is never malformed.
func FuzzParseHello(f *testing.F) {
	for _, id := range fixtureIDs(f) {
		f.Add(fixture(f, id), uint8(7))
	}
	f.Add(one(serverName("a.test"), alpn("h2", "http/1.1"), extension(extECH, []byte{1})), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		compareWithOracle(t, b)
		h, err := parseHello(b)
		var a Assembler
		for n := 0; n < len(b); n += int(step) + 1 {
			got, early := a.Parse(b[:n])
			if errors.Is(early, ErrShort) {
				continue
			}
			if (early == nil) != (err == nil) || got.ServerName != h.ServerName {
				t.Fatalf("%d of %d bytes say %v, all %v", n, len(b), early, err)
			}
			break
		}
		if err == nil && len(h.JA4()) != 36 {
			t.Fatalf("JA4 %q", h.JA4())
		}
	})
}
