package rego

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// What a bundle may be at most.
const (
	maxPackedBytes   = 16 << 20
	maxUnpackedBytes = 64 << 20
	maxBundleFiles   = 10000
	maxNameBytes     = 512
)

// The files of a bundle that mean something by their names.
const (
	manifestName   = ".manifest"
	signaturesName = ".signatures.json"
	dataName       = "data.json"
)

// bundleFiles are the files of a bundle by name: a path without a slash in front.
type bundleFiles map[string][]byte

func (files bundleFiles) names() []string { return slices.Sorted(maps.Keys(files)) }

// unpack reads a gzipped tar file, all of it: nothing follows what it reads.
func unpack(tarball []byte) (bundleFiles, error) {
	if len(tarball) > maxPackedBytes {
		return nil, fmt.Errorf("it is larger than %d MiB", maxPackedBytes>>20)
	}
	packed := bytes.NewReader(tarball) // of which gzip reads no byte more than it needs
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
	taken := map[string]string{} // names by what they are without regard to case
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
		if err := plain(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		name, err := bundleName(h.Name)
		if err != nil {
			return nil, err
		}
		if other, twice := taken[folded(name)]; twice {
			return nil, fmt.Errorf("it has both %q and %q", other, name)
		}
		taken[folded(name)] = name
		if files[name], err = io.ReadAll(t); err != nil {
			return nil, fmt.Errorf("reading %q: %w", name, err)
		}
	}
}

// plain refuses entries that are neither files nor folders, and whatever else a tar file may
// say about them that changes what they are: holes, links, other sizes.
func plain(h *tar.Header) error {
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

// onlyZeros reads what follows the end of a tar file.
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

// bundleName is the one spelling of a name: OPA writes a slash in front, and tar the
// folder that it stands in. Nothing else is repaired.
func bundleName(raw string) (string, error) {
	name, cut := strings.CutPrefix(raw, "/")
	if !cut {
		name = strings.TrimPrefix(raw, "./")
	}
	odd := func(c rune) bool { return c == '\\' || !unicode.IsPrint(c) }
	if !fs.ValidPath(name) || name == "." || len(name) > maxNameBytes || strings.ContainsFunc(name, odd) {
		return "", fmt.Errorf("the name %q is not that of a file in a bundle", clip(raw, maxNameBytes))
	}
	return name, nil
}

// folded is what all spellings of a name in upper and lower case have in common.
func folded(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// A bundleKind says what a file of a bundle is for.
type bundleKind int

const (
	aside    bundleKind = iota // it decides nothing, as a README
	aModule                    // rules, or tests
	someData                   // data at the path of its folder
	aboutIt                    // the manifest, and the signatures
)

// kindOf tells by the name what a file is for. What looks like a part of the policy
// and is not read as one is an error.
func kindOf(name string) (bundleKind, error) {
	base := folded(path.Base(name))
	switch ext := path.Ext(name); {
	case name == manifestName, name == signaturesName:
		return aboutIt, nil
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
		return aModule, nil
	case slices.Contains([]string{dataName, "data.yaml", "data.yml"}, path.Base(name)):
		return someData, nil
	case slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, path.Ext(base)):
		return 0, fmt.Errorf("%q would decide nothing: a bundle has modules, which end in .rego, and data in files data.json or data.yaml", name)
	}
	return aside, nil
}

// pack writes a gzipped tar file, the same for the same files.
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
