package bundle

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// A forger makes signatures that Sign would not.
type forger struct {
	t               *testing.T
	private, public []byte
	files           bundleFiles // of a bundle that is not signed
}

func newForger(t *testing.T) *forger {
	private, public := testKey(t, "P-256")
	files, err := unpack(mustBuild(t, BuildOptions{Revision: "r7"}))
	if err != nil {
		t.Fatal(err)
	}
	return &forger{t, private, public, files}
}

func (f *forger) pack(files bundleFiles) []byte {
	f.t.Helper()
	out, err := pack(files)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// with is the bundle with a file for signatures.
func (f *forger) with(signatures string) []byte {
	f.t.Helper()
	files := maps.Clone(f.files)
	files[signaturesName] = []byte(signatures)
	return f.pack(files)
}

// covered is what a good signature says of the files.
func (f *forger) covered() (all []any) {
	f.t.Helper()
	files, err := hashed(f.files)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, one := range files {
		all = append(all, map[string]any{"name": one.Name, "hash": one.Hash, "algorithm": one.Algorithm})
	}
	return all
}

func (f *forger) encode(part any) string {
	f.t.Helper()
	text, raw := part.(string)
	if !raw {
		out, err := json.Marshal(part)
		if err != nil {
			f.t.Fatal(err)
		}
		text = string(out)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// token signs a header and a payload, whatever they are: texts as they stand, all
// else as JSON.
func (f *forger) token(header, payload any) string {
	f.t.Helper()
	key, err := readPrivateKey(f.private)
	if err != nil {
		f.t.Fatal(err)
	}
	text := f.encode(header) + "." + f.encode(payload)
	signature, err := signText([]byte(text), key, "ES256")
	if err != nil {
		f.t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func (f *forger) signed(header, payload any) []byte {
	f.t.Helper()
	return f.with(`{"signatures":["` + f.token(header, payload) + `"]}`)
}

// payload is a good one, with changes: nil takes a claim away.
func (f *forger) payload(changes map[string]any) map[string]any {
	p := map[string]any{"files": f.covered(), "iat": signingTime.Unix()}
	for key, value := range changes {
		if p[key] = value; value == nil {
			delete(p, key)
		}
	}
	return p
}

var es256 = map[string]any{"alg": "ES256"}

func TestBundleSignaturesThatAreRefused(t *testing.T) {
	f := newForger(t)
	good := f.token(es256, f.payload(nil))
	parts := strings.Split(good, ".")
	claims := func(changes map[string]any) []byte { return f.signed(es256, f.payload(changes)) }
	edited := func(edit func(bundleFiles)) []byte {
		files, err := unpack(f.signed(es256, f.payload(nil)))
		if err != nil {
			t.Fatal(err)
		}
		edit(files)
		return f.pack(files)
	}
	firstFile := func(change map[string]any) []byte {
		all := f.covered()
		maps.Copy(all[0].(map[string]any), change)
		return claims(map[string]any{"files": all})
	}
	text := func(from, to string) []byte {
		whole, err := json.Marshal(f.payload(nil))
		if err != nil || !strings.Contains(string(whole), from) {
			t.Fatalf("%v: %s", err, whole)
		}
		return f.signed(es256, strings.Replace(string(whole), from, to, 1))
	}
	mac := hmac.New(sha256.New, f.public)
	confused := f.encode(map[string]any{"alg": "HS256"}) + "." + parts[1]
	mac.Write([]byte(confused))
	confused += "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	rsa, _ := testKey(t, "RSA")
	byRSA, err := Sign(f.pack(f.files), SignOptions{KeyPEM: rsa, Now: signingTime})
	if err != nil {
		t.Fatal(err)
	}
	other, _ := testKey(t, "P-256")
	byOther, err := Sign(f.pack(f.files), SignOptions{KeyPEM: other, Now: signingTime})
	if err != nil {
		t.Fatal(err)
	}
	quoted := func(tokens ...string) []byte {
		return f.with(`{"signatures":["` + strings.Join(tokens, `","`) + `"]}`)
	}

	for _, c := range []struct {
		what   string
		packed []byte
		want   string // in the error; "": read
		is     error
	}{
		{"as it should be", claims(nil), "", nil},
		{"with claims of others", claims(map[string]any{"iss": "acme", "sub": "x"}), "", nil},
		{"with a time that is no whole second", claims(map[string]any{"exp": 1.7723809e9 + 0.5}), "", nil},
		{"data laid out in another way", edited(func(files bundleFiles) { files[dataName] = slices.Concat([]byte(" \n"), files[dataName]) }), "", nil},

		{"no signature", f.pack(f.files), "", ErrNotSigned},
		{"an empty list of signatures", f.with(`{"signatures":[]}`), "", ErrNotSigned},
		{"an empty object", f.with(`{}`), "", ErrNotSigned},
		{"another key", byOther, "", ErrWrongKey},
		{"a key of another type", byRSA, "", ErrWrongKey},
		{"the public key as a secret", quoted(confused), `algorithm "HS256"`, ErrWrongKey},
		{"a good signature that says none", quoted(f.encode(map[string]any{"alg": "none"}) + "." + parts[1] + "." + parts[2]), `algorithm "none"`, ErrWrongKey},
		{"none at all", quoted(f.encode(map[string]any{"alg": "none"}) + "." + parts[1] + "."), "", ErrWrongKey},
		{"an empty signature", quoted(parts[0] + "." + parts[1] + "."), "", ErrWrongKey},
		{"a signature of zeros", quoted(parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))), "", ErrWrongKey},
		{"another payload", quoted(parts[0] + "." + f.encode(f.payload(map[string]any{"exp": 9e9})) + "." + parts[2]), "", ErrWrongKey},
		{"an algorithm in lower case", f.signed(map[string]any{"alg": "es256"}, f.payload(nil)), "", ErrWrongKey},
		{"no algorithm", f.signed(map[string]any{}, f.payload(nil)), "", ErrWrongKey},

		{"two signatures", quoted(good, good), "more than one signature", nil},
		{"two lists of signatures", f.with(`{"signatures":["` + confused + `"],"signatures":["` + good + `"]}`), "twice", nil},
		{"a list in another case", f.with(`{"signatures":["` + good + `"],"Signatures":[]}`), `write "signatures"`, nil},
		{"another verifier", f.with(`{"signatures":["` + good + `"],"plugin":"trusting"}`), `"trusting"`, nil},
		{"something behind the signatures", f.with(`{"signatures":["` + good + `"]}{}`), "it is not JSON", nil},
		{"signatures in YAML", f.with("signatures:\n- " + good), "it is not JSON", nil},
		{"signatures that are null", f.with("null"), "one object", nil},
		{"an unknown key beside them", f.with(`{"signatures":["` + good + `"],"trust":true}`), `the key "trust"`, nil},
		{"large signatures", f.with(`{"signatures":["` + strings.Repeat("a", maxSignaturesBytes) + `"]}`), "larger than 8 MiB", nil},

		{"two parts", quoted(parts[0] + "." + parts[1]), "three parts", nil},
		{"four parts", quoted(good + ".x"), "three parts", nil},
		{"padding", quoted(good + "="), "base64url", nil},
		{"a line break in it", quoted(parts[0] + `\n.` + parts[1] + "." + parts[2]), "base64url", nil},
		{"a key in the header", f.signed(map[string]any{"alg": "ES256", "jwk": map[string]any{}}, f.payload(nil)), `the key "jwk"`, nil},
		{"something critical", f.signed(map[string]any{"alg": "ES256", "crit": []string{"b64"}, "b64": false}, f.payload(nil)), `the key "b64"`, nil},
		{"an algorithm twice", f.signed(`{"alg":"HS256","alg":"ES256"}`, f.payload(nil)), "twice", nil},
		{"an algorithm that is a number", f.signed(`{"alg":256}`, f.payload(nil)), "its alg is not text", nil},
		{"a header that is a list", f.signed(`[]`, f.payload(nil)), "one object", nil},
		{"a payload that is text", f.signed(es256, `"files"`), "one object", nil},
		{"two names of the key", f.signed(map[string]any{"alg": "ES256", "kid": "a"}, f.payload(map[string]any{"keyid": "b"})), "names two keys", nil},

		{"a scope", claims(map[string]any{"scope": "write"}), `for the scope "write"`, nil},
		{"a scope in another case of its name", claims(map[string]any{"Scope": "write"}), `write "scope"`, nil},
		{"a time twice", text(`{"files"`, `{"exp":9000000000,"exp":1,"files"`), "twice", nil},
		{"a time that has passed", claims(map[string]any{"exp": signingTime.Unix()}), "2026-03-01T12:00:00Z", ErrExpired},
		{"a time long ago", claims(map[string]any{"exp": 1}), "", ErrExpired},
		{"a time that is text", claims(map[string]any{"exp": "9000000000"}), "its exp is not a time", nil},
		{"a time that is null", text(`{"files"`, `{"exp":null,"files"`), "its exp is not a time", nil},
		{"a time that is negative", claims(map[string]any{"exp": -1}), "its exp is not a time", nil},
		{"a time beyond all", claims(map[string]any{"exp": 1e300}), "its exp is not a time", nil},
		{"a start that is to come", claims(map[string]any{"nbf": signingTime.Unix() + 1}), "not good before 2026-03-01T12:00:01Z", nil},
		{"a start that is an object", claims(map[string]any{"nbf": map[string]any{}}), "its nbf is not a time", nil},

		{"no files", claims(map[string]any{"files": nil}), "it covers no file", nil},
		{"an empty list of files", claims(map[string]any{"files": []any{}}), "it covers no file", nil},
		{"many files", claims(map[string]any{"files": make([]any, maxBundleFiles+1)}), "it covers more than 10000 files", nil},
		{"files in another case of the name", text(`"files"`, `"Files"`), `write "files"`, nil},
		{"a file twice", claims(map[string]any{"files": append(f.covered(), f.covered()[0])}), "twice", nil},
		{"a file too many", claims(map[string]any{"files": append(f.covered(), map[string]any{"name": "deny.rego", "hash": hex.EncodeToString(make([]byte, 32)), "algorithm": "SHA-256"})}), `"deny.rego" is missing`, nil},
		{"a file too few", claims(map[string]any{"files": f.covered()[1:]}), "file .manifest not included", nil},
		{"a weak hash", firstFile(map[string]any{"algorithm": "MD5"}), `the hash "MD5"`, nil},
		{"a weak hash that was good once", firstFile(map[string]any{"algorithm": "SHA-1"}), `the hash "SHA-1"`, nil},
		{"no hash", firstFile(map[string]any{"algorithm": ""}), `the hash ""`, nil},
		{"an empty hash", firstFile(map[string]any{"hash": ""}), "digest mismatch", nil},
		{"half a hash", firstFile(map[string]any{"hash": "abc"}), "odd length", nil},
		{"a name with a slash in front", firstFile(map[string]any{"name": "/.manifest"}), "file .manifest not included", nil},

		{"another module", edited(func(files bundleFiles) { files["egress.rego"] = append(files["egress.rego"], '\n') }), "egress.rego: digest mismatch", nil},
		{"a module more", edited(func(files bundleFiles) { files["open.rego"] = []byte("package egress\nallow contains {}") }), "file open.rego not included", nil},
		{"a module fewer", edited(func(files bundleFiles) { delete(files, "egress.rego") }), `"egress.rego" is missing`, nil},
		{"a README more", edited(func(files bundleFiles) { files["README.md"] = nil }), "file README.md not included", nil},
		{"other tests", edited(func(files bundleFiles) { files["egress_test.rego"] = nil }), "digest mismatch", nil},
		{"other data", edited(func(files bundleFiles) { files[dataName] = []byte(`{"hosts":{"good":["evil.example"]}}`) }), "data.json: digest mismatch", nil},
		{"data of another type", edited(func(files bundleFiles) {
			files[dataName] = []byte(strings.Replace(string(files[dataName]), "12345678901234567890", "12345678901234567891", 1))
		}), "data.json: digest mismatch", nil},
		{"data with a key twice", edited(func(files bundleFiles) {
			files[dataName] = []byte(strings.Replace(string(files[dataName]), "{", `{"hosts":{"good":["evil.example"]},`, 1))
		}), "twice", nil},
		{"data in another file", edited(func(files bundleFiles) { files["data.yaml"] = files[dataName]; delete(files, dataName) }), "file data.yaml not included", nil},
		{"another manifest", edited(func(files bundleFiles) { files[manifestName] = []byte(`{"roots":[""]}`) }), ".manifest: digest mismatch", nil},
		{"no manifest", edited(func(files bundleFiles) { delete(files, manifestName) }), `".manifest" is missing`, nil},
		{"a second manifest", edited(func(files bundleFiles) { files["a/.manifest"] = files[manifestName] }), "file a/.manifest not included", nil},
		{"a patch", edited(func(files bundleFiles) {
			files["patch.json"] = []byte(`{"data":[{"op":"upsert","path":"/x","value":1}]}`)
		}), "file patch.json not included", nil},
		{"names changed round", edited(func(files bundleFiles) {
			files["egress.rego"], files["egress_test.rego"] = files["egress_test.rego"], files["egress.rego"]
		}), "digest mismatch", nil},
	} {
		b, err := Read(c.packed, &Key{PEM: f.public}, signingTime)
		switch {
		case c.want == "" && c.is == nil:
			if err != nil || !b.Signed {
				t.Errorf("%s: %v", c.what, err)
			}
		case err == nil, !strings.Contains(err.Error(), c.want), c.is != nil && !errors.Is(err, c.is):
			t.Errorf("%s: error %v, want %q, %v", c.what, err, c.want, c.is)
		case c.is == nil && (errors.Is(err, ErrNotSigned) || errors.Is(err, ErrWrongKey) || errors.Is(err, ErrExpired)):
			t.Errorf("%s: error %v says what is not so", c.what, err)
		}
	}
}

// TestBundleReadWithoutAKey has nothing be claimed that was not verified.
func TestBundleReadWithoutAKey(t *testing.T) {
	f := newForger(t)
	for what, packed := range map[string][]byte{
		"signed":              f.signed(es256, f.payload(map[string]any{"exp": 1, "keyid": "x"})),
		"signed with rubbish": f.with("rubbish"),
		"not signed":          f.pack(f.files),
	} {
		b, err := Read(packed, nil, signingTime)
		if err != nil || b.Signed || b.KeyID != "" || !b.Issued.IsZero() || !b.Expires.IsZero() || len(b.Sources) != 3 {
			t.Errorf("%s: %+v, %v", what, b, err)
		}
	}
}

func TestBundleScope(t *testing.T) {
	f := newForger(t)
	scoped := f.signed(es256, f.payload(map[string]any{"scope": "read"}))
	for scope, good := range map[string]bool{"read": true, "": false, "Read": false, "write": false} {
		if _, err := Read(scoped, &Key{PEM: f.public, Scope: scope}, signingTime); (err == nil) != good {
			t.Errorf("scope %q: %v", scope, err)
		}
	}
	if _, err := Read(f.signed(es256, f.payload(nil)), &Key{PEM: f.public, Scope: "read"}, signingTime); err == nil {
		t.Error("a signature without a scope is taken for one with")
	}
}

func TestBundleKeyID(t *testing.T) {
	f := newForger(t)
	for _, c := range []struct{ kid, keyID, want string }{{"a", "a", "a"}, {"a", "", "a"}, {"", "b", "b"}, {"", "", ""}} {
		header, claims := maps.Clone(es256), map[string]any{}
		if c.kid != "" {
			header["kid"] = c.kid
		}
		if c.keyID != "" {
			claims["keyid"] = c.keyID
		}
		b, err := Read(f.signed(header, f.payload(claims)), &Key{PEM: f.public}, signingTime)
		if err != nil || b.KeyID != c.want || !b.Issued.Equal(signingTime) || !b.Expires.IsZero() {
			t.Errorf("%q and %q: %+v, %v", c.kid, c.keyID, b, err)
		}
	}
}

func TestSignBundleSignsAgain(t *testing.T) {
	private, public := testKey(t, "Ed25519")
	later := signingTime.Add(24 * time.Hour)
	first, err := Sign(mustBuild(t, BuildOptions{}), SignOptions{KeyPEM: private, Now: signingTime, Valid: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	second, err := Sign(first, SignOptions{KeyPEM: private, Now: later})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read(second, &Key{PEM: public}, later)
	if err != nil || !b.Issued.Equal(later) || !b.Expires.IsZero() || len(b.KeyID) != 16 {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestSignBundleRefuses(t *testing.T) {
	private, public := testKey(t, "P-256")
	good := mustBuild(t, BuildOptions{})
	for _, c := range []struct {
		what   string
		packed []byte
		o      SignOptions
		want   string
	}{
		{"what is no bundle", []byte("x"), SignOptions{KeyPEM: private, Now: signingTime}, "gzipped tar file"},
		{"rules outside of the roots", tarball(t, tarFile(".manifest", `{"roots":["acme"]}`), tarFile("a.rego", "package egress")), SignOptions{KeyPEM: private, Now: signingTime}, "below a root"},
		{"with a public key", good, SignOptions{KeyPEM: public, Now: signingTime}, "PRIVATE KEY"},
		{"with no key", good, SignOptions{Now: signingTime}, "not a key in PEM"},
		{"with another algorithm", good, SignOptions{KeyPEM: private, Algorithm: "RS256", Now: signingTime}, "it is one for ES256"},
		{"with a secret", good, SignOptions{KeyPEM: private, Algorithm: "HS256", Now: signingTime}, "it is one for ES256"},
		{"for no time", good, SignOptions{KeyPEM: private, Now: signingTime, Valid: -time.Hour}, "good for a second"},
		{"for less than a second", good, SignOptions{KeyPEM: private, Now: signingTime, Valid: time.Millisecond}, "good for a second"},
		{"at no time", good, SignOptions{KeyPEM: private}, "good for a second"},
	} {
		if _, err := Sign(c.packed, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}
