package config

import (
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
)

// listFiles returns the files under allow_file and deny_file, with paths that do not depend on the working directory.
func (c *Config) listFiles() (all []policy.ListedHosts) {
	for i, path := range c.File.AllowFiles {
		all = append(all, policy.ListedHosts{ID: fmt.Sprintf("allow_file[%d]", i), File: c.Relative(path), Effect: policy.Allow})
	}
	for i, path := range c.File.DenyFiles {
		all = append(all, policy.ListedHosts{ID: fmt.Sprintf("deny_file[%d]", i), File: c.Relative(path), Effect: policy.Deny})
	}
	return all
}

func (c *Config) readLists() ([]policy.ListedHosts, error) {
	all := c.listFiles()
	for i := range all {
		var err error
		if all[i].Hosts, err = readList(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readList(l *policy.ListedHosts) (*policy.HostList, error) {
	f, err := durable.OpenPlain(l.File)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("%s: %w", l.ID, err), "make that file, with one pattern a line, or correct the path")
	}
	defer f.Close()
	hosts, err := policy.ReadHostList(l.File, f, l.Effect == policy.Allow)
	var wrong policy.FileError
	if err != nil && !errors.As(err, &wrong) {
		return nil, hint.Misused(fmt.Errorf("%s: %w", l.ID, err), "egressd policy check")
	}
	return hosts, err
}

// listStates adds the files to a digest, and calls enter with each file and its folder: a file may be written, and it
// may be replaced.
func (c *Config) listStates(h hash.Hash, enter func(string)) {
	files := c.listFiles()
	if c.File.ApproveWithin != "" {
		files = append(files, policy.ListedHosts{ID: "approve_within", File: c.Relative(c.File.ApproveWithin)})
	}
	for _, l := range files {
		enterNearest(enter, filepath.Dir(l.File))
		fmt.Fprintf(h, "%s\n", l.ID)
		f, err := durable.OpenPlain(l.File)
		if err != nil {
			fmt.Fprint(h, err)
			continue
		}
		if enter != nil {
			enter(l.File)
		}
		_, err = io.Copy(h, f)
		fmt.Fprint(h, err)
		f.Close()
	}
}

// ListDoubts returns the warnings about these files.
func (c *Config) ListDoubts() (all []policy.Problem) {
	if len(c.HostLists) > 0 {
		all = c.File.ListDoubts(c.HostLists)
	}
	for i := range c.HostLists {
		for _, p := range c.HostLists[i].Hosts.Doubts() {
			p.Message = c.HostLists[i].ID + ": " + p.Message
			all = append(all, p)
		}
	}
	return all
}

// ListedAt returns the file with a line whose rule is named, or nil.
func (c *Config) ListedAt(rule string) *policy.ListedHosts {
	for i := range c.HostLists {
		if c.HostLists[i].ID == policy.FileOfRule(rule) {
			return &c.HostLists[i]
		}
	}
	return nil
}
