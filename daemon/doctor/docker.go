package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/sidecar"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
)

// A containerLook is what Docker's engine says of a container, as far as it matters for what
// holds it.
type containerLook struct {
	Engine    string // version
	Container dockerContainer
	Networks  []dockerNetwork

	settings  []boundary.Breach              // that the table of package boundary refuses
	strangers []stranger                     // in its networks
	serves    bool                           // egressd serves its loopback
	rules     string                         // of the table of sidecar.HostRules, as nft prints it
	addresses func(string) ([]string, error) // of an interface of this host
}

type dockerContainer struct {
	ID         string `json:"Id"`
	Name       string
	HostConfig struct {
		NetworkMode string
		DNS         []string
	}
	Config          struct{ Env []string }
	State           struct{ Pid int }
	Mounts          []struct{ Source, Destination string }
	NetworkSettings struct {
		Networks map[string]struct{ NetworkID, GlobalIPv6Address string }
	}
}

type dockerNetwork struct {
	ID, Name, Driver     string
	Internal, EnableIPv6 bool
	Options              map[string]string
	IPAM                 struct {
		Config []struct{ Subnet netip.Prefix }
	}
	Containers map[string]struct{ Name, IPv4Address string } // by ID
}

// PolicyOf returns the folder of the policy that holds a container of egressd init docker or egressd init compose, or
// "". egressd's own container in its network names it.
func PolicyOf(socket, name string) string {
	var held dockerContainer
	if !sandbox.PlainName(name) || containers.Ask(socket, "/containers/"+name+"/json", &held) != nil {
		return ""
	}
	for _, in := range held.NetworkSettings.Networks {
		var network dockerNetwork
		if in.NetworkID == "" || containers.Ask(socket, "/networks/"+in.NetworkID, &network) != nil {
			continue
		}
		var own struct {
			Config struct{ Labels map[string]string }
		}
		if id := network.egressd(); id != "" && containers.Ask(socket, "/containers/"+id+"/json", &own) == nil && own.Config.Labels[sidecar.Label] != "" {
			return own.Config.Labels[sidecar.Label]
		}
	}
	return ""
}

// Container are about a running container, as it is seen from outside.
func Container(socket, name string, cfg *config.Config) ([]Finding, error) {
	if !sandbox.PlainName(name) {
		return nil, fmt.Errorf("%q is no name of a container", name)
	}
	var is struct{ Version string }
	look := containerLook{addresses: interfaceAddresses}
	if err := containers.Ask(socket, "/version", &is); err != nil {
		return nil, err
	}
	look.Engine = is.Version
	s, err := containers.Inspect(context.Background(), socket, name)
	if err != nil {
		return nil, err
	}
	if err := s.Container.Into(&look.Container); err != nil {
		return nil, err
	}
	if err := look.askNetworks(socket); err != nil {
		return nil, err
	}
	m := hostpaths.Machine("", socket, cfg)
	s.On(m)
	m.Networks = look.closed()
	look.settings = boundary.Judge(containers.AsMounted(s.Container, look.Container.State.Pid, m.Doors), m)
	if look.strangers, err = look.others(socket, cfg); err != nil {
		return nil, err
	}
	look.serves = servesLoopback(look.Container.State.Pid)
	if out, err := exec.Command("nft", "list", "table", "inet", "egressd-docker").Output(); err == nil {
		look.rules = string(out)
	}
	return look.findings(cfg), nil
}

// askNetworks asks the engine for the networks that the container is in.
func (l *containerLook) askNetworks(socket string) error {
	for _, n := range l.Container.NetworkSettings.Networks {
		var network dockerNetwork
		if n.NetworkID == "" {
			continue // not started yet, or taken away
		}
		if err := containers.Ask(socket, "/networks/"+n.NetworkID, &network); err != nil {
			return err
		}
		l.Networks = append(l.Networks, network)
	}
	slices.SortFunc(l.Networks, func(a, b dockerNetwork) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func interfaceAddresses(name string) (all []string, err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	for _, a := range addrs {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLinkLocalUnicast() {
			all = append(all, ip.String())
		}
	}
	return all, err
}

// findings has each trap looked at; cfg is the policy in front of the container, or nil. A container without a network
// has no traps of one.
func (l *containerLook) findings(cfg *config.Config) (all []Finding) {
	if l.alone() {
		return append(append([]Finding{l.attached()}, l.settingFindings()...), l.variableFindings(cfg)...)
	}
	for _, trap := range []func(*containerLook) Finding{
		(*containerLook).hostNetwork, (*containerLook).route, (*containerLook).ipv6, (*containerLook).names, (*containerLook).host, (*containerLook).exceptions,
		(*containerLook).neighbours,
	} {
		all = append(all, trap(l))
	}
	return append(append(all, l.settingFindings()...), l.variableFindings(cfg)...)
}

func (l *containerLook) variableFindings(cfg *config.Config) []Finding {
	if cfg == nil {
		return nil
	}
	return []Finding{l.listener(cfg), l.authority(cfg)}
}

const byInit = "egressd init compose, or egressd init docker"

func (l *containerLook) alone() bool { return l.Container.HostConfig.NetworkMode == "none" }

func (l *containerLook) hostNetwork() Finding {
	switch mode := l.Container.HostConfig.NetworkMode; {
	case mode == "host":
		return Finding{"network", "it has the network of the host", byInit}
	case strings.HasPrefix(mode, "container:"):
		return Finding{"network", "it has the network of another container", "egressd doctor --container " + strings.TrimPrefix(mode, "container:")}
	case len(l.Networks) == 0:
		return Finding{"network", "it has lost its network " + mode + ": nothing can be reached", "start egressd's container again (up.sh, or docker compose up), then this one"}
	}
	return Finding{Check: "network", Says: "its own"}
}

// settingFindings are about the settings that package boundary judges. Networks have findings of their own.
func (l *containerLook) settingFindings() (all []Finding) {
	for _, b := range l.settings {
		if b.Field != "HostConfig.NetworkMode" && b.Field != "NetworkSettings.Networks" {
			all = append(all, Finding{"settings", b.As("--") + ": " + b.Why, b.Instead})
		}
	}
	if len(all) == 0 {
		all = append(all, Finding{Check: "settings", Says: "none by which it leaves, or poses as another"})
	}
	return all
}

// closed are the names of networks that lead nowhere. Without any of these, nothing is one.
func (l *containerLook) closed() (all []string) {
	if l.alone() {
		return nil
	}
	all = []string{"(no network of egressd)"}
	for _, n := range l.Networks {
		if n.Internal {
			all = append(all, n.Name)
		}
	}
	return all
}

// open are the networks that lead out.
func (l *containerLook) open() (all []string) {
	for _, n := range l.Networks {
		if !n.Internal && n.Driver != "null" {
			all = append(all, n.Name)
		}
	}
	return all
}

func (l *containerLook) route() Finding {
	if open := l.open(); len(open) > 0 {
		return Finding{"route", "the network " + strings.Join(open, ", ") + " leads out past egressd: proxy variables are a request there", byInit}
	}
	return Finding{Check: "route", Says: "none leads out"}
}

func (l *containerLook) ipv6() Finding {
	for _, n := range l.Networks {
		if n.EnableIPv6 && !n.Internal {
			return Finding{"ipv6", "the network " + n.Name + " has IPv6, and leads out by it", byInit}
		}
	}
	return Finding{Check: "ipv6", Says: "no way out"}
}

// names is about Docker's own resolver in the container.
func (l *containerLook) names() Finding {
	const check = "names"
	asks := l.Container.HostConfig.DNS
	switch {
	case len(l.open()) > 0:
		return Finding{check, "they are asked for past egressd", byInit}
	case len(asks) == 0 && !forwardsNoNames(l.Engine):
		return Finding{check, "engine " + l.Engine + " asks the host's resolver for names, from internal networks too, where that is on loopback (CVE-2024-29018)", "--dns ADDR, or dns: in a compose file, with egressd's address in that network; or engine 23.0.11, 25.0.5 or 26"}
	case len(asks) == 0:
		return Finding{Check: check, Says: "nobody outside is asked"}
	}
	return Finding{Check: check, Says: "asked at " + strings.Join(asks, ", ")}
}

// forwardsNoNames reports whether an engine has the fix of CVE-2024-29018.
func forwardsNoNames(version string) bool {
	var n [3]int
	for i, part := range strings.SplitN(version, ".", 3) {
		digits := part
		if end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = part[:end]
		}
		n[i], _ = strconv.Atoi(digits) // what is no number is an old one
	}
	patched := map[[2]int]int{{23, 0}: 11, {25, 0}: 5}
	least, of := patched[[2]int{n[0], n[1]}]
	return n[0] >= 26 || of && n[2] >= least
}

func (l *containerLook) host() Finding {
	const check = "host"
	for _, n := range l.Networks {
		if !n.Internal {
			continue // it is out of there anyhow
		}
		bridge := n.Options["com.docker.network.bridge.name"]
		if bridge == "" {
			bridge = "br-" + n.ID[:min(12, len(n.ID))]
		}
		addresses, err := l.addresses(bridge)
		switch {
		case err != nil:
			return Finding{check, "whether this host has an address in the network " + n.Name + " cannot be told here: " + err.Error(), "egressd doctor --container, on the host of the engine"}
		case len(addresses) > 0 && !(strings.HasPrefix(bridge, sidecar.BridgePrefix) && dropsFromSandboxes(l.rules)):
			return Finding{check, "this host is " + strings.Join(addresses, ", ") + " in the network " + n.Name + ": what listens on its 0.0.0.0 can be reached", byInit + "; on an engine before 23, echo '" + sidecar.HostRules + "' | nft -f -"}
		}
	}
	return Finding{Check: check, Says: "its services are out of reach"}
}

// dropsFromSandboxes reports whether what nft prints has the rule for what comes to the host itself.
func dropsFromSandboxes(rules string) bool {
	_, chain, found := strings.Cut(rules, "hook input ")
	chain, _, _ = strings.Cut(chain, "}")
	for line := range strings.Lines(chain) {
		f := strings.Fields(line)
		if found && len(f) > 2 && f[0] == "iifname" && f[1] == `"`+sidecar.BridgePrefix+`*"` && f[len(f)-1] == "drop" {
			return true
		}
	}
	return false
}

func (l *containerLook) variable(name string) string {
	for _, v := range l.Container.Config.Env {
		if key, value, _ := strings.Cut(v, "="); key == name {
			return value
		}
	}
	return ""
}

// exceptions are those of NO_PROXY, where there is a way past the proxy.
func (l *containerLook) exceptions() Finding {
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if past := pastProxy(l.variable(name)); len(past) > 0 && len(l.open()) > 0 {
			return Finding{"exceptions", name + " leads past egressd for " + strings.Join(past, ", "), name + "="}
		}
	}
	return Finding{Check: "exceptions", Says: "none leads past egressd"}
}

// listener is about proxy variables that name another port, or another host.
// insideProxy is where egressd enter answers in a container without a network of Docker's.
var insideProxy = fmt.Sprintf("127.0.0.1:%d", attach.ProxyPort)

func (l *containerLook) listener(cfg *config.Config) Finding {
	const check = "variables"
	listeners := strings.Join(cfg.File.Listen.Proxy, " ")
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		value := l.variable(name)
		address := strings.TrimSuffix(value[strings.LastIndexAny(strings.TrimSuffix(value, "/"), "/@")+1:], "/")
		if l.alone() && address == insideProxy {
			continue
		}
		if value != "" && (address == "" || !slices.Contains(strings.Fields(listeners), address)) {
			return Finding{check, name + " is " + address + ", where the policy has no listener", "one of " + listeners}
		}
	}
	return Finding{Check: check, Says: "none leads elsewhere"}
}

// authority is about runtimes that would not trust the local authority, where the policy looks
// inside TLS.
func (l *containerLook) authority(cfg *config.Config) Finding {
	const check = "certificates"
	if !cfg.Inspects() {
		return Finding{Check: check, Says: "the policy looks into no TLS"}
	}
	system := slices.ContainsFunc(l.Container.Mounts, func(m struct{ Source, Destination string }) bool {
		return slices.Contains([]string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}, m.Destination)
	})
	var missing []string
	for _, r := range []struct {
		runtime, variable string
		bySystem          bool
	}{
		{"curl", "CURL_CA_BUNDLE", true}, {"Go and OpenSSL", "SSL_CERT_FILE", true}, {"Python's requests", "REQUESTS_CA_BUNDLE", false},
		{"Node", "NODE_EXTRA_CA_CERTS", false}, {"Java", "JAVA_TOOL_OPTIONS", false},
	} {
		if l.variable(r.variable) == "" && !(system && r.bySystem) {
			missing = append(missing, r.runtime+" ("+r.variable+")")
		}
	}
	if len(missing) > 0 {
		return Finding{check, "these would not trust the authority, if they are there: " + strings.Join(missing, ", "), "egressd ca bundle -o bundle.pem, mounted, and the variables of egressd env --ca; Java: see egressd ca"}
	}
	return Finding{Check: check, Says: "the variables name a bundle"}
}

// engineFindings say what the engine answers that sandboxes are told by.
func engineFindings(c *config.Config) []Finding {
	if !c.File.AsksDocker() {
		return nil
	}
	socket := c.EngineSocket()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	all, err := containers.Running(ctx, socket)
	if err != nil {
		return []Finding{{"containers", fmt.Sprintf("the engine cannot be asked at %s, so that its containers are unknown, and refused: %v", socket, err), "start Docker, or let egressd's user read and write the socket; docker.socket in " + c.Path + " names another"}}
	}
	entries, err := c.Entries()
	if err != nil {
		return []Finding{{"containers", err.Error(), "egressd policy check"}}
	}
	d, err := sandbox.NewDirectory(entries)
	if err != nil {
		return []Finding{{"containers", err.Error(), "egressd policy check"}}
	}
	var found []Finding
	of := 0
	for _, k := range all {
		names := d.Claims(k)
		if len(names) > 0 {
			of++
		}
		if len(names) > 1 {
			found = append(found, Finding{"containers", fmt.Sprintf("%.128s is that of the sandboxes %s, and thus nobody's", k.Name, strings.Join(names, " and ")), "let docker of one sandbox alone fit it, in " + c.Path})
		}
	}
	return append([]Finding{{Check: "containers", Says: fmt.Sprintf("the engine at %s answers; %s, %d of them of a sandbox", socket, quantity.Plural(len(all), "container")+" run", of)}}, found...)
}
