package sniff

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomExtension returns an extension, good more often than not, that this
// parser or crypto/tls looks into.
func randomExtension(r *rand.Rand) []byte {
	psk := slices.Concat(vec16(append(vec16([]byte("x")), 0, 0, 0, 0)), vec16(vec8([]byte("x"))))
	good := [][]byte{
		serverName("a.test"), alpn("h2", "http/1.1"), extension(extStatusRequest, []byte{1, 0, 0, 0, 0}),
		extension(extSupportedGroups, vec16(uint16s(29))), extension(extPointFormats, vec8([]byte{0})),
		extension(35, []byte("ticket")), extension(extSignatureAlgorithms, vec16(uint16s(0x0403))),
		extension(extSignaturesCert, vec16(uint16s(0x0403))), extension(extRenegotiation, vec8(nil)),
		extension(extExtendedMasterSecret, nil), extension(extSignedTimestamps, nil), extension(extSupportedVersions, vec8(uint16s(0x0304))),
		extension(extCookie, vec16([]byte("c"))), extension(extKeyShare, vec16(append(uint16s(29), vec16([]byte("k"))...))),
		extension(extEarlyData, nil), extension(extPSKModes, vec8([]byte{1})), extension(57, []byte("q")),
		extension(extPreSharedKey, psk), extension(extECH, []byte{1}),
		extension(extECH, slices.Concat([]byte{0, 0, 1, 0, 1, 7}, vec16([]byte("e")), vec16([]byte("p")))), extension(0xabcd, []byte("?")),
	}
	e := good[r.IntN(len(good))]
	switch content := e[4:]; r.IntN(12) {
	case 0: // one byte changed
		if len(content) > 0 {
			content[r.IntN(len(content))] ^= 1 << r.IntN(8)
		}
	case 1: // one byte more
		e = extension(uint16(e[0])<<8|uint16(e[1]), append(slices.Clone(content), 0))
	case 2: // one byte less
		e = extension(uint16(e[0])<<8|uint16(e[1]), content[:max(0, len(content)-1)])
	}
	return e
}

// TestRandomHellos: never laxer than crypto/tls, and never different.
func TestRandomHellos(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 30000 {
		var extensions [][]byte
		for range r.IntN(6) {
			extensions = append(extensions, randomExtension(r))
		}
		message := hello{extensions: extensions}.message()
		if r.IntN(10) == 0 {
			message[r.IntN(len(message))] ^= 1 << r.IntN(8)
		}
		b := inRecords(message, 1+r.IntN(len(message)))
		compareWithOracle(t, b)
		if _, err := parseHello(b); err == nil {
			accepted++
		} else if _, short := parseHello(b[:len(b)-1]); short == nil {
			t.Fatalf("a hello is complete without its last byte, and then %v", err)
		}
	}
	if accepted < 3000 {
		t.Errorf("only %d hellos were accepted: this shows nothing", accepted)
	}
}

// TestStricterOnPurpose lists where crypto/tls accepts and this package does
// not; what crypto/tls reads there is why.
func TestStricterOnPurpose(t *testing.T) {
	for _, row := range []struct {
		name   string
		stream []byte
	}{
		{"a NUL in the name", fixture(t, "sni-nul-suffix")},
		{"a name too long for DNS", fixture(t, "sni-256")},
		{"a name of an unknown type beside the host name", one(extension(extServerName, vec16([]byte{1, 0, 1, 'a', 0, 0, 1, 'b'})))},
		{"a warning before the hello", append([]byte{21, 3, 1, 0, 2, 1, 90}, fixture(t, "base-allowed")...)},
	} {
		if oracle(row.stream) == nil {
			t.Errorf("%s: crypto/tls refuses it too", row.name)
		}
		var bad *MalformedError
		if _, err := parseHello(row.stream); !errors.As(err, &bad) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}
