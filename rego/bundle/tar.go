package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// Limits of a bundle.
const (
	maxPackedBytes   = 16 << 20
	maxUnpackedBytes = 64 << 20
	maxBundleFiles   = 10000
	maxNameBytes     = 512
)

// Files with a special meaning.
const (
	manifestName   = ".manifest"
	signaturesName = ".signatures.json"
	dataName       = "data.json"
)

// bundleFiles are the files of a bundle by name, which is a path without a leading slash.
type bundleFiles map[string][]byte

func (files bundleFiles) names() []string { return slices.Sorted(maps.Keys(files)) }

// unpack reads a gzipped tar file. Data after its end is an error.
func unpack(tarball []byte) (bundleFiles, error) {
	if len(tarball) > maxPackedBytes {
		return nil, fmt.Errorf("it is larger than %d MiB", maxPackedBytes>>20)
	}
	packed := bytes.NewReader(tarball) // a ByteReader, from which gzip reads no extra bytes
	z, err := gzip.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("it is no gzipped tar file: %w", err)
	}
	z.Multistream(false)
	stream := &io.LimitedReader{R: z, N: maxUnpackedBytes + 1}
	files, err := untar(stream)
	if err == nil {
		err = onlyZeros(stream)
	}
	switch {
	case stream.N <= 0:
		return nil, fmt.Errorf("it is larger than %d MiB when it is unpacked", maxUnpackedBytes>>20)
	case err != nil:
		return nil, err
	case packed.Len() > 0:
		return nil, errors.New("something follows the gzipped tar file")
	}
	return files, nil
}

func untar(stream io.Reader) (bundleFiles, error) {
	files := bundleFiles{}
	taken := map[string]string{} // file names by their caseless form
	t := tar.NewReader(stream)
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return files, nil
		case err != nil:
			return nil, fmt.Errorf("reading the tar file: %w", err)
		case n == maxBundleFiles:
			return nil, fmt.Errorf("it has more than %d files", maxBundleFiles)
		}
		if err := checkHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		name, err := bundleName(h.Name)
		if err != nil {
			return nil, err
		}
		if other, twice := taken[caseless(name)]; twice {
			return nil, fmt.Errorf("it has both %q and %q", other, name)
		}
		taken[caseless(name)] = name
		if files[name], err = io.ReadAll(t); err != nil {
			return nil, fmt.Errorf("reading %q: %w", name, err)
		}
	}
}

// checkHeader refuses entries other than files and folders, and headers that change their contents: holes,
// links and other sizes.
func checkHeader(h *tar.Header) error {
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir || h.Linkname != "" {
		return fmt.Errorf("%q is not a file", h.Name)
	}
	if h.Typeflag == tar.TypeDir && h.Size != 0 {
		return fmt.Errorf("%q is a folder with a text", h.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if !slices.Contains([]string{"path", "mtime", "atime", "ctime"}, key) {
			return fmt.Errorf("%q has the extended header %q; pack it without", h.Name, key)
		}
	}
	return nil
}

// onlyZeros returns an error if bytes other than padding follow the tar file.
func onlyZeros(r io.Reader) error {
	rest := make([]byte, 32<<10)
	for {
		n, err := r.Read(rest)
		if len(bytes.Trim(rest[:n], "\x00")) > 0 {
			return errors.New("something follows the end of the tar file")
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return fmt.Errorf("unpacking: %w", err)
		}
	}
}

// bundleName returns the canonical form of a name. OPA writes a leading slash, and tar a leading "./".
// Other variations are errors.
func bundleName(raw string) (string, error) {
	name, cut := strings.CutPrefix(raw, "/")
	if !cut {
		name = strings.TrimPrefix(raw, "./")
	}
	odd := func(c rune) bool { return c == '\\' || !unicode.IsPrint(c) }
	if !fs.ValidPath(name) || name == "." || len(name) > maxNameBytes || strings.ContainsFunc(name, odd) {
		return "", fmt.Errorf("the name %q is not that of a file in a bundle", clip(raw))
	}
	return name, nil
}

// caseless returns the same text for all spellings of a name in upper and lower case.
func caseless(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// A bundleKind is the purpose of a file in a bundle.
type bundleKind int

const (
	otherFile  bundleKind = iota // decides nothing, such as a README
	moduleFile                   // rules or tests
	dataFile                     // data at the path of its folder
	metaFile                     // manifest or signatures
)

// kindOf returns the purpose of a file by its name. A file that looks like policy but would be ignored is
// an error.
func kindOf(name string) (bundleKind, error) {
	base := caseless(path.Base(name))
	switch ext := path.Ext(name); {
	case name == manifestName, name == signaturesName:
		return metaFile, nil
	case strings.HasSuffix(base, manifestName), strings.HasSuffix(base, "signatures.json"):
		return 0, fmt.Errorf("%q looks like %s or %s, which lie at the root in lower case", name, manifestName, signaturesName)
	case strings.HasSuffix(base, ".manifest.pb"):
		return 0, fmt.Errorf("%q is a manifest in another format; build it with the manifest as JSON", name)
	case strings.HasPrefix(name, "."), strings.Contains(name, "/."):
		return 0, fmt.Errorf("%q is hidden; build the bundle without it", name)
	case base == "patch.json":
		return 0, errors.New("it changes another bundle, and could not be signed; build all of it")
	case base == "plan.json", base == "plan.pb", path.Ext(base) == ".wasm":
		return 0, fmt.Errorf("%q is a compiled policy; build the bundle with its modules alone (opa build -t rego)", name)
	case ext == ".rego":
		return moduleFile, nil
	case slices.Contains([]string{dataName, "data.yaml", "data.yml"}, path.Base(name)):
		return dataFile, nil
	case slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, path.Ext(base)):
		return 0, fmt.Errorf("%q would decide nothing: a bundle has modules, which end in .rego, and data in files data.json or data.yaml", name)
	}
	return otherFile, nil
}

// pack writes a gzipped tar file. Equal files give equal bytes.
func pack(files bundleFiles) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, name := range files.names() {
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))})
		if err == nil {
			_, err = t.Write(files[name])
		}
		if err != nil {
			return nil, fmt.Errorf("packing %q: %w", name, err)
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	return out.Bytes(), nil
}

// maxBundleValues is the maximum number of data values in a bundle.
const maxBundleValues = 1 << 20

// countValues returns an error if the data has more than maxBundleValues values.
//
// Trap: a signature covers the values of data, not its bytes, so data must be parsed before its signature
// is verified. A few dozen KiB of compressed brackets expand to millions of values with hundreds of bytes
// each.
func (files bundleFiles) countValues() error {
	left := maxBundleValues
	for _, name := range files.names() {
		if !bundle.IsStructuredDoc(name) {
			continue
		}
		if left -= maxValues(files[name]); left < 0 {
			return fmt.Errorf("%q and the data before it may hold more than %d values", name, maxBundleValues)
		}
	}
	return nil
}

// maxValues returns an upper limit of the values in a JSON or YAML text. The limit is close for JSON. For
// YAML it also counts characters inside strings. It needs no memory.
func maxValues(text []byte) (n int) {
	exact := json.Valid(text)
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case exact && c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '[', c == '{', c == ',': // precedes a value
			n++
		case exact:
		case c == '-', c == ':', c == '?': // can precede a value in YAML
			n++
		}
	}
	return n + 1
}
