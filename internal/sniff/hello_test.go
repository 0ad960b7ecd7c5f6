package sniff

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fixture reads a captured first flight.
func fixture(t testing.TB, id string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "clienthello", id+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fixtureIDs(t testing.TB) (ids []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "clienthello", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ ID string }
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

// refused stands for a hello that has to be malformed.
const refused = "\x00refused"

var fixtures = map[string]struct {
	protocol Protocol
	name     string // server name, "" for none, or refused
}{
	"base-allowed":     {TLS, "allowed.test"},
	"base-evil":        {TLS, "evil.test"},
	"sni-absent":       {TLS, ""},
	"sni-trailing-dot": {TLS, refused},
	"sni-upper":        {TLS, "ALLOWED.TEST"},
	"sni-nul-suffix":   {TLS, refused},
	"sni-nul-prefix":   {TLS, refused},
	"sni-ipv4":         {TLS, "127.0.0.1"},
	"sni-ipv6":         {TLS, "::1"},
	"sni-ipv6-bracket": {TLS, "[::1]"},
	"sni-256":          {TLS, refused},
	"sni-label64":      {TLS, strings.Repeat("a", 64) + ".allowed.test"},
	"sni-two-names-AE": {TLS, refused},
	"sni-two-names-EA": {TLS, refused},
	"sni-dup-ext-AE":   {TLS, refused},
	"sni-dup-ext-EA":   {TLS, refused},
	"sni-dup-far":      {TLS, refused},
	"ech-outer":        {TLS, "allowed.test"},
	"early-data":       {TLS, "allowed.test"},
	"pad-pq":           {TLS, "allowed.test"},
	"frag-rec-5":       {TLS, "evil.test"},
	"frag-rec-mid-sni": {TLS, "evil.test"},
	"frag-tcp-1":       {TLS, "evil.test"},
	"frag-tcp-mid-sni": {TLS, "evil.test"},
	"frag-tcp-hdr":     {TLS, "evil.test"},
	"rec-len-0":        {TLS, refused},
	"rec-overlong":     {TLS, refused},
	"sslv2-hello":      {TLS, refused},
	"alert-first":      {TLS, refused},
	"http-on-443":      {HTTP1, refused},
	"ssh-on-443":       {SSH, refused},
	"h2-preface":       {HTTP2, refused},
	"starttls-smtp":    {Other, refused},
	"openvpn-tcp":      {Other, refused},
	"ext-trailing":     {TLS, refused},
	"ext-len-lie":      {TLS, refused},
}

func TestFixtures(t *testing.T) {
	ids := fixtureIDs(t)
	if len(ids) != len(fixtures) {
		t.Errorf("%d fixtures on disk, %d expected", len(ids), len(fixtures))
	}
	for _, id := range ids {
		t.Run(id, func(t *testing.T) {
			want, ok := fixtures[id]
			if !ok {
				t.Fatal("a fixture without an expectation")
			}
			b := fixture(t, id)
			if got := Detect(b); got != want.protocol {
				t.Errorf("Detect = %s, want %s", got, want.protocol)
			}
			checkName(t, "in one piece", want.name)(parseHello(b))
			checkName(t, "byte by byte", want.name)(byteByByte(t, b))
			compareWithOracle(t, b)
		})
	}
}

func checkName(t *testing.T, how, want string) func(Hello, error) {
	return func(h Hello, err error) {
		t.Helper()
		var bad *MalformedError
		switch {
		case want == refused && !errors.As(err, &bad):
			t.Errorf("%s: accepted as %q, %v", how, h.ServerName, err)
		case want == refused:
			return
		case err != nil:
			t.Errorf("%s: %v", how, err)
		case h.ServerName != want || h.HasServerName != (want != ""):
			t.Errorf("%s: server name %q (%t), want %q", how, h.ServerName, h.HasServerName, want)
		}
	}
}

// byteByByte feeds an Assembler one byte more with each call, and checks on
// the way that parseHello says the same of every prefix.
func byteByByte(t *testing.T, b []byte) (h Hello, err error) {
	t.Helper()
	var a Assembler
	for n := range len(b) + 1 {
		h, err = a.Parse(b[:n])
		_, again := parseHello(b[:n])
		if (err == nil) != (again == nil) || errors.Is(err, ErrShort) != errors.Is(again, ErrShort) {
			t.Fatalf("%d bytes: Assembler says %v, parseHello %v", n, err, again)
		}
		if !errors.Is(err, ErrShort) {
			return h, err
		}
	}
	return h, err
}

func TestFixtureFlags(t *testing.T) {
	for _, row := range []struct {
		id         string
		ech, early bool
	}{
		{"base-allowed", false, false}, {"ech-outer", true, false}, {"early-data", false, true},
	} {
		h, err := parseHello(fixture(t, row.id))
		if err != nil || h.ECH != row.ech || h.EarlyData != row.early {
			t.Errorf("%s: ECH %t, early data %t, %v", row.id, h.ECH, h.EarlyData, err)
		}
	}
}

// oneShot is a connection whose peer has sent b and gone.
type oneShot struct {
	net.Conn
	b *bytes.Reader
}

func (c oneShot) Read(p []byte) (int, error)       { return c.b.Read(p) }
func (c oneShot) Write(p []byte) (int, error)      { return len(p), nil }
func (c oneShot) Close() error                     { return nil }
func (c oneShot) SetWriteDeadline(time.Time) error { return nil }

// oracle returns what crypto/tls reads out of a first flight, or nil.
func oracle(b []byte) (seen *tls.ClientHelloInfo) {
	config := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		seen = info
		return nil, errors.New("seen enough")
	}}
	_ = tls.Server(oneShot{b: bytes.NewReader(b)}, config).HandshakeContext(context.Background())
	return seen
}

// compareWithOracle fails where this package accepts what crypto/tls refuses,
// or reads it differently.
func compareWithOracle(t *testing.T, b []byte) {
	t.Helper()
	h, err := parseHello(b)
	if err != nil {
		return
	}
	info := oracle(b)
	switch {
	case info == nil:
		t.Fatal("accepted a hello that crypto/tls refuses")
	case h.ServerName != info.ServerName:
		t.Fatalf("server name %q, crypto/tls reads %q", h.ServerName, info.ServerName)
	case !slices.Equal(h.ALPN, info.SupportedProtos):
		t.Fatalf("ALPN %q, crypto/tls reads %q", h.ALPN, info.SupportedProtos)
	case slices.Contains(info.Extensions, extECH) && !h.ECH:
		t.Fatal("ECH was not seen")
	case slices.Contains(info.Extensions, extEarlyData) != h.EarlyData:
		t.Fatal("early data was not seen")
	case slices.Contains(info.Extensions, extServerName) != h.HasServerName:
		t.Fatal("HasServerName is wrong")
	}
}

// capture returns the first flight of a crypto/tls client.
func capture(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, config).HandshakeContext(context.Background())
		client.Close()
	}()
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	b := append(header, make([]byte, int(header[3])<<8|int(header[4]))...)
	if _, err := io.ReadFull(server, b[recordHeader:]); err != nil {
		t.Fatal(err)
	}
	server.Close()
	<-done
	return b
}

func TestHelloOfCryptoTLS(t *testing.T) {
	b := capture(t, &tls.Config{ServerName: "Go.Allowed.test", NextProtos: []string{"h2", "http/1.1", "x"}})
	h, err := byteByByte(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if h.ServerName != "Go.Allowed.test" || !slices.Equal(h.ALPN, []string{"h2", "http/1.1", "x"}) || h.Version != tls.VersionTLS13 || h.ECH {
		t.Errorf("got %+v", h)
	}
	compareWithOracle(t, b)
}

func TestHelloOfOldCryptoTLS(t *testing.T) {
	b := capture(t, &tls.Config{ServerName: "old.test", MaxVersion: tls.VersionTLS12})
	h, err := parseHello(b)
	if err != nil || h.Version != tls.VersionTLS12 || h.ALPN != nil {
		t.Errorf("got %+v, %v", h, err)
	}
	compareWithOracle(t, b)
}

// TestManySegmentsOfManyRecords: the longest hello, in records of one byte and
// segments of one byte, has to cost about what its length costs.
func TestManySegmentsOfManyRecords(t *testing.T) {
	message := hello{extensions: [][]byte{extension(0x1234, make([]byte, 10000))}}.message()
	b := inRecords(message, 1)
	if len(b) > MaxHello {
		t.Fatalf("the hello takes %d bytes", len(b))
	}
	var a Assembler
	for n := range len(b) {
		if _, err := a.Parse(b[:n]); !errors.Is(err, ErrShort) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if _, err := a.Parse(b); err != nil {
		t.Fatal(err)
	}
	if a.next != len(b)-recordHeader-1 {
		t.Errorf("records up to %d of %d were taken once", a.next, len(b))
	}
}

func TestLengthLimit(t *testing.T) {
	fits := hello{extensions: [][]byte{extension(0x1234, make([]byte, 60000))}}.message()
	if _, err := parseHello(inRecords(fits, maxRecord)); err != nil {
		t.Errorf("60000 bytes: %v", err)
	}
	long := inRecords(fits, 16)
	for _, n := range []int{MaxHello, len(long)} {
		var bad *MalformedError
		if _, err := parseHello(long[:n]); !errors.As(err, &bad) {
			t.Errorf("%d bytes in small records: %v", n, err)
		}
	}
	if _, err := parseHello(long[:MaxHello-22]); !errors.Is(err, ErrShort) {
		t.Errorf("just before the limit: %v", err)
	}
}

func TestLastRecordIsNotReadOn(t *testing.T) {
	b := fixture(t, "base-allowed")
	early := append(bytes.Clone(b), 20, 3, 3, 0, 1, 1, 23, 3, 3)
	h, err := parseHello(early)
	if err != nil || h.ServerName != "allowed.test" {
		t.Errorf("got %+v, %v", h, err)
	}
}

// TestWhatOthersReadAsTLSIsTLS: where it may begin with anything, as on ports that are not
// the web's, what a server takes for a hello must not pass for something else.
func TestWhatOthersReadAsTLSIsTLS(t *testing.T) {
	message := hello{extensions: [][]byte{serverName("evil.test")}}.message()
	read := 0
	for version := range 1 << 8 {
		of := func(kind byte, payload []byte) []byte {
			return append([]byte{kind, byte(version), 1}, vec16(payload)...)
		}
		ordinary := of(recordHandshake, message)
		for _, first := range [][]byte{
			ordinary,
			append(of(recordHandshake, message[:1]), of(recordHandshake, message[1:])...),
			append(of(recordAlert, []byte{1, 90}), ordinary...),
			append(of(recordAlert, []byte{1, 41}), inRecords(message, 4096)...),
			append(of(recordChangeCipherSpec, []byte{1}), ordinary...),
			append(of(recordHandshake, nil), ordinary...),
		} {
			if oracle(first) == nil {
				continue
			}
			read++
			if p := Detect(first); p != TLS {
				t.Errorf("crypto/tls reads the hello behind % x; it was detected as %s", first[:6], p)
			}
		}
	}
	if read < 3 {
		t.Errorf("crypto/tls reads %d of the hellos", read)
	}
}

// TestWhatGnuTLSAndOpenSSLReadAsTLSIsTLS is the same of what crypto/tls does not read, and
// servers of GnuTLS and OpenSSL do: changes of ciphers GnuTLS alone, SSLv2 both. No
// name can be told from it, so parsing refuses it.
func TestWhatGnuTLSAndOpenSSLReadAsTLSIsTLS(t *testing.T) {
	ordinary := string(inRecords(hello{extensions: [][]byte{serverName("evil.test")}}.message(), 4096))
	for _, first := range []string{
		"\x14\x03\x00\x00\x01\x01" + ordinary,
		"\x14\x03\x01\x00\x01\x01" + ordinary,
		"\x14\x03\x03\x00\x01\x01\x14\x03\x03\x00\x01\x01" + ordinary,
		"\x80\x38\x01\x03\x03\x00\x0f\x00\x00\x00\x20\x00\xc0\x2f\x00\xc0\x30\x00\x00\x9c\x00\x00\x2f\x00\x00\x35" + strings.Repeat("c", 32),
	} {
		if p := Detect([]byte(first)); p != TLS {
			t.Errorf("% x… was detected as %s", first[:6], p)
		}
		checkName(t, "in one piece", refused)(parseHello([]byte(first)))
		checkName(t, "byte by byte", refused)(byteByByte(t, []byte(first)))
	}
}

// parseHello parses the ClientHello at the start of b in one call.
func parseHello(b []byte) (Hello, error) {
	var a Assembler
	return a.Parse(b)
}
