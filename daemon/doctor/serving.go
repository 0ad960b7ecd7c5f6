package doctor

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy/file"
)

// Serving are for the health check of a container: whether egressd serve runs here,
// holds its log, and listens where the policy says. Nothing is sent.
func Serving(c *config.Config) []Finding {
	const check = "serving"
	dir, err := c.AuditDir()
	if err != nil {
		return []Finding{{check, err.Error(), "egressd serve, which names its folder"}}
	}
	switch writing, err := audit.Writing(dir); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return []Finding{{check, err.Error(), "egressd doctor --serving as the user of egressd serve"}}
	case !writing:
		return []Finding{{check, "nobody writes the log " + dir, "egressd serve"}}
	}
	open, err := listening("/proc/net")
	if err != nil {
		return []Finding{{check, err.Error(), "a container with /proc"}}
	}
	var all []Finding
	for _, name := range tcpListeners(c) {
		if at, err := netip.ParseAddrPort(name); err == nil && at.Port() != 0 && !open[at] && !(at.Addr().IsUnspecified() && open[everywhere(at.Port())]) {
			all = append(all, Finding{check, "nobody listens on " + name, "egressd serve, in this network"})
		}
	}
	if len(all) == 0 {
		all = append(all, Finding{Check: check, Says: "egressd listens, and writes " + dir})
	}
	return all
}

// everywhere is what a listener on 0.0.0.0 is to the kernel where there is IPv6.
func everywhere(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Unspecified(), port) }

// tcpListeners are the addresses that the policy has egressd listen on over TCP.
func tcpListeners(c *config.Config) (all []string) {
	names := append(c.AllListeners(), c.File.Listen.DNS...)
	names = append(names, c.File.Notify.Answers, c.File.Metrics.Listen)
	for _, name := range append(names, c.File.Listen.Transparent...) {
		all = append(all, strings.TrimPrefix(strings.TrimPrefix(name, file.TLSListener), file.TProxyListener))
	}
	return all
}

// listening are the addresses in a network that somebody listens on (proc(5), /proc/net/tcp). dir is /proc/net, or that of
// a process.
func listening(dir string) (map[netip.AddrPort]bool, error) {
	all := make(map[netip.AddrPort]bool)
	for _, path := range []string{dir + "/tcp", dir + "/tcp6"} {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			const listens = "0A"
			if f := strings.Fields(line); len(f) > 3 && f[3] == listens {
				at, err := kernelAddress(f[1])
				if err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				all[at] = true
			}
		}
	}
	return all, nil
}

// kernelAddress reads an address as /proc/net shows it: words in the order of this machine.
func kernelAddress(text string) (at netip.AddrPort, err error) {
	address, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return at, err
	}
	raw, err := hex.DecodeString(address)
	if err != nil || len(raw)%4 != 0 {
		return at, fmt.Errorf("%q is no address", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return at, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(addr, uint16(number)), nil
}

// upstreamFindings are about the proxy that egressd connects through.
func upstreamFindings(c *config.Config) []Finding {
	p := c.File.Upstream.Proxy
	switch {
	case p == nil:
		return nil
	case p.ByName:
		return []Finding{{Check: "upstream", Says: p.GivesUp()}}
	}
	all := []Finding{{Check: "upstream", Says: "connections go through " + p.URL() + ", to addresses that were decided"}}
	if p.User != "" && !p.TLS {
		all = append(all, Finding{Check: "upstream", Says: "the password for " + p.URL() + " crosses the network in clear"})
	}
	return all
}
