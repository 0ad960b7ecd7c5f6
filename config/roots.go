package config

import (
	"fmt"
	"os"

	"github.com/egressd/egressd/internal/hint"
)

// ExtraRoots reads the authorities that upstreams may have beside the system's, file by file.
func (c *Config) ExtraRoots() (all [][]byte, err error) {
	for _, path := range c.File.TLS.ExtraRoots {
		text, err := os.ReadFile(c.Relative(path))
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("tls.extra_roots: %w", err), "correct tls.extra_roots in "+c.Path)
		}
		all = append(all, text)
	}
	return all, nil
}
