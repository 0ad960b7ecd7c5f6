package daemon

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"slices"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/proxy/inspect"
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
func (d *Daemon) inspection(c *config.Config) (*inspect.Inspection, error) {
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
	pool, err := upstreamRoots(c)
	if err != nil {
		return nil, err
	}
	return &inspect.Inspection{Authority: authority, Roots: pool, Secrets: exchange.Secrets{Apply: d.keys.apply, Redaction: d.keys.redaction}}, nil
}

// upstreamRoots are the authorities that upstreams are verified by.
func upstreamRoots(c *config.Config) (*x509.CertPool, error) {
	roots, err := c.ExtraRoots()
	if err != nil {
		return nil, err
	}
	pool, err := certs.Pool(roots...)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("roots of upstreams: %w", err), "correct tls.extra_roots in "+c.Path+", or install ca-certificates")
	}
	return pool, nil
}

// unusedRoots returns a warning where the environment names authorities for TLS that
// inspected upstreams are not verified by: only the system's and tls.extra_roots count.
func unusedRoots(c *config.Config, with *inspect.Inspection) string {
	path := os.Getenv("SSL_CERT_FILE")
	switch {
	case with == nil:
		return ""
	case path == "" && os.Getenv("SSL_CERT_DIR") != "":
		return "SSL_CERT_DIR does not count for upstreams; list files with authorities that they need under tls.extra_roots in " + c.Path
	case path == "" || slices.ContainsFunc(c.File.TLS.ExtraRoots, func(p string) bool { return sameFile(c.Relative(p), path) }):
		return ""
	}
	if system, _, err := certs.SystemRoots(); err == nil && sameFile(system, path) {
		return ""
	}
	text, _ := durable.Read(path, maxCAFile)
	if bytes.Contains(text, bytes.TrimSpace(with.Authority.PEM())) { // the bundle that egressd ca bundle writes
		return ""
	}
	return fmt.Sprintf("SSL_CERT_FILE does not count for upstreams; write \"tls: {extra_roots: [%s]}\" into %s if they need it", path, c.Path)
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}
