package rego

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// What keeps a bundle from being read with a key, beside a text that is broken.
var (
	// ErrNotSigned says that a bundle has no signature, and that a key wants one.
	ErrNotSigned = errors.New("the bundle is not signed")

	// ErrWrongKey says that the signature was not made by the key: with another
	// one, with another algorithm, or it was changed.
	ErrWrongKey = errors.New("the bundle is not signed with this key")

	// ErrExpired says that the signature was good until a time that has passed.
	ErrExpired = errors.New("the signature of the bundle has expired")
)

// A Bundle is a policy in the format of OPA, as one file.
type Bundle struct {
	Revision string   // what its maker calls it; empty: not said
	Roots    []string // the paths of data that it owns; [""] is all

	// What the signature says. All of it is zero where Signed is false.
	Issued  time.Time // when it was signed; zero: not said
	Expires time.Time // from when on it is refused; zero: not said
	KeyID   string    // what the signer calls the key; a claim, and no reason to trust
	Signed  bool      // a key was given, and every file is what was signed with it

	// Sources are the modules, tests among them, under their names in the bundle,
	// and all data as one file. Data lies where the folders of the bundle put it, and
	// means in [Load] what it means in OPA.
	Sources []Source
}

// A BundleKey is the public key that a bundle has to be signed with.
type BundleKey struct {
	// PEM is one public key: Ed25519, ECDSA on P-256, P-384 or P-521, or RSA of at
	// least 2048 bits.
	PEM []byte

	// Algorithm is the one that signatures are made with: EdDSA, ES256, ES384, ES512,
	// RS256, RS384, RS512, PS256, PS384 or PS512. Empty: the one that belongs to the
	// key, and RS256 for RSA. OPA's command takes them all, and the configuration
	// of an OPA server all but EdDSA.
	Algorithm string

	// Scope is what the signature has to be for; empty: it must name no scope.
	Scope string
}

// ReadBundle reads a gzipped tar file. What it returns is not compiled: that is for
// [Load].
//
// With a key, the signature is verified first, and every file of the bundle has to be
// what was signed; the error is [ErrNotSigned], [ErrWrongKey] or [ErrExpired] where
// that is why. With no key a signature is not looked at.
//
// It refuses what it would have to pass over or to guess: files outside of the roots of the
// manifest, data that OPA would not load, another version of Rego, compiled
// policies, patches, names and entries that readers of tar files take in different
// ways. A bundle has at most 16 MiB, 64 MiB unpacked, 10,000 files, and a million values
// in its data.
func ReadBundle(tarball []byte, key *BundleKey, now time.Time) (*Bundle, error) {
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

// read takes the policy out of the files.
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
		case kind == aModule:
			err = b.module(Source{name, files[name]})
		case kind == someData:
			err = mergeFile(data, name, files[name])
		}
		if err != nil {
			return err
		}
	}
	return b.data(data)
}

// module adds a module, the package of which has to be below a root.
func (b *Bundle) module(s Source) error {
	m, err := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	switch {
	case err != nil:
		return problemsOf(s.Name, err)
	case m == nil:
		return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: "the file is empty; it begins with: package egress"}}
	}
	if !within(b.Roots, keysOf(m.Package.Path)) {
		return policy.FileError{problemAt(m.Package.Location, fmt.Sprintf("%s is not below a root of the bundle, which are %q", m.Package, b.Roots))}
	}
	b.Sources = append(b.Sources, s)
	return nil
}

// data adds the data, all of which has to be below a root.
func (b *Bundle) data(data map[string]any) error {
	if err := dataWithin(b.Roots, nil, data); err != nil {
		return err
	}
	if len(data) > 0 {
		text, err := json.Marshal(data)
		if err != nil {
			return fmt.Errorf("writing its data: %w", err)
		}
		b.Sources = append(b.Sources, Source{dataName, text})
	}
	if len(b.Sources) == 0 {
		return errors.New("it holds neither rules nor data")
	}
	return nil
}
