package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// What a policy in Rego may be at most.
const (
	maxRegoBytes = 64 << 20
	maxRegoFiles = 10000
)

// IsRegoFile reports whether a file of that name in a folder belongs to a policy:
// a module, its tests, or data. One whose ending is not in lower case does as well,
// and is an error of the policy: somebody meant it to decide.
func IsRegoFile(name string) bool {
	return slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, strings.ToLower(filepath.Ext(name))) && !strings.HasPrefix(name, ".")
}

// A regoReader reads the files of a policy in Rego. Files are read in the order of
// their names, folders with all that is below them but hidden files.
type regoReader struct {
	except  []string            // files that are no part of it
	enter   func(folder string) // called before a folder is listed; nil for nothing
	sources []rego.Source
	bytes   int
}

// ReadRego reads the files and folders at paths, of which none is a policy file:
// it would be taken for data.
func ReadRego(paths []string) ([]rego.Source, error) {
	for _, p := range paths {
		if filepath.Base(p) == FileName {
			return nil, fmt.Errorf("%s is a policy file; give it with --config", p)
		}
	}
	var r regoReader
	err := r.all(paths, filepath.Clean)
	return r.sources, err
}

// all reads each path, where place says it is. A path at which there is no file of
// a policy is an error: somebody meant one to be there.
func (r *regoReader) all(paths []string, place func(string) string) error {
	for _, p := range paths {
		before := len(r.sources)
		info, err := os.Stat(place(p))
		switch {
		case err != nil:
		case info.IsDir():
			err = r.folder(place(p))
		default:
			err = r.file(place(p))
		}
		if err == nil && len(r.sources) == before {
			err = fmt.Errorf("%s holds no file that ends in .rego, .json, .yaml or .yml", place(p))
		}
		if err != nil {
			return fmt.Errorf("read rego: %w", err)
		}
	}
	return nil
}

func (r *regoReader) folder(path string) error {
	if r.enter != nil {
		r.enter(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := r.entry(filepath.Join(path, e.Name()), e); err != nil {
			return err
		}
	}
	return nil
}

// entry reads what stands in a folder. A link to a folder could lead around in
// circles, and passing over it could lose a rule that denies.
func (r *regoReader) entry(path string, e os.DirEntry) error {
	if e.IsDir() {
		return r.folder(path)
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a link to a folder; name that folder itself", path)
	case !IsRegoFile(e.Name()):
		return nil
	case err != nil:
		return err
	}
	return r.file(path)
}

func (r *regoReader) file(path string) error {
	if slices.Contains(r.except, path) {
		return nil
	}
	if len(r.sources) == maxRegoFiles {
		return fmt.Errorf("there are more than %d files", maxRegoFiles)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(maxRegoBytes-r.bytes)+1))
	if err != nil {
		return err
	}
	if r.bytes += len(text); r.bytes > maxRegoBytes {
		return fmt.Errorf("the files are larger than %d MiB together", maxRegoBytes>>20)
	}
	r.sources = append(r.sources, rego.Source{Name: path, Text: text})
	return nil
}

// RegoError says what it was that failed, where the error names no place.
func RegoError(err error) error {
	var problems policy.FileError
	if errors.As(err, &problems) {
		return err
	}
	return fmt.Errorf("rego: %w", err)
}
