package run

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// proxyPort is where the policy of egressd init has its proxy. The jail is made before the policy is read, so that port is
// taken for every run, and released if the policy has no proxy there.
const proxyPort = 3128

// listened returns the ports of the jail's loopback whose connections arrive here.
func (r *runner) listened() []uint16 {
	if slices.Contains(r.given, proxyPort) || slices.ContainsFunc(r.inside, func(p publishedPort) bool { return p.inside == proxyPort }) {
		return r.given
	}
	return append(slices.Clone(r.given), proxyPort)
}

// listensLocally reports whether proxyPort of loopback is among addresses.
func listensLocally(addresses []string) bool {
	return slices.ContainsFunc(addresses, func(text string) bool {
		host, port, err := net.SplitHostPort(text)
		if err != nil || port != strconv.Itoa(proxyPort) {
			return false
		}
		addr, err := netip.ParseAddr(host)
		return err == nil && (addr.IsLoopback() || addr.IsUnspecified())
	})
}

// serveProxy answers at the port that the policy names as its proxy, as egressd serve does. Programs that were set up
// for that, such as Claude Code by egressd init claude, then work under run, too.
func (r *runner) serveProxy() {
	if slices.Contains(r.given, proxyPort) {
		return
	}
	for _, l := range r.sockets.HostPorts[proxyPort] {
		if !r.answersProxy || r.beside != nil {
			l.Close()
			continue
		}
		r.serving.Go(func() { r.complainOf(r.Server.Serve(l, jailListener)) })
	}
	delete(r.sockets.HostPorts, proxyPort)
}
