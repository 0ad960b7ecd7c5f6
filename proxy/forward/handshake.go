package forward

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"reflect"
)

// The certificates of a peer stay in memory while its connection stands, and with its sessions. crypto/tls
// accepts 256 KiB of them. Parsed, they can take seventy times as much, while a chain needs a few KiB.
// Thousands of connections of one sandbox could hold tens of gigabytes (decision 49).
const (
	handshakeMost = 64 << 10  // bytes that one end may send in a handshake
	chainMost     = 256 << 10 // bytes of memory that its certificates may take
	parsedMost    = 64        // a parsed certificate takes at most so many times its bytes; one of empty URIs takes 72 times
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
	came, sum := 0, 0
	for _, cert := range state.PeerCertificates {
		came += len(cert.Raw)
	}
	if came <= chainMost/parsedMost { // as most are
		return nil
	}
	for _, cert := range state.PeerCertificates {
		if sum += weight(cert); sum > chainMost {
			return ErrLargeChain
		}
	}
	return nil
}

// weight is about how much memory a certificate takes, rather too much: what is a part of
// its bytes counts each time that it is one.
func weight(cert *x509.Certificate) int { return weightOf(reflect.ValueOf(cert)) }

func weightOf(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Slice:
		n = v.Len() * int(v.Type().Elem().Size())
		for i := 0; i < v.Len() && v.Type().Elem().Kind() > reflect.Complex128; i++ { // others are no more than their size
			n += weightOf(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += weightOf(v.Field(i))
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = int(v.Elem().Type().Size()) + weightOf(v.Elem())
		}
	}
	return n
}
