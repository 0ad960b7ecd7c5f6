package doctor

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/sandbox/rules"
)

// captureFindings are about rules that lead to listen.transparent, as far as they can
// be seen.
func captureFindings(c *config.Config) []Finding {
	points := daemon.CapturePoints(c)
	if len(points) == 0 {
		return nil
	}
	const check = "listen.transparent"
	var all []Finding
	led, err := rules.NewWatch(points).Look()
	switch {
	case errors.Is(err, syscall.EPERM):
		all = append(all, Finding{Check: check, Says: "whether rules lead there is for root to see: sudo egressd doctor --config " + c.Path})
	case err != nil:
		all = append(all, Finding{Check: check, Says: "whether rules lead there cannot be seen: " + err.Error()})
	}
	for i := range led {
		name := c.File.Listen.Transparent[i]
		if led[i] {
			all = append(all, Finding{Check: check, Says: "a rule leads to " + name})
			continue
		}
		says := "no rule of nftables leads to " + name
		if points[i].TProxy {
			says += ", or what tproxy takes is not routed to this host"
		}
		all = append(all, Finding{check, says, "nft -f RULES, with the rules of egressd help gateway"})
	}
	return append(all, forwardingFindings()...)
}

// forwardingFindings are about what happens to packets once the rules are gone.
func forwardingFindings() (all []Finding) {
	for path, fix := range map[string]string{
		"/proc/sys/net/ipv4/ip_forward":          "sysctl net.ipv4.ip_forward=0, or a rule that drops what is forwarded for sandboxes and outlives the others",
		"/proc/sys/net/ipv6/conf/all/forwarding": "sysctl net.ipv6.conf.all.forwarding=0, or a rule that drops what is forwarded for sandboxes and outlives the others",
	} {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) != "0" {
			all = append(all, Finding{"forwarding", path + " is on: when the rules go, sandboxes behind this host reach what it reaches", fix})
		}
	}
	return all
}
