package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/sandbox"
)

// rulesEvery is how often it is looked whether rules lead to listen.transparent.
const rulesEvery = 2 * time.Second

// capturePoints are the listeners of listen.transparent.
func capturePoints(c *config.Config) (points []sandbox.CapturePoint) {
	for _, name := range c.File.Listen.Transparent {
		if at, kind, err := captureAt(name); err == nil {
			points = append(points, sandbox.CapturePoint{At: at, TProxy: kind.name == "tproxy"})
		}
	}
	return points
}

// A ruleGuard says when no rule leads to a listener any more, and when one does
// again.
type ruleGuard struct {
	daemon *daemon
	watch  *sandbox.RuleWatch
	names  []string
	led    []bool // as it was said last; nil: nothing was said yet
	blind  string // why it could not look, as it was said last
}

// guardRules looks at the rules until ctx is done. Without the capability for it,
// that is said once.
func (d *daemon) guardRules(ctx context.Context) {
	points := capturePoints(d.config)
	if len(points) == 0 {
		return
	}
	g := &ruleGuard{daemon: d, watch: sandbox.WatchRules(points), names: slices.Clone(d.config.File.Listen.Transparent)}
	d.serving.Go(func() {
		for tick := time.NewTicker(rulesEvery); ; {
			if !g.look() {
				tick.Stop()
				return
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
}

// look looks once, and reports whether it makes sense to look again.
func (g *ruleGuard) look() bool {
	led, err := g.watch.Look()
	switch {
	case errors.Is(err, syscall.EPERM):
		g.cannotLook("egressd needs CAP_NET_ADMIN for that")
		return false
	case errors.Is(err, sandbox.ErrUnreadable):
		g.cannotLook(err.Error())
		return true
	case err != nil: // such as rules that changed while they were read
		return true
	}
	g.blind = ""
	for i, name := range g.names {
		g.say(name, led[i], g.led == nil, g.led != nil && g.led[i])
	}
	g.led = led
	return true
}

func (g *ruleGuard) cannotLook(why string) {
	if g.blind != why {
		g.blind = why
		fmt.Fprintf(g.daemon.talk, "egressd: warning: whether rules lead to listen.transparent is not watched: %s\n", why)
	}
}

func (g *ruleGuard) say(name string, now, first, before bool) {
	switch {
	case !now && first:
		g.note(fmt.Sprintf("warning: no rule leads to the transparent listener %s yet", name))
	case !now && before:
		g.note(fmt.Sprintf("error: no rule leads to the transparent listener %s any more: what sandboxes send is not captured", name))
	case now && !first && !before:
		g.note(fmt.Sprintf("rules lead to the transparent listener %s", name))
		return
	default:
		return
	}
	fmt.Fprintln(g.daemon.talk, "egressd: hint: nft list ruleset, and load the rules of \"Captured connections\" in docs/manual.md")
}

// note tells the operator and the log.
func (g *ruleGuard) note(text string) {
	fmt.Fprintf(g.daemon.talk, "egressd: %s\n", text)
	if err := g.daemon.gate.Note(egress.KindPolicy, clipped(text)); err != nil {
		g.daemon.complain(err)
	}
}

// captureFindings are about rules that lead to listen.transparent, as far as they can
// be seen.
func captureFindings(c *config.Config) []symptom {
	points := capturePoints(c)
	if len(points) == 0 {
		return nil
	}
	const check = "listen.transparent"
	var all []symptom
	led, err := sandbox.WatchRules(points).Look()
	switch {
	case errors.Is(err, syscall.EPERM):
		all = append(all, symptom{Check: check, Says: "whether rules lead there is for root to see: sudo egressd doctor --config " + c.Path})
	case err != nil:
		all = append(all, symptom{Check: check, Says: "whether rules lead there cannot be seen: " + err.Error()})
	}
	for i := range led {
		name := c.File.Listen.Transparent[i]
		if led[i] {
			all = append(all, symptom{Check: check, Says: "a rule leads to " + name})
			continue
		}
		says := "no rule of nftables leads to " + name
		if points[i].TProxy {
			says += ", or what tproxy takes is not routed to this host"
		}
		all = append(all, symptom{check, says, "nft -f RULES, with those of \"Captured connections\" in docs/manual.md"})
	}
	return append(all, forwardingFindings()...)
}

// forwardingFindings are about what happens to packets once the rules are gone.
func forwardingFindings() (all []symptom) {
	for path, fix := range map[string]string{
		"/proc/sys/net/ipv4/ip_forward":          "sysctl net.ipv4.ip_forward=0, or a rule that drops what is forwarded for sandboxes and outlives the others",
		"/proc/sys/net/ipv6/conf/all/forwarding": "sysctl net.ipv6.conf.all.forwarding=0, or a rule that drops what is forwarded for sandboxes and outlives the others",
	} {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) != "0" {
			all = append(all, symptom{"forwarding", path + " is on: when the rules go, sandboxes behind this host reach what it reaches", fix})
		}
	}
	return all
}
