package bundle

import (
	"archive/tar"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego"
	"strings"
	"testing"
	"time"
)

// An entry is one of a tar file that a test writes.
type tarEntry struct {
	tar.Header
	text string
}

func tarFile(name, text string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600}, text}
}

// tarOf writes a tar file, with or without the zeros at its end.
func tarOf(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		e.Size = int64(len(e.text))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// bombed packs a text and more than 64 MiB of zeros behind it, of which it compresses one.
func bombed(t testing.TB, text []byte) []byte {
	t.Helper()
	out := bytes.NewBuffer([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}) // RFC 1952, section 2.3
	w, err := flate.NewWriter(out, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(text)
	err = errors.Join(err, w.Flush())
	begin := out.Len()
	_, more := w.Write(make([]byte, 1<<20))
	if err = errors.Join(err, more, w.Flush()); err != nil {
		t.Fatal(err)
	}
	zeros := out.Bytes()[begin:]
	return append(bytes.Clone(out.Bytes()), bytes.Repeat(zeros, maxUnpackedBytes>>20)...)
}

func tarball(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	return gzipped(t, tarOf(t, entries...))
}

// retyped gives the first entry of a tar file another type and size.
func retyped(file []byte, kind byte, size int) []byte {
	file = bytes.Clone(file)
	file[156] = kind
	copy(file[124:136], fmt.Sprintf("%011o\x00", size))
	copy(file[148:156], "        ")
	sum := 0
	for _, c := range file[:512] {
		sum += int(c)
	}
	copy(file[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return file
}

// extended is a tar file with one file, x.rego, before which stands an extended header.
func extended(t *testing.T, records map[string]string) []byte {
	var text strings.Builder
	for key, value := range records {
		n := len(key) + len(value) + 3
		n += len(fmt.Sprint(n + len(fmt.Sprint(n))))
		fmt.Fprintf(&text, "%d %s=%s\n", n, key, value)
	}
	one := tarOf(t, tarFile("pax", text.String()))
	return append(retyped(one[:len(one)-1024], 'x', text.Len()), tarOf(t, tarFile("x.rego", "package egress"))...)
}

func TestBundleIsOneTarFileOfFiles(t *testing.T) {
	rule := tarFile("egress.rego", string(bundled[0].Text))
	good := tarball(t, rule)
	plainTar := tarOf(t, rule)
	many := make([]tarEntry, maxBundleFiles+1)
	for i := range many {
		many[i] = tarFile(fmt.Sprintf("%d.txt", i), "")
	}
	typed := func(kind byte, link string) []byte {
		return tarball(t, rule, tarEntry{tar.Header{Name: "b.rego", Typeflag: kind, Linkname: link}, ""})
	}
	for _, c := range []struct {
		what   string
		packed []byte
		want   string // in the error; "": read
	}{
		{"as it should be", good, ""},
		{"with a folder and a README", tarball(t, tarEntry{tar.Header{Name: "./", Typeflag: tar.TypeDir}, ""}, tarFile("./README.md", "hello"), tarFile("./sub/egress.rego", rule.text)), ""},
		{"with a slash in front, as OPA writes", tarball(t, tarFile("/egress.rego", rule.text)), ""},
		{"with times", tarball(t, tarEntry{tar.Header{Name: "egress.rego", Typeflag: tar.TypeReg, Format: tar.FormatPAX, AccessTime: time.Unix(1, 1), ModTime: time.Unix(1, 1)}, rule.text}), ""},
		{"with a long name", tarball(t, tarFile(strings.Repeat("long/", 60)+"ä.rego", rule.text)), ""},
		{"with padding", gzipped(t, append(bytes.Clone(plainTar), make([]byte, 8192)...)), ""},

		{"empty", nil, "it is no gzipped tar file"},
		{"a web page", []byte("<!doctype html><p>It works!"), "it is no gzipped tar file"},
		{"a tar file that is not packed", plainTar, "it is no gzipped tar file"},
		{"half of it", good[:len(good)/2], "unexpected EOF"},
		{"without its checksum", good[:len(good)-8], "unexpected EOF"},
		{"something behind it", append(bytes.Clone(good), 0), "something follows the gzipped tar file"},
		{"a second member", append(bytes.Clone(good), good...), "something follows the gzipped tar file"},
		{"a second tar file inside", gzipped(t, append(bytes.Clone(plainTar), plainTar...)), "something follows the end of the tar file"},
		{"half of a tar file", gzipped(t, plainTar[:600]), "unexpected EOF"},
		{"rubbish in gzip", gzipped(t, bytes.Repeat([]byte("rubbish "), 200)), "reading the tar file"},
		{"large", make([]byte, maxPackedBytes+1), "it is larger than 16 MiB"},
		{"a bomb in a file", bombed(t, retyped(tarOf(t, tarFile("a.txt", ""))[:512], '0', maxUnpackedBytes)), "it is larger than 64 MiB when it is unpacked"},
		{"a bomb behind the end", bombed(t, plainTar), "it is larger than 64 MiB when it is unpacked"},
		{"many files", tarball(t, many...), "it has more than 10000 files"},
		{"a patch", tarball(t, rule, tarFile("patch.json", "{}")), "it changes another bundle"},
		{"nothing in it", tarball(t), "it holds neither rules nor data"},
		{"nothing that decides in it", tarball(t, tarFile("README.md", "hello")), "it holds neither rules nor data"},

		{"the same file twice", tarball(t, rule, rule), `it has both "egress.rego" and "egress.rego"`},
		{"the same file with a slash", tarball(t, rule, tarFile("/egress.rego", "package egress")), "it has both"},
		{"the same file with a dot", tarball(t, rule, tarFile("./egress.rego", "package egress")), "it has both"},
		{"the same file in another case", tarball(t, rule, tarFile("Egress.rego", "package egress")), "it has both"},
		{"the same file with a letter that folds", tarball(t, tarFile("ks.rego", rule.text), tarFile("\u212aſ.rego", rule.text)), "it has both"},

		{"a symbolic link", typed(tar.TypeSymlink, "egress.rego"), `"b.rego" is not a file`},
		{"a hard link", typed(tar.TypeLink, "egress.rego"), `"b.rego" is not a file`},
		{"a device", typed(tar.TypeChar, ""), `"b.rego" is not a file`},
		{"a pipe", typed(tar.TypeFifo, ""), `"b.rego" is not a file`},
		{"a file that says where it links to", typed(tar.TypeReg, "egress.rego"), `"b.rego" is not a file`},
		{"a contiguous file", gzipped(t, retyped(plainTar, '7', len(rule.text))), `"egress.rego" is not a file`},
		{"an old file with holes", gzipped(t, retyped(plainTar, 'S', len(rule.text))), "tar"},
		{"headers for all", tarball(t, tarEntry{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "x.rego"}}, ""}, rule), "is not a file"},
		{"a folder with a text", gzipped(t, retyped(plainTar, '5', len(rule.text))), "is a folder with a text"},

		{"another name", gzipped(t, extended(t, map[string]string{"path": "../x.rego"})), `the name "../x.rego"`},
		{"another size", gzipped(t, extended(t, map[string]string{"size": "14"})), `has the extended header "size"`},
		{"holes", gzipped(t, extended(t, map[string]string{"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": "99999999999", "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,14"})), "extended header"},
		{"attributes", gzipped(t, extended(t, map[string]string{"SCHILY.xattr.user.x": "y"})), "extended header"},
		{"another character set", gzipped(t, extended(t, map[string]string{"hdrcharset": "BINARY"})), "extended header"},
	} {
		_, err := Read(c.packed, nil, signingTime)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}

func TestBundleNames(t *testing.T) {
	for _, name := range []string{
		"..", "../egress.rego", "a/../egress.rego", "/../egress.rego", "//egress.rego", "/./egress.rego", "././egress.rego", "a//egress.rego",
		"./", ".", "/", "a\\egress.rego", "..\\egress.rego", "a/./egress.rego", "egress.rego\n", "a\x01.rego", "a\u202egress.rego", "\xff.rego",
		strings.Repeat("a", maxNameBytes) + ".rego",
	} {
		if got, err := bundleName(name); err == nil {
			t.Errorf("%q is taken as %q", name, got)
		}
	}
	for raw, want := range map[string]string{"a.rego": "a.rego", "/a.rego": "a.rego", "./a.rego": "a.rego", "b/c/a b.rego": "b/c/a b.rego", "ä.rego": "ä.rego"} {
		if got, err := bundleName(raw); err != nil || got != want {
			t.Errorf("%q: %q, %v", raw, got, err)
		}
	}
}

// TestBundleKinds has every file that looks like a part of the policy be one or be refused.
func TestBundleKinds(t *testing.T) {
	refused := bundleKind(-1)
	for name, want := range map[string]bundleKind{
		".manifest": metaFile, ".signatures.json": metaFile,
		"a.rego": moduleFile, "a/b_test.rego": moduleFile, "data.rego": moduleFile, "Data.rego": moduleFile,
		"data.json": dataFile, "a/b/data.json": dataFile, "data.yaml": dataFile, "a/data.yml": dataFile,
		"README.md": otherFile, "LICENSE": otherFile, "a/b.txt": otherFile, "rego": otherFile, "manifest": otherFile,

		".Manifest": refused, "a/.manifest": refused, "a.manifest": refused, ".manifest.pb": refused, "a.manifest.pb": refused, "a/.MANIFEST.PB": refused,
		".ſignatures.json": refused, "a/.signatures.json": refused, ".Signatures.json": refused, "signatures.json": refused, "a/x.signatures.json": refused,
		".hidden.rego": refused, "a/.b/c.rego": refused, ".git": refused, "..rego": refused, ".manifest ": refused,
		"patch.json": refused, "a/Patch.json": refused, "plan.json": refused, "plan.pb": refused, "policy.wasm": refused, "a/B.WASM": refused,
		"hosts.json": refused, "data2.yaml": refused, "Data.json": refused, "data.JSON": refused, "a.REGO": refused, "a/x.Yml": refused,
	} {
		got, err := kindOf(name)
		if err != nil {
			got = refused
		}
		if got != want {
			t.Errorf("%q: kind %d, %v; want %d", name, got, err, want)
		}
	}
}

// TestBundleBuiltTwiceIsTheSame also has the order of the files not matter.
func TestBundleBuiltTwiceIsTheSame(t *testing.T) {
	first := mustBuild(t, BuildOptions{Revision: "1"})
	turned, err := Build([]rego.Source{bundled[2], bundled[1], bundled[0]}, BuildOptions{Revision: "1"})
	if err != nil || !bytes.Equal(first, turned) {
		t.Errorf("another order gives another bundle, %v", err)
	}
	if bytes.Equal(first, mustBuild(t, BuildOptions{Revision: "2"})) {
		t.Error("another revision gives the same bundle")
	}
}

func TestBuildBundleRefusesWhatItCouldNotRead(t *testing.T) {
	module := string(bundled[0].Text)
	for _, c := range []struct {
		what    string
		sources []rego.Source
		roots   []string
		want    string
	}{
		{"nothing", nil, nil, "it holds neither rules nor data"},
		{"a name that leads out", []rego.Source{{Name: "../egress.rego", Text: []byte(module)}}, nil, `the name "../egress.rego"`},
		{"an absolute name", []rego.Source{{Name: "/etc/egress.rego", Text: []byte(module)}}, nil, `the name "/etc/egress.rego"`},
		{"names that differ in case", []rego.Source{{Name: "a.rego", Text: []byte(module)}, {Name: "A.rego", Text: []byte(module)}}, nil, "it has both"},
		{"a hidden file", []rego.Source{{Name: ".egress.rego", Text: []byte(module)}}, nil, "is hidden"},
		{"another kind of file", []rego.Source{{Name: "egress.wasm", Text: []byte(module)}}, nil, "its name ends neither in"},
		{"a module that is none", []rego.Source{{Name: "egress.rego", Text: []byte("package")}}, nil, "egress.rego:1:"},
		{"a package outside of the roots", bundled, []string{"hosts", "egress_test"}, "package egress is not below a root of the bundle"},
		{"data outside of the roots", bundled, []string{"egress", "egress_test", "hosts/good"}, "data.hosts.weight is not below a root of the bundle"},
		{"roots within another", bundled, []string{"egress", "egress_test", "hosts", "hosts/good"}, `the root "hosts/good" lies in another one`},
		{"a key in two files", append(bundled[:2:2], bundled[2], rego.Source{Name: "more.json", Text: []byte(`{"hosts": {}}`)}), nil, "data.hosts is in another file too"},
	} {
		if _, err := Build(c.sources, BuildOptions{Roots: c.roots}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}
