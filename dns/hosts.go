package dns

import (
	"bufio"
	"io"
	"net/netip"
	"strings"
)

// HostsPath is the hosts file of the machine.
const HostsPath = "/etc/hosts"

const hostsMost = 16 << 20 // bytes of a hosts file that are read

// A Host is one line of a hosts file.
type Host struct {
	Addr  netip.Addr // unmapped, without a zone
	Names []string   // as they stand there
	Line  string     // without its end
}

// ReadHosts reads a file in the form of hosts(5). A line without an address and a name has no Addr.
func ReadHosts(r io.Reader) (all []Host) {
	lines := bufio.NewScanner(io.LimitReader(r, hostsMost))
	for lines.Scan() {
		h := Host{Line: lines.Text()}
		text, _, _ := strings.Cut(h.Line, "#")
		if fields := strings.Fields(text); len(fields) > 1 {
			if addr, err := netip.ParseAddr(fields[0]); err == nil && addr.Zone() == "" {
				h.Addr, h.Names = addr.Unmap(), fields[1:]
			}
		}
		all = append(all, h)
	}
	return all
}

// HostAddrs returns the addresses of each name, in lower case and without a last dot.
func HostAddrs(all []Host) map[string][]netip.Addr {
	table := map[string][]netip.Addr{}
	for _, h := range all {
		for _, name := range h.Names {
			name = strings.TrimSuffix(strings.ToLower(name), ".")
			table[name] = append(table[name], h.Addr)
		}
	}
	return table
}
