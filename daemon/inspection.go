package daemon

import (
	"fmt"
	"os"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/proxy"
)

// collectorRoom is the size of a block that is never touched, and so takes no
// memory, but counts as live for the collector: a handshake leaves a hundred
// kilobytes behind, and in a heap of a few megabytes each twentieth connection
// would have it all collected, for a tenth of the CPU time. Names leave less, and
// come by the thousand.
const collectorRoom = 32 << 20

// giveRoom lets what was done leave something behind before all is collected.
func (d *Daemon) giveRoom() {
	if d.room == nil {
		d.room = make([]byte, collectorRoom)
	}
}

// inspection makes what the server inspects with, or nil where no rule asks
// for it. The authority is made on first use.
func (d *Daemon) inspection(c *config.Config) (*proxy.Inspection, error) {
	if !c.Inspects() {
		return nil, nil
	}
	d.giveRoom()
	dir, err := c.CADir()
	if err != nil {
		return nil, err
	}
	authority, err := authority.Open(dir, d.Talk)
	if err != nil {
		return nil, err
	}
	roots, err := extraRoots(c)
	if err != nil {
		return nil, err
	}
	pool, err := certs.Pool(roots...)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("roots of upstreams: %w", err), "correct tls.extra_roots in "+c.Path+", or install ca-certificates")
	}
	return &proxy.Inspection{Authority: authority, Roots: pool, Credential: d.keys.find, Redaction: d.keys.redaction}, nil
}

// extraRoots reads the authorities that upstreams may have beside the
// system's.
func extraRoots(c *config.Config) (all [][]byte, err error) {
	for _, path := range c.File.TLS.ExtraRoots {
		text, err := os.ReadFile(c.Relative(path))
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("tls.extra_roots: %w", err), "correct tls.extra_roots in "+c.Path)
		}
		all = append(all, text)
	}
	return all, nil
}
