package bundle

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
)

// BuildOptions are settings of a new bundle.
type BuildOptions struct {
	Revision string // identifies the version; may be empty

	// Roots are the paths of data that the bundle owns, such as "egress" or "acme/lists". Contents
	// elsewhere are an error. If Roots is empty, it is "egress" and the first name of every package and
	// data key.
	Roots []string
}

// Build packs a policy as an OPA bundle. Module names must be relative paths without "..". All data
// becomes one file at the root. Equal input gives equal bytes. Tests are included; use [rego.Source.Decides] to
// remove them.
//
// Build compiles nothing; see [rego.Load] and [rego.Lint]. It returns an error for contents that [Read]
// refuses, as a [policy.FileError] if the problem has a position.
func Build(sources []rego.Source, o BuildOptions) ([]byte, error) {
	files, err := bundleOf(sources, o)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return packed(files)
}

func bundleOf(sources []rego.Source, o BuildOptions) (bundleFiles, error) {
	packages, data, err := rego.Parse(sources)
	if err != nil {
		return nil, err
	}
	files := bundleFiles{}
	roots := []string{"egress"}
	for _, s := range sources {
		pkg, ok := packages[s.Name]
		if !ok {
			continue // a data file
		}
		if name, err := bundleName(s.Name); err != nil || name != s.Name {
			return nil, fmt.Errorf("the name %q is not that of a file in a bundle; write a relative path that names no folder by dots", s.Name)
		}
		files[s.Name] = s.Text
		roots = append(roots, pkg[0])
	}
	for key := range data {
		roots = append(roots, key)
	}
	slices.Sort(roots)
	roots = slices.Compact(roots)
	if len(o.Roots) > 0 {
		roots = o.Roots
	}
	if len(data) > 0 {
		if files[dataName], err = json.Marshal(data); err != nil {
			return nil, fmt.Errorf("writing the data: %w", err)
		}
	}
	version := 1
	files[manifestName], err = json.Marshal(bundleManifest{Revision: o.Revision, Roots: &roots, RegoVersion: &version})
	return files, err
}

// packed packs the files and checks that Read accepts the result.
func packed(files bundleFiles) ([]byte, error) {
	tarball, err := pack(files)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if _, err := Read(tarball, nil, time.Time{}); err != nil {
		return nil, err
	}
	return tarball, nil
}

// SignOptions are settings of a signature.
type SignOptions struct {
	KeyPEM    []byte // unencrypted private key of a kind that [Key] supports
	Algorithm string // as in [Key]
	KeyID     string // name by which an OPA server finds the key; empty for a fingerprint
	Scope     string // scope of the signature; may be empty

	Now   time.Time     // time of signing
	Valid time.Duration // lifetime; zero for no expiry
}

// Sign signs a bundle and replaces an existing signature. It refuses the bundles that [Read]
// refuses.
func Sign(tarball []byte, o SignOptions) ([]byte, error) {
	if _, err := Read(tarball, nil, o.Now); err != nil {
		return nil, err
	}
	files, err := unpack(tarball)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	delete(files, signaturesName)
	key, err := readPrivateKey(o.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("the private key: %w", err)
	}
	if files[signaturesName], err = sign(files, key, o); err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	if tarball, err = pack(files); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return tarball, verifies(tarball, key, o)
}

// verifies checks the new signature, so that a bad one fails here and not in production.
func verifies(tarball []byte, key crypto.Signer, o SignOptions) error {
	public, err := publicPEM(key.Public())
	if err == nil {
		_, err = Read(tarball, &Key{PEM: public, Algorithm: o.Algorithm, Scope: o.Scope}, o.Now)
	}
	return err
}

// A payload is the signed text, with OPA's keys.
type payload struct {
	Files   []bundle.FileInfo `json:"files"`
	KeyID   string            `json:"keyid"`
	Scope   string            `json:"scope,omitempty"`
	Issued  int64             `json:"iat"`
	Expires int64             `json:"exp,omitempty"`
}

// sign returns the contents of the signature file.
func sign(files bundleFiles, key crypto.Signer, o SignOptions) ([]byte, error) {
	algorithm, err := algorithmOf(key.Public(), o.Algorithm)
	if err != nil {
		return nil, err
	}
	p := payload{KeyID: o.KeyID, Scope: o.Scope, Issued: o.Now.Unix()}
	if o.Valid != 0 {
		p.Expires = o.Now.Add(o.Valid).Unix()
	}
	if p.Issued < 1 || o.Valid < 0 || o.Valid != 0 && p.Expires <= p.Issued {
		return nil, errors.New("a signature is good for a second at least, from now on")
	}
	if p.KeyID == "" {
		if p.KeyID, err = fingerprint(key.Public()); err != nil {
			return nil, err
		}
	}
	if p.Files, err = hashed(files); err != nil {
		return nil, err
	}
	text, err := signToken(p, key, algorithm)
	if err != nil {
		return nil, err
	}
	return json.Marshal(bundle.SignaturesConfig{Signatures: []string{text}})
}

// hashed hashes the files as OPA does: data by value, other files by bytes.
func hashed(files bundleFiles) (all []bundle.FileInfo, err error) {
	h, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		return nil, err
	}
	for _, name := range files.names() {
		var value any = files[name]
		if bundle.IsStructuredDoc(name) {
			value = nil
			if err := util.Unmarshal(files[name], &value); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		sum, err := h.HashFile(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, bundle.NewFile(name, hex.EncodeToString(sum), bundle.SHA256.String()))
	}
	return all, nil
}

// signToken writes a JWT in compact form (RFC 7515, section 3.1).
func signToken(p payload, key crypto.Signer, algorithm string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": algorithm, "kid": p.KeyID, "typ": "JWT"})
	if err != nil {
		return "", err
	}
	content, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString(base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(content))
	signature, err := signText([]byte(text.String()), key, algorithm)
	if err != nil {
		return "", err
	}
	text.WriteString("." + base64.RawURLEncoding.EncodeToString(signature))
	return text.String(), nil
}

// signText signs as RFC 7518, section 3, and RFC 8037, section 3.1 specify.
func signText(text []byte, key crypto.Signer, algorithm string) ([]byte, error) {
	if algorithm == "EdDSA" {
		return key.Sign(nil, text, crypto.Hash(0))
	}
	digest, hash := hashOf(text, algorithm)
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, digest)
		if err != nil {
			return nil, err
		}
		size := (k.Curve.Params().BitSize + 7) / 8
		return slices.Concat(fixed(r, size), fixed(s, size)), nil
	case *rsa.PrivateKey:
		if strings.HasPrefix(algorithm, "PS") {
			return rsa.SignPSS(rand.Reader, k, hash, digest, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		}
		return rsa.SignPKCS1v15(rand.Reader, k, hash, digest)
	}
	return nil, fmt.Errorf("a key of type %T does not sign bundles", key)
}

func hashOf(text []byte, algorithm string) ([]byte, crypto.Hash) {
	switch algorithm[len(algorithm)-3:] {
	case "384":
		sum := sha512.Sum384(text)
		return sum[:], crypto.SHA384
	case "512":
		sum := sha512.Sum512(text)
		return sum[:], crypto.SHA512
	}
	sum := sha256.Sum256(text)
	return sum[:], crypto.SHA256
}

func fixed(n *big.Int, size int) []byte { return n.FillBytes(make([]byte, size)) }
