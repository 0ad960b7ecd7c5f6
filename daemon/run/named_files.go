package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
)

// A namedFile is a file that the policy names, beside its Rego.
type namedFile struct {
	key, path string
	secret    bool // the program must not read it
	replaced  bool // egressd reads it again, since somebody outside replaces it
}

// namedFiles are those that egressd reads, and does not write but for refresh tokens.
func namedFiles(c *config.Config) (all []namedFile) {
	add := func(key, path string, secret, replaced bool) {
		if path != "" {
			all = append(all, namedFile{key, c.Relative(path), secret, replaced})
		}
	}
	const secret = true
	add("listen.client_ca", c.File.Listen.ClientCA, !secret, false)
	for i, path := range c.File.TLS.ExtraRoots {
		add(fmt.Sprintf("tls.extra_roots[%d]", i), path, !secret, false)
	}
	for i, path := range c.File.AllowFiles {
		add(fmt.Sprintf("allow_file[%d]", i), path, !secret, false)
	}
	for i, path := range c.File.DenyFiles {
		add(fmt.Sprintf("deny_file[%d]", i), path, !secret, false)
	}
	add("approve_within", c.File.ApproveWithin, !secret, false)
	add("notify.cert_file", c.File.Notify.CertFile, !secret, false)
	add("notify.key_file", c.File.Notify.KeyFile, secret, false)
	add("metrics.cert_file", c.File.Metrics.CertFile, !secret, false)
	add("metrics.key_file", c.File.Metrics.KeyFile, secret, false)
	add("metrics.token_file", c.File.Metrics.TokenFile, secret, false)
	add("metrics.client_ca", c.File.Metrics.ClientCA, !secret, false)
	for i, to := range c.File.Notify.To {
		add(fmt.Sprintf("notify.to[%d].url_file", i), to.URLFile, secret, false)
		add(fmt.Sprintf("notify.to[%d].headers_file", i), to.HeadersFile, secret, false)
		add(fmt.Sprintf("notify.to[%d].ca_file", i), to.CAFile, !secret, false)
	}
	for i, one := range c.File.Canaries {
		add(fmt.Sprintf("canaries[%d].file", i), one.File, secret, false)
	}
	for _, s := range c.File.Sandboxes {
		add("token_file of sandbox "+s.Name, s.TokenFile, secret, false)
	}
	for i, s := range c.File.Audit.Sinks {
		add(fmt.Sprintf("audit.sinks[%d].headers_file", i), s.HeadersFile, secret, false)
		add(fmt.Sprintf("audit.sinks[%d].ca_file", i), s.CAFile, !secret, false)
	}
	if p := c.File.Upstream.Proxy; p != nil {
		add("upstream.proxy.password_file", p.PasswordFile, secret, false)
	}
	for _, i := range c.File.Injections() {
		add("inject.file of rule "+i.Rule, i.Inject.File, secret, i.Inject.Refresh > 0)
	}
	for i := range c.File.Credentials {
		spec := &c.File.Credentials[i].Spec
		for _, part := range spec.From.Parts() {
			rewritten := spec.From.OAuth != nil && part.File == spec.From.OAuth.RefreshToken
			add("from.file of credential "+spec.Name, part.File, secret, spec.From.Refresh > 0 || rewritten)
		}
	}
	return all
}

// hideNamedFiles hides the secret ones. It returns an error if a file is missing that the
// program could make: a mount needs a file that exists.
func (r *runner) hideNamedFiles(c *config.Config) error {
	for _, f := range namedFiles(c) {
		if _, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) && r.canMake(f.path) {
			return hint.Misused(fmt.Errorf("%s: %s is not there, and the program could make it", f.key, f.path), "make that file, or correct "+c.Path)
		}
		switch {
		case f.replaced:
			if err := r.hideReplaced(f); err != nil {
				return err
			}
		case f.secret:
			r.hidden = append(r.hidden, f.path)
		}
	}
	return nil
}

// hideReplaced hides the folder of a file: once somebody outside renames another file to its
// path, the kernel ends the mount that hides the file.
func (r *runner) hideReplaced(f namedFile) error {
	for _, folder := range slices.Compact([]string{filepath.Dir(f.path), filepath.Dir(hostpaths.Real(f.path))}) {
		if holdsOthers(folder) {
			return hint.Misused(fmt.Errorf("%s, with refresh: the program could read what replaces %s, since it needs the folder %s", f.key, f.path, folder),
				"move that file into a folder of its own, or leave refresh out")
		}
		r.hidden = append(r.hidden, folder)
	}
	return nil
}

// canMake reports whether the program could make a file at path.
func (r *runner) canMake(path string) bool {
	folder := filepath.Dir(path)
	for _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist); _, err = os.Stat(folder) {
		folder = filepath.Dir(folder)
	}
	folder = hostpaths.Real(folder)
	return hostpaths.MayTakeWrite(folder) && (r.apart == nil || r.changeable(folder))
}

// linkedFrom are the symbolic links to files in a folder of Rego: these are read like others.
func linkedFrom(folder string) (links []string) {
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error { // reading the policy says what is wrong
		switch {
		case err != nil:
			return nil
		case e.IsDir() && path != folder && strings.HasPrefix(e.Name(), "."):
			return filepath.SkipDir
		case e.Type() == fs.ModeSymlink && isFile(path):
			links = append(links, path)
		}
		return nil
	})
	return links
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
