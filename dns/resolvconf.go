package dns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
)

const (
	maxSystem = 3 // as many as the C library asks
	port      = 53
)

// ErrNoServers is the error of a file without a nameserver line, such as a machine without a network has.
var ErrNoServers = errors.New("no nameserver line")

// SystemUpstreams reads the name servers of a resolv.conf(5): the first three
// of its nameserver lines, with port 53. Everything else in the file (search,
// domain, options) is ignored. A file that names no server is [ErrNoServers], and one
// that names a server by anything but an address is another error. The file is read once and not watched.
func SystemUpstreams(resolvConf string) ([]netip.AddrPort, error) {
	file, err := os.Open(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("read system name servers: %w", err)
	}
	defer file.Close()
	upstreams, err := nameservers(file)
	if err != nil {
		return nil, fmt.Errorf("read system name servers: %s: %w", resolvConf, err)
	}
	return upstreams, nil
}

func nameservers(r io.Reader) ([]netip.AddrPort, error) {
	var upstreams []netip.AddrPort
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan() && len(upstreams) < maxSystem; n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: nameserver %q is not an address", n, fields[1])
		}
		upstreams = append(upstreams, netip.AddrPortFrom(addr.Unmap(), port))
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(upstreams) == 0 {
		return nil, ErrNoServers
	}
	return upstreams, nil
}
