package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"github.com/egressd/egressd/rego"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// FuzzRead has tar files be read, packed as they should be and as they stand. What is
// read with a key was signed: it is one of the seeds to the letter, and every file of it
// has its hash under the signature. What OPA reads too, it reads the same.
func FuzzRead(f *testing.F) {
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	key := &Key{PEM: mustPublicPEM(f, private)}
	var signed [][]rego.Source
	for _, revision := range []string{"1", "2"} {
		packed, err := Sign(mustBuild(f, BuildOptions{Revision: revision}), SignOptions{KeyPEM: keyPEM(f, private), Now: signingTime})
		if err != nil {
			f.Fatal(err)
		}
		b, err := Read(packed, key, signingTime)
		if err != nil {
			f.Fatal(err)
		}
		signed = append(signed, b.Sources)
		files, err := unpack(packed)
		if err != nil {
			f.Fatal(err)
		}
		var entries []tarEntry
		for _, name := range files.names() {
			entries = append(entries, tarFile(name, string(files[name])))
		}
		f.Add(tarOf(f, entries...))
		slices.Reverse(entries)
		f.Add(tarOf(f, append(entries, tarFile("/a/data.yaml", "b: [c]"))...))
		f.Add(packed)
	}
	f.Add(tarOf(f, tarFile("/.manifest", `{"roots":["egress","a"],"revision":"x"}`), tarFile("/a/data.json", `{"b":1}`), tarFile("./egress.rego", anyRule)))
	f.Fuzz(func(t *testing.T, file []byte) {
		_, _ = Read(file, key, signingTime)
		packed := gzipped(t, file)
		loose, err := Read(packed, nil, signingTime)
		if err == nil {
			sameInOPA(t, packed, loose)
		}
		b, err := Read(packed, key, signingTime)
		if err != nil {
			return
		}
		if !b.Signed || !slices.ContainsFunc(signed, func(s []rego.Source) bool { return cmp.Equal(s, b.Sources) }) {
			t.Errorf("read what nobody signed: %s", b.Sources)
		}
		everythingIsCovered(t, file, private.Public().(ed25519.PublicKey))
	})
}

// everythingIsCovered hashes every file of a tar file again, and compares it with what the
// signature says.
func everythingIsCovered(t *testing.T, file []byte, key ed25519.PublicKey) {
	var signatures struct{ Signatures []string }
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(file))
	for h, err := r.Next(); err != io.EOF; h, err = r.Next() {
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "/")] = text
	}
	if err := json.Unmarshal(files[".signatures.json"], &signatures); err != nil {
		t.Fatal(err)
	}
	delete(files, ".signatures.json")
	part := func(text string) []byte {
		out, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	parts := strings.Split(signatures.Signatures[0], ".")
	if !ed25519.Verify(key, []byte(parts[0]+"."+parts[1]), part(parts[2])) {
		t.Fatal("the signature is not good")
	}
	var covers bundle.DecodedSignature
	if err := json.Unmarshal(part(parts[1]), &covers); err != nil {
		t.Fatal(err)
	}
	hashes, err := hashed(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range hashes {
		if !slices.ContainsFunc(covers.Files, func(f bundle.FileInfo) bool {
			return f.Name == one.Name && f.Hash == one.Hash
		}) {
			t.Errorf("the signature does not cover %q", one.Name)
		}
	}
}
