package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/rego"
)

// writeLibrary writes what other Rego tools need to read a policy.
func writeLibrary(stderr io.Writer, configFile, dir string, paths []string) error {
	sources, err := librarySources(configFile, paths)
	if err != nil {
		return err
	}
	files, err := rego.Plain(sources)
	if err != nil {
		return hint.Misused(config.RegoError(err), "correct that, then egressd policy build --library DIR")
	}
	if err := putLibrary(dir, files); err != nil {
		return hint.Failed(fmt.Errorf("write the library: %w", err), "egressd policy build --library another folder")
	}
	_, err = fmt.Fprintf(stderr, "egressd: %d files in %s; try: opa test policy/ %s\n", len(files), printable.Text(dir), shell.Word(dir))
	return err
}

// librarySources reads the files and folders at paths; with none, what the policy file
// names, where there is one.
func librarySources(configFile string, paths []string) ([]rego.Source, error) {
	if len(paths) > 0 {
		sources, err := config.ReadRego(paths)
		if err != nil {
			return nil, hint.Misused(err, "egressd policy build --library DIR FILE, or a folder with .rego files")
		}
		return sources, nil
	}
	c, err := config.Load(configFile)
	if err != nil {
		return nil, hint.Misused(err, "egressd policy build --library DIR PATH, with files or folders of Rego")
	}
	parts, err := c.RegoParts(nil)
	if err != nil {
		return nil, hint.Misused(err, "correct rego in "+c.Path)
	}
	var sources []rego.Source
	for _, p := range parts {
		sources = append(sources, p.Sources...)
	}
	return sources, nil
}

// putLibrary writes the files into a folder that is new, empty, or holds nothing but
// what this command has written before.
func putLibrary(dir string, files map[string][]byte) error {
	old, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range old {
		_, again := files[e.Name()]
		named, _ := filepath.Match("short_*.rego", e.Name())
		if !again && !named || !e.Type().IsRegular() {
			return fmt.Errorf("%s holds %s, which is none of it", dir, e.Name())
		}
	}
	for _, e := range old {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
