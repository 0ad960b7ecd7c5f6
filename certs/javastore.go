package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
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

func jksWith(store []byte, added []*x509.Certificate) ([]byte, error) {
	ks := keystore.New(keystore.WithOrderedAliases(), keystore.WithCaseExactAliases())
	if err := ks.Load(bytes.NewReader(store), []byte(javaPassword)); err != nil {
		return nil, fmt.Errorf("JKS: %w", err)
	}
	for i, c := range added {
		entry := keystore.TrustedCertificateEntry{CreationTime: time.Now(), Certificate: keystore.Certificate{Type: "X.509", Content: c.Raw}}
		if err := ks.SetTrustedCertificateEntry(alias(i), entry); err != nil {
			return nil, fmt.Errorf("JKS: %w", err)
		}
	}
	var out bytes.Buffer
	if err := ks.Store(&out, []byte(javaPassword)); err != nil {
		return nil, fmt.Errorf("JKS: %w", err)
	}
	return out.Bytes(), nil
}

func pkcs12With(store []byte, added []*x509.Certificate) ([]byte, error) {
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

func alias(i int) string {
	if i == 0 {
		return "egressd"
	}
	return fmt.Sprintf("egressd-%d", i)
}
