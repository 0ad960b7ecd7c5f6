package bundle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/bundle"
)

const maxSignaturesBytes = 8 << 20

// A bundleSignature is the signature of a bundle: a JWT over the hashes of its files.
type bundleSignature struct {
	text  string
	alg   string // from the header
	kid   string
	files []bundle.FileInfo
	keyID string // from the payload, where older versions of OPA wrote it
	scope string

	issued, expires, notBefore time.Time // zero if absent
}

// verify verifies that key signed every file. OPA checks the signature and the hashes; verify adds the
// checks that OPA lacks.
func (b *Bundle) verify(files bundleFiles, key *Key, now time.Time) error {
	public, algorithm, err := key.public()
	if err != nil {
		return fmt.Errorf("the key: %w", err)
	}
	text, err := publicPEM(public)
	if err != nil {
		return fmt.Errorf("the key: %w", err)
	}
	signed, ok := files[signaturesName]
	if !ok {
		return ErrNotSigned
	}
	t, err := readSignatures(signed)
	if err != nil {
		return fmt.Errorf("%s: %w", signaturesName, err)
	}
	if t.alg != algorithm {
		return fmt.Errorf("%w: it is signed with the algorithm %.20q, and the key signs with %s", ErrWrongKey, t.alg, algorithm)
	}
	const id = "egressd"
	hashes, err := bundle.VerifyBundleSignature(bundle.SignaturesConfig{Signatures: []string{t.text}}, &bundle.VerificationConfig{
		PublicKeys: map[string]*bundle.KeyConfig{id: {Key: string(text), Algorithm: algorithm, Scope: t.scope}},
		KeyID:      id, // overrides the key that the signature names
		Scope:      t.scope,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrongKey, err)
	}
	if err := t.holds(key.Scope, now); err != nil {
		return err
	}
	if err := checkHashes(files, hashes); err != nil {
		return err
	}
	b.Signed, b.KeyID, b.Issued, b.Expires = true, t.keyID, t.issued, t.expires
	return nil
}

// holds checks the scope of a verified signature, and its times unless now is zero.
func (t *bundleSignature) holds(scope string, now time.Time) error {
	switch {
	case t.scope != scope:
		return fmt.Errorf("the signature is for the scope %q, and %q is wanted", t.scope, scope)
	case now.IsZero():
		return nil
	case !t.expires.IsZero() && !now.Before(t.expires):
		return fmt.Errorf("%w: it was good until %s", ErrExpired, t.expires.UTC().Format(time.RFC3339))
	case now.Before(t.notBefore):
		return fmt.Errorf("the signature is not good before %s", t.notBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkHashes verifies that the files are exactly those with the hashes.
func checkHashes(files bundleFiles, hashes map[string]bundle.FileInfo) error {
	for _, name := range files.names() {
		if name == signaturesName {
			continue
		}
		if err := bundle.VerifyBundleFile(name, *bytes.NewBuffer(files[name]), hashes); err != nil {
			return fmt.Errorf("not what was signed: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hashes)) {
		return fmt.Errorf("not what was signed: the file %.200q is missing", name)
	}
	return nil
}

// readSignatures parses the file with the single signature.
func readSignatures(text []byte) (*bundleSignature, error) {
	if len(text) > maxSignaturesBytes {
		return nil, fmt.Errorf("it is larger than %d MiB", maxSignaturesBytes>>20)
	}
	keys, err := readObject(text, "signatures", "plugin")
	if err == nil {
		err = onlyKnown(keys, "signatures", "plugin")
	}
	if err != nil {
		return nil, err
	}
	var content struct {
		Signatures []string `json:"signatures"`
		Plugin     string   `json:"plugin"`
	}
	if err := json.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	switch {
	case content.Plugin != "" && content.Plugin != "_default":
		return nil, fmt.Errorf("it wants to be verified by %.80q, which egressd does not know", content.Plugin)
	case len(content.Signatures) == 0:
		return nil, ErrNotSigned
	case len(content.Signatures) > 1:
		return nil, errors.New("it holds more than one signature; one is wanted")
	}
	return readToken(content.Signatures[0])
}

// readToken parses an unverified JWT (RFC 7519). It refuses keys and values that parsers interpret
// differently.
func readToken(text string) (*bundleSignature, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return nil, errors.New("the signature is not in three parts")
	}
	t := &bundleSignature{text: text}
	var err error
	for i, read := range []func([]byte) error{t.readHeader, t.readPayload, func([]byte) error { return nil }} {
		part, wrong := base64.RawURLEncoding.Strict().DecodeString(parts[i])
		if wrong != nil || strings.ContainsAny(parts[i], "\r\n") {
			return nil, errors.New("the signature is not in base64url")
		}
		if err = read(part); err != nil {
			return nil, fmt.Errorf("the signature: %w", err)
		}
	}
	if t.kid != "" && t.keyID != "" && t.kid != t.keyID {
		return nil, errors.New("the signature names two keys")
	}
	if t.keyID == "" {
		t.keyID = t.kid
	}
	return t, nil
}

// readHeader parses the header. Only alg, typ and kid are allowed, so the header cannot carry a key or
// critical extensions.
func (t *bundleSignature) readHeader(text []byte) error {
	keys, err := readObject(text, "alg", "typ", "kid")
	if err == nil {
		err = onlyKnown(keys, "alg", "typ", "kid")
	}
	if err != nil {
		return fmt.Errorf("its header: %w", err)
	}
	return errors.Join(textAt(keys, "alg", &t.alg), textAt(keys, "kid", &t.kid))
}

func (t *bundleSignature) readPayload(text []byte) error {
	keys, err := readObject(text, "files", "keyid", "scope", "iat", "exp", "nbf")
	if err != nil {
		return fmt.Errorf("its payload: %w", err)
	}
	return errors.Join(
		t.readFiles(keys["files"]),
		textAt(keys, "keyid", &t.keyID),
		textAt(keys, "scope", &t.scope),
		timeAt(keys, "iat", &t.issued),
		timeAt(keys, "exp", &t.expires),
		timeAt(keys, "nbf", &t.notBefore),
	)
}

// readFiles parses the hashes, one for each file.
func (t *bundleSignature) readFiles(text json.RawMessage) error {
	var entries []json.RawMessage
	if err := json.Unmarshal(text, &entries); err != nil || len(entries) == 0 {
		return errors.New("it covers no file")
	}
	if len(entries) > maxBundleFiles {
		return fmt.Errorf("it covers more than %d files", maxBundleFiles)
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		keys, err := readObject(entry, "name", "hash", "algorithm")
		if err != nil {
			return fmt.Errorf("its files: %w", err)
		}
		var f bundle.FileInfo
		if err := errors.Join(textAt(keys, "name", &f.Name), textAt(keys, "hash", &f.Hash), textAt(keys, "algorithm", &f.Algorithm)); err != nil {
			return err
		}
		switch {
		case seen[f.Name]:
			return fmt.Errorf("it covers the file %.200q twice", f.Name)
		case !slices.Contains([]string{"SHA-256", "SHA-384", "SHA-512", "SHA-512-256"}, f.Algorithm):
			return fmt.Errorf("it covers the file %.200q with the hash %.20q; SHA-256 or better is wanted", f.Name, f.Algorithm)
		}
		seen[f.Name] = true
		t.files = append(t.files, f)
	}
	return nil
}

// textAt sets into to the text at a key. It leaves into unchanged if the key is absent.
func textAt(keys map[string]json.RawMessage, key string, into *string) error {
	raw, ok := keys[key]
	if !ok {
		return nil
	}
	if len(raw) == 0 || raw[0] != '"' {
		return fmt.Errorf("its %s is not text", key)
	}
	return json.Unmarshal(raw, into)
}

// maxSeconds is the largest time that all formats can write, in the year 9999.
const maxSeconds = 253402300799

// timeAt sets into to the NumericDate at a key (RFC 7519, section 2), in whole seconds. It leaves into
// unchanged if the key is absent.
func timeAt(keys map[string]json.RawMessage, key string, into *time.Time) error {
	raw, ok := keys[key]
	if !ok {
		return nil
	}
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || seconds < 1 || seconds > maxSeconds {
		return fmt.Errorf("its %s is not a time", key)
	}
	*into = time.Unix(int64(math.Floor(seconds)), 0)
	return nil
}
