package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// CompileBoundary compiles the file of approve_within, for the sandboxes of c. It returns nil if c names none. The functions are
// those of [file.Environment]. c must be compiled, or have its listeners.
//
// Requests of sandboxes are granted within the boundary without a person, so it is an error if another user or a project of
// a sandbox could write the file, if a program under egressd run has changed it, or if it names Rego, which no
// comparison can look through.
func (c *Config) CompileBoundary(self func() []netip.Addr, listeners func() []netip.AddrPort) (*policy.Policy, error) {
	if c.File.ApproveWithin == "" {
		return nil, nil
	}
	path := c.Relative(c.File.ApproveWithin)
	p, err := c.compileBoundary(path, self, listeners)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("approve_within: %w", err), "correct "+path+", or take approve_within out of "+c.Path)
	}
	return p, nil
}

func (c *Config) compileBoundary(path string, self func() []netip.Addr, listeners func() []netip.AddrPort) (*policy.Policy, error) {
	whole, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(whole)
	if err != nil {
		return nil, err
	}
	const others = 0o022
	if info.Mode()&others != 0 {
		return nil, fmt.Errorf("other users may write %s", path)
	}
	for i := range c.File.Sandboxes {
		if tree := c.File.Sandboxes[i].Project; tree != "" && isBelow(whole, c.Relative(tree)) {
			return nil, fmt.Errorf("%s lies in the project of sandbox %s, which may write it", path, c.File.Sandboxes[i].Name)
		}
	}
	text, err := Read(whole)
	if err != nil {
		return nil, err
	}
	if err := CheckTreePolicy(whole, text); err != nil {
		return nil, err
	}
	b, err := parseConfig(whole, text, file.Parse)
	if err != nil {
		return nil, err
	}
	if len(b.File.Rego) > 0 || len(b.File.Sandboxes) > 0 {
		return nil, errors.New("a boundary has no rego and no sandboxes: it holds for each sandbox")
	}
	for i := range c.File.Sandboxes {
		b.File.Sandboxes = append(b.File.Sandboxes, file.SandboxRules{Name: c.File.Sandboxes[i].Name})
	}
	b.AdminListeners, b.UpstreamAt = c.AdminListeners, c.UpstreamAt
	p, err := b.CompileWith(self, listeners)
	if err != nil {
		return nil, err
	}
	return p.Enforced(), nil
}

// isBelow reports whether a path is a folder or lies in it, wherever links lead.
func isBelow(path, folder string) bool {
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
