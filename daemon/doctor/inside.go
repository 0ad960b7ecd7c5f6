package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/sandbox/rules"
)

// Inside are about what leads out of the container that this is. They are
// read from what the kernel shows; nothing is sent.
func Inside(getenv func(string) string) []Finding {
	p, err := rules.ReadPrivileges()
	if err != nil {
		return []Finding{{"container", err.Error(), "a container with /proc"}}
	}
	all := append([]Finding{insideCapabilities(p.Capabilities)}, socketFindings(append(hostpaths.HostSockets(nil), "/run/docker.sock", "/var/run/docker.sock"))...)
	return append(all, insideProcesses("/proc"), insideNetwork("/sys/class/net"), insideRoutes("/proc/net", getenv), insideExceptions(getenv), insideBundles(getenv))
}

// insideCapabilities is about those by which a container leaves what holds it, or poses as
// another (capabilities(7)).
func insideCapabilities(has uint64) Finding {
	for bit := range 64 {
		if has>>bit&1 == 0 {
			continue
		}
		if c := boundary.CapabilityOf(bit); c.Does != "" {
			return Finding{"capabilities", "it has or can get " + c.Name + ": " + c.Does, "--cap-drop " + c.Name + ", or cap_drop: [" + c.Name + "] in a compose file, and no --privileged"}
		}
	}
	return Finding{Check: "capabilities", Says: "none by which it leaves, or poses as another"}
}

// insideProcesses is about a PID namespace that is the host's: kthreadd is there alone.
func insideProcesses(proc string) Finding {
	name, err := os.ReadFile(filepath.Join(proc, "2", "comm"))
	if err == nil && strings.TrimSpace(string(name)) == "kthreadd" {
		return Finding{"processes", "it sees those of the host", "the container without --pid host"}
	}
	return Finding{Check: "processes", Says: "none of the host's are in sight"}
}

// insideNetwork is about a network that has bridges: that of a host.
func insideNetwork(interfaces string) Finding {
	bridges, _ := filepath.Glob(filepath.Join(interfaces, "*", "bridge")) // the pattern is sound
	if len(bridges) > 0 {
		return Finding{"network", "it has the bridge " + filepath.Base(filepath.Dir(bridges[0])) + ": this is the network of a host", "the container without --network host"}
	}
	return Finding{Check: "network", Says: "none of a host"}
}

// insideRoutes is about default routes. One that leads nowhere cannot be told from here from one
// that leads out.
func insideRoutes(dir string, getenv func(string) string) Finding {
	const check = "route"
	for _, name := range []string{"route", "ipv6_route"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Finding{check, err.Error(), "a container with /proc"}
		}
		for line := range strings.Lines(string(text)) {
			by := defaultRoute(name, strings.Fields(line))
			if by.IsValid() && !strings.Contains(getenv("HTTPS_PROXY"), by.String()) {
				return Finding{check, fmt.Sprintf("there is a default route by %s: if that leads out, it is past egressd", by), "outside, egressd doctor --container NAME, which tells; " + byInit}
			}
		}
	}
	return Finding{Check: check, Says: "none leads out"}
}

// defaultRoute is the gateway of a line of /proc/net/route or ipv6_route, where it is a default
// route that is up by way of one.
func defaultRoute(table string, f []string) (gateway netip.Addr) {
	text := ""
	switch {
	case table == "route" && len(f) > 7 && f[1] == "00000000" && f[7] == "00000000":
		text = f[2]
	case table == "ipv6_route" && len(f) > 9 && len(f[4]) == 32 && f[1] == "00" && f[9] != "lo" && strings.Trim(f[0], "0") == "" && strings.Trim(f[4], "0") != "":
		text = f[4]
	default:
		return gateway
	}
	if table == "ipv6_route" { // in the order of the network
		at, err := netip.ParseAddr(strings.Join([]string{text[:4], text[4:8], text[8:12], text[12:16], text[16:20], text[20:24], text[24:28], text[28:]}, ":"))
		if err == nil {
			return at
		}
		return gateway
	}
	at, err := kernelAddress(text + ":0")
	if err == nil {
		return at.Addr()
	}
	return gateway
}

// insideExceptions is about what the proxy variables leave out.
func insideExceptions(getenv func(string) string) Finding {
	through := getenv("HTTPS_PROXY")+getenv("https_proxy") != ""
	if !through {
		return Finding{"variables", "no proxy variable is set: what needs one finds no way", `eval "$(egressd env --listen ADDR)", with egressd's address`}
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		for _, one := range pastProxy(getenv(name)) {
			if strings.ContainsAny(one, ".*:") { // else a neighbour's name
				return Finding{"variables", name + " leads past egressd for " + one, "unset " + name}
			}
		}
	}
	return Finding{Check: "variables", Says: "they lead to " + cmp.Or(getenv("HTTPS_PROXY"), getenv("https_proxy"))}
}

func insideBundles(getenv func(string) string) Finding {
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT", "DENO_CERT"} {
		path := getenv(name)
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return Finding{"certificates", name + " names what is not there: " + path, "mount the bundle of egressd ca bundle there"}
		}
	}
	return Finding{Check: "certificates", Says: "what the variables name is there"}
}
