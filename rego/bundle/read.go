package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// Reasons for refusing a well-formed bundle when a key is given.
var (
	// ErrNotSigned says that the bundle has no signature but a key is required.
	ErrNotSigned = errors.New("the bundle is not signed")

	// ErrWrongKey says that the signature does not verify with the key and algorithm.
	ErrWrongKey = errors.New("the bundle is not signed with this key")

	// ErrExpired says that the signature is valid but has expired.
	ErrExpired = errors.New("the signature of the bundle has expired")
)

// A Bundle is a policy in OPA's bundle format.
type Bundle struct {
	Revision string   // chosen by the author; may be empty
	Roots    []string // paths of data that the bundle owns; [""] is all

	// From the signature; zero unless Signed.
	Issued  time.Time // time of signing; zero if unknown
	Expires time.Time // time of expiry; zero for never
	KeyID   string    // the signer's name for the key; an unverified claim
	Signed  bool      // a key was given and every file matches its signature

	// Sources are the modules and tests under their names in the bundle, and all data as one file. The
	// data has the paths that the folders of the bundle give it in OPA.
	Sources []rego.Source
}

// A Key is the public key that a bundle must be signed with.
type Key struct {
	// PEM is one public key: Ed25519, ECDSA on P-256, P-384 or P-521, or RSA with at least 2048 bits.
	PEM []byte

	// Algorithm is the signature algorithm: EdDSA, ES256, ES384, ES512, RS256, RS384, RS512, PS256, PS384
	// or PS512. If it is empty, the key determines it; for RSA it is RS256. OPA's command supports all of
	// them, and an OPA server all except EdDSA.
	Algorithm string

	// Scope is the required scope of the signature. If it is empty, the signature must have no scope.
	Scope string
}

// Read reads a gzipped tar file. It compiles nothing; see [rego.Load].
//
// With a key, Read first verifies the signature of every file. The error is [ErrNotSigned],
// [ErrWrongKey] or [ErrExpired] in these cases. With a zero now, a signature may have expired. Without a
// key, signatures are ignored.
//
// Read refuses contents that it would have to ignore or guess: files outside the roots of the
// manifest, data that OPA would not load, another version of Rego, compiled policies, patches, and tar
// entries that readers interpret differently. A bundle has at most 16 MiB, 64 MiB unpacked, 10,000 files
// and a million data values.
func Read(tarball []byte, key *Key, now time.Time) (*Bundle, error) {
	files, err := unpack(tarball)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err = files.countValues(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	b := &Bundle{}
	if key != nil {
		if err = b.verify(files, key, now); err != nil {
			return nil, fmt.Errorf("bundle: %w", err)
		}
	}
	if err = b.read(files); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return b, nil
}

// read sets the policy from the files.
func (b *Bundle) read(files bundleFiles) error {
	m, err := readManifest(files[manifestName])
	if err != nil {
		return err
	}
	b.Revision, b.Roots = m.Revision, *m.Roots
	data := map[string]any{}
	for _, name := range files.names() {
		kind, err := kindOf(name)
		switch {
		case err != nil:
		case kind == moduleFile:
			err = b.module(rego.Source{Name: name, Text: files[name]})
		case kind == dataFile:
			err = mergeFile(data, name, files[name])
		}
		if err != nil {
			return err
		}
	}
	return b.data(data)
}

// module adds a module, whose package must be below a root.
func (b *Bundle) module(s rego.Source) error {
	pkg, at, err := rego.PackageOf(s)
	if err != nil {
		return err
	}
	if !within(b.Roots, pkg) {
		return policy.FileError{{File: s.Name, Line: at.Line, Column: at.Column, Message: fmt.Sprintf("package %s is not below a root of the bundle, which are %q", strings.Join(pkg, "."), b.Roots)}}
	}
	b.Sources = append(b.Sources, s)
	return nil
}

// data adds the data, which must be below the roots.
func (b *Bundle) data(data map[string]any) error {
	if err := dataWithin(b.Roots, nil, data); err != nil {
		return err
	}
	if len(data) > 0 {
		text, err := json.Marshal(data)
		if err != nil {
			return fmt.Errorf("writing its data: %w", err)
		}
		b.Sources = append(b.Sources, rego.Source{Name: dataName, Text: text})
	}
	if len(b.Sources) == 0 {
		return errors.New("it holds neither rules nor data")
	}
	return nil
}
