package bundle

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// minRSABits is the minimum size of an RSA key.
const minRSABits = 2048

func (k *Key) public() (key crypto.PublicKey, algorithm string, err error) {
	block, err := onePEM(k.PEM)
	if err != nil {
		return nil, "", err
	}
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		err = fmt.Errorf("it is a PEM file with a %s, and a PUBLIC KEY is wanted; openssl pkey -pubout prints that of a private key", printablePEM(block.Type))
	}
	if err != nil {
		return nil, "", err
	}
	algorithm, err = algorithmOf(key, k.Algorithm)
	return key, algorithm, err
}

func readPrivateKey(text []byte) (crypto.Signer, error) {
	block, err := onePEM(text)
	if err != nil {
		return nil, err
	}
	var key any
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		err = fmt.Errorf("it is a PEM file with a %s, and a PRIVATE KEY that is not encrypted is wanted", printablePEM(block.Type))
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T does not sign", key)
	}
	return signer, nil
}

// onePEM parses a text with exactly one PEM block. A second key would otherwise be ignored.
func onePEM(text []byte) (*pem.Block, error) {
	text = bytes.TrimSpace(text)
	block, rest := pem.Decode(text)
	switch {
	case block == nil || !bytes.HasPrefix(text, []byte("-----BEGIN ")):
		return nil, errors.New("it is not a key in PEM")
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, errors.New("it holds more than one key; one is wanted")
	case len(block.Headers) > 0:
		return nil, errors.New("the key is encrypted, or has headers; one without is wanted")
	}
	return block, nil
}

func printablePEM(kind string) string { return fmt.Sprintf("%.40q", kind) }

// algorithmOf returns the wanted algorithm if the key supports it. If wanted is empty, it returns the
// default of the key.
func algorithmOf(key crypto.PublicKey, wanted string) (string, error) {
	all, err := algorithms(key)
	switch {
	case err != nil:
		return "", err
	case wanted == "":
		return all[0], nil
	case !slices.Contains(all, wanted):
		return "", fmt.Errorf("this key does not sign with the algorithm %.20q; it is one for %s", wanted, strings.Join(all, ", "))
	}
	return wanted, nil
}

// algorithms returns the algorithms of RFC 7518 and RFC 8037 for a key. HMAC algorithms (HS256) are never
// among them.
func algorithms(key crypto.PublicKey) ([]string, error) {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	case *ecdsa.PublicKey:
		if name, ok := map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[k.Curve.Params().BitSize]; ok {
			return []string{name}, nil
		}
		return nil, fmt.Errorf("the curve %s is not one for signing bundles; take P-256", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits {
			return nil, fmt.Errorf("the RSA key has %d bits; at least %d are wanted", bits, minRSABits)
		}
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	}
	return nil, fmt.Errorf("a key of type %T does not sign bundles; take one of ECDSA on P-256", key)
}

// fingerprint returns a short identifier of a public key.
func fingerprint(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:8]), nil
}

func publicPEM(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}
