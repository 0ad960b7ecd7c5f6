package run

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/dns"
)

// ownHosts returns the hosts file that the program sees, from the machine's own. Names of other machines are left out: the
// program asks egressd for them, so that it decides by the name, and it has their addresses from the machine's file. The
// machine's name is one of the sandbox's loopback. With counts false, egressd does not go by that file, and the names stay. It
// returns nil if the file can stay as it is.
func ownHosts(all []dns.Host, machine string, counts bool) []byte {
	var text strings.Builder
	names := []string{machine}
	missing := map[bool]bool{false: true, true: true} // by whether the address is IPv6
	changed := false
	for _, h := range all {
		own := slices.ContainsFunc(h.Names, func(name string) bool { return strings.EqualFold(name, machine) })
		if h.Addr.IsValid() && !h.Addr.IsLoopback() && !h.Addr.IsUnspecified() && h.Addr != netip.IPv6LinkLocalAllNodes() && h.Addr != netip.IPv6LinkLocalAllRouters() && !h.Addr.IsMulticast() {
			if own {
				names = h.Names
			}
			if own || counts {
				changed = true
				continue
			}
		}
		if own {
			missing[h.Addr.Is6()] = false
		}
		text.WriteString(h.Line + "\n")
	}
	if machine != "" && missing[false] {
		changed = true
		text.WriteString("127.0.1.1 " + strings.Join(names, " ") + "\n")
	}
	if machine != "" && missing[true] {
		changed = true
		text.WriteString("::1 " + strings.Join(names, " ") + "\n")
	}
	if !changed {
		return nil
	}
	return []byte(text.String())
}

// coverHosts has the program see ownHosts.
func coverHosts(covered map[string][]byte) {
	f, err := os.Open(dns.HostsPath)
	if err != nil {
		return // where the program finds no file either
	}
	defer f.Close()
	machine, _ := os.Hostname()
	if text := ownHosts(dns.ReadHosts(f), machine, !hostpaths.MayChange(dns.HostsPath)); text != nil {
		covered[dns.HostsPath] = text
	}
}

// isIgnoredHost reports whether the hosts file at path has a name, and this user may write that file, so that it does not count.
func isIgnoredHost(path, name string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return hostpaths.MayChange(path) && len(dns.HostAddrs(dns.ReadHosts(f))[name]) > 0
}
