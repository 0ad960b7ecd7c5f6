package certs

import (
	"bytes"
	"crypto/sha1"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
	"unicode/utf16"

	"software.sslmate.com/src/go-pkcs12"
)

// javaPassword is the one with which Java comes, and which it tries first.
const javaPassword = "changeit"

// jksMagic begins a key store of the older of Java's two formats.
const jksMagic = 0xfeedfeed

// JavaStore returns a key store of Java, such as lib/security/cacerts, with the authorities of a PEM text added. The
// format stays: JKS, or PKCS #12 (RFC 7292) with a password or without. The error says why the store cannot be read,
// for example since its password is not Java's own.
func JavaStore(store, authorities []byte) ([]byte, error) {
	var added []*x509.Certificate
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		added = append(added, c)
	}
	if len(added) == 0 {
		return nil, errors.New("no authority to add")
	}
	if len(store) >= 4 && binary.BigEndian.Uint32(store) == jksMagic {
		return jksWith(store, added)
	}
	return pkcs12With(store, added)
}

// jksWith adds entries behind those of a store, where Java takes the last one of a name. Everything else stays byte by byte. A JKS is
// its magic, a version, the number of entries, the entries, and a hash of the password, a salt and all of this.
func jksWith(store []byte, added []*x509.Certificate) ([]byte, error) {
	const (
		count, entries = 8, 12 // offsets
		trusted        = 2     // the kind of such an entry
		perEntry       = 64    // bytes beside the certificate, at most
	)
	end := len(store) - sha1.Size
	switch {
	case end < entries:
		return nil, errors.New("JKS: it is too short")
	case binary.BigEndian.Uint32(store[4:]) != 2:
		return nil, errors.New("JKS: its version is not 2")
	case !bytes.Equal(jksHash(store[:end]), store[end:]):
		return nil, errors.New("JKS: it is damaged, or its password is not Java's own")
	}
	size := len(store)
	for _, c := range added {
		size += len(c.Raw) + perEntry
	}
	out := append(make([]byte, 0, size), store[:end]...)
	binary.BigEndian.PutUint32(out[count:], binary.BigEndian.Uint32(out[count:])+uint32(len(added)))
	text := func(s string) { out = append(binary.BigEndian.AppendUint16(out, uint16(len(s))), s...) }
	for i, c := range added {
		out = binary.BigEndian.AppendUint32(out, trusted)
		text(alias(i))
		out = binary.BigEndian.AppendUint64(out, uint64(time.Now().UnixMilli()))
		text("X.509")
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(c.Raw))), c.Raw...)
	}
	return append(out, jksHash(out)...), nil
}

// jksHash is the hash at the end of a JKS.
func jksHash(store []byte) []byte {
	h := sha1.New()
	for _, c := range utf16.Encode([]rune(javaPassword)) {
		h.Write([]byte{byte(c >> 8), byte(c)})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(store)
	return h.Sum(nil)
}

func pkcs12With(store []byte, added []*x509.Certificate) ([]byte, error) {
	if n, err := rounds(store, 0); err != nil {
		return nil, fmt.Errorf("PKCS #12: %w", err)
	} else if n > mostRounds {
		return nil, fmt.Errorf("PKCS #12: its password takes more than %d rounds", mostRounds)
	}
	encoder, password := pkcs12.Passwordless, ""
	all, err := pkcs12.DecodeTrustStore(store, password)
	if err != nil {
		encoder, password = pkcs12.Modern2023, javaPassword
		all, err = pkcs12.DecodeTrustStore(store, password)
	}
	if err != nil {
		return nil, fmt.Errorf("PKCS #12: %w", err)
	}
	entries := make([]pkcs12.TrustStoreEntry, 0, len(all)+len(added))
	for i, c := range added {
		entries = append(entries, pkcs12.TrustStoreEntry{Cert: c, FriendlyName: alias(i)})
	}
	for i, c := range all { // a name stands for one certificate
		entries = append(entries, pkcs12.TrustStoreEntry{Cert: c, FriendlyName: fmt.Sprintf("%d %s", i, c.Subject)})
	}
	return encoder.EncodeTrustStoreEntries(entries, password)
}

// mostRounds bounds how often the password of a store is hashed in all. Java hashes it 10,000 times for each of two keys. A store
// that a program has made could otherwise keep egressd busy for an hour.
const mostRounds = 1_000_000

// rounds adds up how often a password is hashed to read a store: the numbers that follow a salt (RFC 7292, appendix C; RFC 8018,
// appendix A.2). It stops above mostRounds.
func rounds(der []byte, depth int) (sum int64, err error) {
	const deepest = 32 // such a store has less than half of it
	if depth > deepest {
		return 0, errors.New("it is nested too deeply")
	}
	salted := false
	for len(der) > 0 && sum <= mostRounds {
		var value asn1.RawValue
		if der, err = asn1.Unmarshal(der, &value); err != nil {
			return sum, err
		}
		isText := value.Class == asn1.ClassUniversal && value.Tag == asn1.TagOctetString
		var n int64
		switch {
		case salted && value.Class == asn1.ClassUniversal && value.Tag == asn1.TagInteger:
			if _, err = asn1.Unmarshal(value.FullBytes, &n); err == nil && n < 0 {
				err = errors.New("less than no rounds")
			}
		case value.IsCompound:
			n, err = rounds(value.Bytes, depth+1)
		case isText:
			n, _ = rounds(value.Bytes, depth+1) // which need not be ASN.1
		}
		if sum += n; err != nil {
			return sum, err
		}
		salted = isText
	}
	return sum, nil
}

func alias(i int) string {
	if i == 0 {
		return "egressd"
	}
	return fmt.Sprintf("egressd-%d", i)
}
