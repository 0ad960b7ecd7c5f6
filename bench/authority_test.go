//go:build linux

package main

import (
	"crypto/x509"
	"testing"
)

func parsedLeaf(t *testing.T) (*authority, *x509.Certificate) {
	t.Helper()
	root, cert, err := inspectedCertificate()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return root, leaf
}

func TestTheInspectedOriginIsVouchedForUnderEveryNewName(t *testing.T) {
	root, leaf := parsedLeaf(t)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(root.pem()) {
		t.Fatal("not a PEM certificate")
	}
	for _, host := range []string{originName, "n1-1." + originName} {
		chains, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots})
		if err != nil || len(chains) != 1 || len(chains[0]) != 2 {
			t.Errorf("%s: chains %v, %v", host, chains, err)
		}
	}
	for _, host := range []string{"other.test", "a.b." + originName, "127.0.0.1"} {
		if err := leaf.VerifyHostname(host); err == nil {
			t.Errorf("it is good for %s too", host)
		}
	}
}

func TestAnAuthorityVouchesForItsOwnLeavesOnly(t *testing.T) {
	_, leaf := parsedLeaf(t)
	other, _ := parsedLeaf(t)
	roots := x509.NewCertPool()
	roots.AddCert(other.cert)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: originName, Roots: roots}); err == nil {
		t.Error("a leaf passes under an authority that did not sign it")
	}
	if leaf.IsCA {
		t.Error("a leaf may sign")
	}
}

func TestAnAddressIsNotAName(t *testing.T) {
	root, _ := parsedLeaf(t)
	cert, err := root.issue("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil || len(leaf.DNSNames) != 0 || leaf.VerifyHostname("127.0.0.1") != nil {
		t.Errorf("names %q, addresses %v, %v", leaf.DNSNames, leaf.IPAddresses, err)
	}
}
