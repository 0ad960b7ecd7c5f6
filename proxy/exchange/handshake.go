package exchange

import (
	"crypto/tls"
	"encoding/asn1"
	"errors"
)

// The certificates of a peer stay in memory while its connection stands, and with its sessions. crypto/tls
// accepts 256 KiB of them. Parsed, they can take seventy times as much, while a chain needs a few KiB.
// Thousands of connections of one sandbox could hold tens of gigabytes (decision 49).
const (
	handshakeMost = 64 << 10  // bytes that one end may send in a handshake
	chainMost     = 256 << 10 // bytes of memory that its certificates may take
)

// Bytes of memory that a certificate's values take once they are parsed, measured.
const (
	valueMemory = 48
	uriMemory   = 160 // and so much more, for a URI
	partMemory  = 8   // for a byte of an object identifier
)

const (
	tagURI    = 6  // of a GeneralName (RFC 5280 §4.2.1.6)
	depthMost = 16 // of values inside values; crypto/x509 parses none that are deeper
)

var (
	ErrLongHandshake = errors.New("a TLS handshake of more than 64 KiB")
	ErrLargeChain    = errors.New("certificates that take more than 256 KiB of memory")
)

// A HandshakeBound counts what the other end sends until the handshake is over.
type HandshakeBound struct {
	seen int
	Over bool
}

// Came notes n more bytes. The error stays.
func (b *HandshakeBound) Came(n int) error {
	if b.Over {
		return nil
	}
	if b.seen += n; b.seen > handshakeMost {
		return ErrLongHandshake
	}
	return nil
}

// SmallChain refuses certificates that would take much memory for as long as the
// connection stands. It is for [tls.Config.VerifyConnection].
func SmallChain(state tls.ConnectionState) error {
	sum := 0
	for _, cert := range state.PeerCertificates {
		if sum += weight(cert.Raw); sum > chainMost {
			return ErrLargeChain
		}
	}
	return nil
}

// weight returns about how much memory DER takes once it is parsed, rather too much. Its values are counted by
// their kinds, since a short value takes most for its size.
func weight(der []byte) int { return len(der) + weightOfValues(der, 0) }

func weightOfValues(der []byte, depth int) (n int) {
	for len(der) > 0 && depth < depthMost {
		var v asn1.RawValue
		rest, err := asn1.Unmarshal(der, &v)
		if err != nil { // the bytes are no DER, such as those of a key
			return n
		}
		der, n = rest, n+valueMemory
		switch {
		case v.IsCompound, v.Class == asn1.ClassUniversal && v.Tag == asn1.TagOctetString: // an extension
			n += weightOfValues(v.Bytes, depth+1)
		case v.Class == asn1.ClassUniversal && v.Tag == asn1.TagOID:
			n += len(v.Bytes) * partMemory
		case v.Class == asn1.ClassContextSpecific && v.Tag == tagURI:
			n += uriMemory
		}
	}
	return n
}
