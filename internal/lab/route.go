package lab

import (
	"fmt"
	"os/exec"
	"strings"
)

// Route has the sandbox send everything to the gateway, which does not forward
// it: it is for tests that have the gateway capture it. Unroute takes that back.
func (w *World) Route() error {
	return w.Sandbox.ip("route add default via "+GatewayIPv4, "-6 route add default via "+GatewayIPv6)
}

// Unroute ends what Route began.
func (w *World) Unroute() error {
	return w.Sandbox.ip("route del default via "+GatewayIPv4, "-6 route del default via "+GatewayIPv6)
}

// Load loads a ruleset of nftables in n, as it stands.
func (n *Net) Load(ruleset string) error { return n.nft(ruleset) }

// IP runs ip(8) in n, once a line.
func (n *Net) IP(lines ...string) error { return n.ip(lines...) }

// Tool runs a command in n and returns what it printed.
func (n *Net) Tool(name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Stdout = &out
	if err := n.Run(cmd); err != nil {
		return "", fmt.Errorf("%s: %s %s: %w", n.Name, name, strings.Join(args, " "), err)
	}
	return out.String(), nil
}
