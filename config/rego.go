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

// Limits of a Rego policy.
const (
	maxRegoBytes = 64 << 20
	maxRegoFiles = 10000
)

// IsRegoFile reports whether a file of that name in a folder belongs to a policy: a module, its tests, or
// data. The extension may have upper case, which is an error later, because somebody meant the file to
// decide.
func IsRegoFile(name string) bool {
	return slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, strings.ToLower(filepath.Ext(name))) && !strings.HasPrefix(name, ".")
}

// A regoReader reads the files of a Rego policy in order of their names. Folders include everything below
// except hidden files.
type regoReader struct {
	except  []string            // files to skip
	enter   func(folder string) // called before a folder is listed; may be nil
	sources []rego.Source
	bytes   int
}

// ReadRego reads the files and folders at paths. A policy file among them is an error, because it would
// count as data.
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

// all reads each path after resolve. A path without a policy file is an error.
func (r *regoReader) all(paths []string, resolve func(string) string) error {
	for _, p := range paths {
		before := len(r.sources)
		info, err := os.Stat(resolve(p))
		switch {
		case err != nil:
		case info.IsDir():
			err = r.folder(resolve(p))
		default:
			err = r.file(resolve(p))
		}
		if err == nil && len(r.sources) == before {
			err = fmt.Errorf("%s holds no file that ends in .rego, .json, .yaml or .yml", resolve(p))
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

// entry reads an entry of a folder. A link to a folder is an error: following it could loop, and skipping
// it could lose a rule that denies.
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

// RegoError adds context to an error without a position.
func RegoError(err error) error {
	if _, ok := errors.AsType[policy.FileError](err); ok {
		return err
	}
	return fmt.Errorf("rego: %w", err)
}
