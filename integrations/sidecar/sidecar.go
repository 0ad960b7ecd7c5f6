// Package sidecar describes egressd in a container between sandboxes and the world: networks, addresses, policy.
package sidecar

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/internal/shell"
)

// A Sidecar is egressd in a container between the sandboxes and the world: each
// sandbox has a network of its own, which leads nowhere but to it.
type Sidecar struct {
	Project   string // what the networks are told apart by: one word
	Image     string // egressd's; its ID, if the engine has it
	Program   string // egressd on the host; empty: the first one of PATH
	Folder    string // of the policy, outside of what a sandbox can write
	Allow     []string
	Presets   []string
	Sandboxes []SandboxNetwork
}

// A SandboxNetwork is the network of one sandbox.
type SandboxNetwork struct {
	Name   string
	Subnet netip.Prefix
	Allow  []string // all that it may reach, out of Sidecar.Allow and Presets; nil: all of that
	Apart  bool     // Subnet is divided into cells, one for each container
}

// Networks returns the networks that a sandbox has: itself, or its cells.
func (h SandboxNetwork) Networks() (all []SandboxNetwork) {
	if !h.Apart {
		return []SandboxNetwork{h}
	}
	for i := range 1 << (cellBits - h.Subnet.Bits()) {
		a := h.Subnet.Addr().As4()
		a[3] |= byte(i << (32 - cellBits))
		all = append(all, SandboxNetwork{Name: fmt.Sprintf("%s-%d", h.Name, i+1), Subnet: netip.PrefixFrom(netip.AddrFrom4(a), cellBits)})
	}
	return all
}

// cellBits is how large a cell is: an address of the engine's gateway, egressd's own, and that of one container. The other
// three are reserved, so that no second container can join.
const cellBits = 29

// Reserved are the addresses of a cell that nobody may have.
func (h SandboxNetwork) Reserved() (all []netip.Addr) {
	for a := h.Self().Next(); len(all) < 3; a = a.Next() {
		all = append(all, a)
	}
	return all
}

// subnetBits is how large the network of a sandbox is: half of its 64 addresses are for
// containers that are given any.
const subnetBits = 26

// Self is egressd's own address in the network of a sandbox.
func (h SandboxNetwork) Self() netip.Addr { return h.Subnet.Addr().Next().Next() }

// Free is the half of the network that Docker gives addresses from, so that nobody has
// egressd's before it does.
func (h SandboxNetwork) Free() netip.Prefix {
	a := h.Subnet.Addr().As4()
	a[3] |= 1 << (31 - h.Subnet.Bits())
	return netip.PrefixFrom(netip.AddrFrom4(a), h.Subnet.Bits()+1)
}

// Subnets divides pool into networks for as many sandboxes.
func Subnets(pool netip.Prefix, count int) ([]netip.Prefix, error) {
	if !pool.Addr().Is4() || pool != pool.Masked() || !pool.Addr().IsPrivate() || pool.Bits() > subnetBits || pool.Bits() < 8 {
		return nil, fmt.Errorf("%s is no private IPv4 prefix from /8 to /%d, such as 10.140.16.0/20", pool, subnetBits)
	}
	if room := 1 << (subnetBits - pool.Bits()); count > room {
		return nil, fmt.Errorf("%s has room for %d sandboxes, and there are %d", pool, room, count)
	}
	var all []netip.Prefix
	for i := range count {
		a := pool.Addr().As4()
		number := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]) + uint32(i)<<(32-subnetBits)
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)}), subnetBits))
	}
	return all, nil
}

// PoolBits is the length of the prefixes of [Pools].
const PoolBits = 20

// Pools returns prefixes that Docker would not choose itself. Their order depends on word alone, so that two projects
// seldom begin with the same pool.
func Pools(word string) (all []netip.Prefix) {
	const first, count = 128, 64 * 16 // 10.128.0.0/10 in pieces of 64 networks
	sum := sha256.Sum256([]byte(word))
	start := int(sum[0])<<8 | int(sum[1])
	for i := range count {
		n := (start + i) % count
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(first + n/16), byte(n % 16 * 16), 0}), PoolBits))
	}
	return all
}

// Pinned reports whether Image is an ID, which no other image can have.
func (s *Sidecar) Pinned() bool { return strings.HasPrefix(s.Image, "sha256:") }

// PolicyPath is where the policy is on the host.
func (s *Sidecar) PolicyPath() string { return path.Join(s.Folder, "egressd.yaml") }

// Bridge is the name of the host's interface that a network of a sandbox is, so that rules
// of the host can speak of it. No interface has a name of more than 15 bytes.
func (s *Sidecar) Bridge(network string) string {
	sum := sha256.Sum256([]byte(s.Project + "\x00" + network))
	return BridgePrefix + hex.EncodeToString(sum[:5])
}

// BridgePrefix begins the names of the interfaces that networks of sandboxes are.
const BridgePrefix = "egd-"

// Options of Docker's bridge driver. With gateway_mode "isolated" (engine 27.1) or inhibit_ipv4 (engine 23; older
// engines ignore it) the host has no address in the network. A sandbox then reaches no service on the host's 0.0.0.0.
const (
	OptionBridge   = "com.docker.network.bridge.name"
	OptionInhibit  = "com.docker.network.bridge.inhibit_ipv4"
	OptionIsolated = "com.docker.network.bridge.gateway_mode_ipv4"
)

// HostRules keep sandboxes away from the host itself, whatever the engine made of the
// options of their networks.
const HostRules = "table inet egressd-docker { chain input { type filter hook input priority -150; policy accept; iifname \"" + BridgePrefix + "*\" counter drop; }; chain forward { type filter hook forward priority -150; policy accept; iifname \"" + BridgePrefix + "*\" oifname != \"" + BridgePrefix + "*\" counter drop; }; }"

// Sysctls of egressd's container. It is in several networks, and no router between them; a source
// address counts where its network is; port 53 needs no capability.
var Sysctls = []integrations.Variable{
	{Name: "net.ipv4.ip_forward", Value: "0"},
	{Name: "net.ipv4.conf.all.rp_filter", Value: "1"},
	{Name: "net.ipv4.conf.all.arp_ignore", Value: "1"},
	{Name: "net.ipv4.ip_unprivileged_port_start", Value: "53"},
}

// Dropped are the capabilities with which a sandbox could change its address and routes.
var Dropped = []string{"NET_ADMIN", "NET_RAW"}

const ProxyPort, namesPort = 3128, 53

func (h SandboxNetwork) Proxy() string { return fmt.Sprintf("%s:%d", h.Self(), ProxyPort) }

// Proxies are egressd's listeners in each network of a sandbox.
func (h SandboxNetwork) Proxies() (all []string) {
	for _, n := range h.Networks() {
		all = append(all, n.Proxy())
	}
	return all
}

// Resolvers are egressd's name servers in each network of a sandbox.
func (h SandboxNetwork) Resolvers() (all []string) {
	for _, n := range h.Networks() {
		all = append(all, fmt.Sprintf("%s:%d", n.Self(), namesPort))
	}
	return all
}

// Healthy is asked inside of egressd's container.
var Healthy = []string{"/usr/bin/egressd", "doctor", "--serving"}

// Policy is a policy for the sandboxes: each is known by its network.
func (s *Sidecar) Policy() integrations.Made {
	var b strings.Builder
	fmt.Fprintf(&b, `# What the containers of %s may reach. What no line allows is denied and recorded.
# An edit counts at once. See what was denied, and allow it, with %s
version: 1
listen:
  # egressd's own address in each network of a sandbox.
`, s.Project, s.CommandPath())
	var proxies, names []string
	for _, h := range s.Sandboxes {
		proxies, names = append(proxies, h.Proxies()...), append(names, h.Resolvers()...)
	}
	fmt.Fprintf(&b, "  proxy: %s\n  dns: %s\n  admin: %q   # for %s\n", Inline(proxies), Inline(names), "unix:"+adminSocket, s.CommandPath())
	fmt.Fprintf(&b, "presets: %s   # npm, pypi, golang, github, claude-code, …: egressd help policy-file\nallow:", Inline(s.Presets))
	b.WriteString(lines("  - ", quoted(s.Allow)) + "sandboxes:\n")
	b.WriteString("  # allow: all that this one may reach, out of what stands above; without it, all of that.\n")
	for _, h := range s.Sandboxes {
		allow := ""
		if h.Allow != nil {
			allow = ", allow: " + Inline(h.Allow)
		}
		fmt.Fprintf(&b, "  - {name: %s, source: [%s]%s}\n", h.Name, h.Subnet, allow)
	}
	return integrations.Made{Path: s.PolicyPath(), Text: b.String(), Mode: 0o644}
}

// Inline is a list of texts in one line of YAML.
func Inline(texts []string) string { return "[" + strings.Join(quoted(texts), ", ") + "]" }

func quoted(texts []string) []string {
	all := slices.Clone(texts)
	for i := range all {
		all[i] = fmt.Sprintf("%q", all[i]) // of printable ASCII, as YAML has it
	}
	return all
}

// lines is a list of YAML, one item a line, or an empty one.
func lines(before string, items []string) string {
	if len(items) == 0 {
		return " []\n"
	}
	return "\n" + before + strings.Join(items, "\n"+before) + "\n"
}

// Label marks egressd's container with the path of its policy folder, by which the wrapper finds it under any name.
const Label = "egressd.policy"

// adminSocket is where egressd's container has the operator's socket: in the volume, beside the log.
const adminSocket = "/var/lib/egressd/admin.sock"

// CommandPath is where the wrapper is on the host.
func (s *Sidecar) CommandPath() string { return path.Join(s.Folder, "egressd") }

// Command returns the wrapper: a script with which the host runs egressd's commands in the container. egressd
// cannot write its own policy there, so the wrapper writes what allow --save and deny --save print, once the host's
// own egressd has checked it. For ui, the host's own egressd shows a copy of the log.
//
// up is the command that starts the container, filter the arguments of docker ps that find it. Labels and names prove
// nothing, as any image may have them: the container has to have egressd's image, and to be the only one.
func (s *Sidecar) Command(up string, filter ...string) integrations.Made {
	q := shell.Quote
	filters := ""
	for _, f := range append(filter, "label="+Label+"="+s.Folder) {
		filters += " --filter " + q(f)
	}
	text := fmt.Sprintf(`#!/bin/sh
# egressd of %[1]s, from the host: egressd log, egressd why ID, egressd allow HOST, egressd answer, egressd status, egressd ui.
# allow --save and deny --save change %[2]s.
set -eu
fail() {
	echo "egressd: error: $1" >&2
	echo "egressd: hint: $2" >&2
	exit 1
}
image=$(docker image inspect -f '{{.Id}}' %[3]s) || fail 'the engine does not have its image' "make image && docker load -i build/egressd-image.tar"
container=
all=
if [ "${1:-} ${2:-}" = "docker refused" ]; then all=-a; fi # of a container that was refused: egressd need not run yet
for one in $(docker ps -q $all --no-trunc%[4]s); do
	[ "$(docker inspect -f '{{.Image}}' "$one")" = "$image" ] || continue
	[ -z "$container" ] || fail "two containers are egressd's: $container and $one" "docker stop the one that is not yours"
	container=$one
done
[ -n "$container" ] || fail 'its container does not run' %[5]s
[ -z "$all" ] || docker start "$container" >/dev/null
policy=%[6]s
if [ "${1:-}" = ui ]; then # a browser does not reach the container: the host shows a copy of the log
	shift
	copy=$(mktemp -d)
	trap 'rm -rf "$copy"' EXIT
	trap : INT TERM
	docker cp "$container:/var/lib/egressd/audit" "$copy" >/dev/null
	docker exec "$container" /usr/bin/egressd log verify --print-key >"$copy/key"
	echo 'egressd: this page shows the log as it is now; start it again for what comes later' >&2
	%[7]s ui --dir "$copy/audit" --key "$copy/key" --config "$policy" "$@" || exit
	exit
fi
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal=-t; fi
case " $* " in
*" --save "*) ;;
*) exec docker exec -i $terminal "$container" /usr/bin/egressd "$@" ;;
esac
trap 'rm -f "$policy.new"' EXIT
docker exec "$container" /usr/bin/egressd "$@" --print >"$policy.new"
%[7]s policy check --config "$policy.new" >&2 || fail 'the policy was left as it is' 'correct the rule, or edit '"$policy"
diff -u "$policy" "$policy.new" >&2 || true # what the container says that it changes is no proof
chmod 644 "$policy.new"
mv "$policy.new" "$policy"
docker exec "$container" /usr/bin/egressd reload
`, s.Project, s.PolicyPath(), q(s.Image), filters, q(up), q(s.PolicyPath()), q(cmp.Or(s.Program, "egressd")))
	return integrations.Made{Path: s.CommandPath(), Text: text, Mode: 0o755}
}

// Environment has egressd print commands that work on the host, where only the wrapper reaches it.
func (s *Sidecar) Environment() integrations.Variable {
	return integrations.Variable{Name: shell.ProgramVariable, Value: s.CommandPath()}
}
