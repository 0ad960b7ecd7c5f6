package config

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/rego/bundle"
)

// readBundle reads the bundle of a part: the file, the folder, or the last good fetched one. It contacts
// no server.
func (c *Config) readBundle(p *RegoPart, enter func(folder string)) error {
	s := &p.Source
	if enter != nil && s.Key != "" {
		enter(filepath.Dir(c.Relative(s.Key)))
	}
	if s.Fetched() {
		return c.readFetched(p)
	}
	b, err := c.LocalBundle(s, enter)
	if err != nil {
		return fmt.Errorf("%s: %w", p.At, err)
	}
	p.holds(b, c.Relative(s.Bundle))
	if !b.Expires.IsZero() {
		p.guard = &Lapse{Label: c.Relative(s.Bundle), At: b.Expires}
	}
	return nil
}

// LocalBundle reads a bundle that is a file or a folder.
func (c *Config) LocalBundle(s *file.RegoSource, enter func(folder string)) (*bundle.Bundle, error) {
	path := c.Relative(s.Bundle)
	if enter != nil {
		enter(filepath.Dir(path))
	}
	tarball, err := readTarball(path, enter)
	if err != nil {
		return nil, err
	}
	var key *bundle.Key
	if s.Key != "" {
		text, err := durable.Read(c.Relative(s.Key), MaxKeyBytes)
		if err != nil {
			return nil, fmt.Errorf("its key: %w", err)
		}
		key = &bundle.Key{PEM: text}
	}
	b, err := bundle.Read(tarball, key, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// holds sets the sources of p to those of b. Their names begin with from.
func (p *RegoPart) holds(b *bundle.Bundle, from string) {
	p.Sources, p.revision = nil, b.Revision
	for _, s := range b.Sources {
		p.Sources = append(p.Sources, rego.Source{Name: from + "/" + strings.TrimPrefix(s.Name, "/"), Text: s.Text})
	}
}

func (c *Config) readFetched(p *RegoPart) error {
	if c.unfetched {
		return c.readPins(p)
	}
	f, err := c.Feed(&p.Source)
	if err != nil {
		return fmt.Errorf("%s: %w", p.At, err)
	}
	b, err := f.Bundle()
	if err != nil {
		return fmt.Errorf("%s: bundle %s: %w", p.At, f.Source().Label(), err)
	}
	p.holds(b, f.Source().Label())
	p.guard = f.Guard()
	return nil
}

// readPins sets the sources of p to the operator's key and CA of a fetched bundle.
func (c *Config) readPins(p *RegoPart) error {
	s, err := c.bundleSource(&p.Source)
	p.Sources = []rego.Source{{Name: "key", Text: s.Key.PEM}, {Name: "ca", Text: s.CA}}
	return err
}

func (c *Config) bundleSource(s *file.RegoSource) (from bundle.Source, err error) {
	from = bundle.Source{URL: s.Bundle, Refresh: s.Refresh, MaxAge: s.MaxAge}
	if s.Key != "" {
		if from.Key.PEM, err = durable.Read(c.Relative(s.Key), MaxKeyBytes); err != nil {
			return from, fmt.Errorf("its key: %w", err)
		}
	}
	if s.CA != "" {
		if from.CA, err = durable.Read(c.Relative(s.CA), maxConfigBytes); err != nil {
			return from, fmt.Errorf("its ca: %w", err)
		}
	}
	if s.TokenFile != "" {
		from.TokenFile = c.Relative(s.TokenFile)
	}
	return from, nil
}

func readTarball(path string, enter func(folder string)) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return packFolder(path, enter)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is neither a file nor a folder", path)
	}
	return durable.Read(path, MaxBundleBytes)
}

// bundleNames are the hidden files of a bundle.
var bundleNames = map[string]bool{".manifest": true, ".signatures.json": true}

// IsBundleFile reports whether a file of that name may be a bundle, part of a bundle, or a key.
func IsBundleFile(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".gz", ".tgz", ".pem", ".pub":
		return true
	}
	return bundleNames[name]
}

// packFolder packs the bundle files of a folder.
func packFolder(folder string, enter func(folder string)) ([]byte, error) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	left := int64(maxRegoBytes)
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != folder && strings.HasPrefix(e.Name(), "."):
			return filepath.SkipDir
		case e.IsDir():
			if enter != nil {
				enter(path)
			}
			return nil
		case strings.HasPrefix(e.Name(), ".") && !bundleNames[e.Name()]:
			return nil
		}
		return packFile(w, folder, path, &left)
	})
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// packFile adds a file. A link to a folder is an error, because skipping it could lose a rule that denies.
func packFile(w *tar.Writer, folder, path string, left *int64) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a link to a folder; put that folder itself there", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", path)
	}
	text, err := durable.Read(path, *left)
	if err != nil {
		return err
	}
	*left -= int64(len(text))
	name, err := filepath.Rel(folder, path)
	if err != nil {
		return err
	}
	head := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(head); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// A Lapse is the expiry of a bundle file, as its signature states. As an evaluator it denies all requests
// after the expiry.
type Lapse struct {
	Label         string
	At            time.Time
	ReportedStale bool // the record of the expiry was written
}

// Evaluate denies all requests once the bundle has expired.
func (l *Lapse) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	if time.Now().Before(l.At) {
		return policy.Decision{Verdict: policy.Abstain}, nil
	}
	return policy.Decision{Class: policy.PolicyError, Rule: "bundle", Layer: policy.Organisation, Reason: "the policy's bundle is stale: " + l.Why()}, nil
}

// Why states the time of expiry.
func (l *Lapse) Why() string { return "it expired at " + l.At.UTC().Format(time.RFC3339) }

// Maximum sizes of a key and a bundle.
const (
	MaxKeyBytes    = 64 << 10
	MaxBundleBytes = 16 << 20
)
