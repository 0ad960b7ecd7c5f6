//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox/rules"
)

// rulesEvery is how often it is looked whether rules lead to listen.transparent.
const rulesEvery = 2 * time.Second

// CapturePoints are the listeners of listen.transparent, in the order of the file.
func CapturePoints(c *config.Config) (points []rules.Listener) {
	for _, name := range c.File.Listen.Transparent {
		if at, kind, err := captureAt(name); err == nil {
			points = append(points, rules.Listener{At: at, TProxy: kind.name == "tproxy"})
		}
	}
	return points
}

// A ruleGuard reports when packet filter rules stop leading traffic to a listener, and when they do again.
type ruleGuard struct {
	daemon *Daemon
	watch  *rules.Watch
	names  []string
	led    []bool // as it was said last; nil: nothing was said yet
	blind  string // why it could not look, as it was said last
}

// guardRules looks at the rules until ctx is done. Without the capability for it,
// that is said once.
func (d *Daemon) guardRules(ctx context.Context) {
	points := CapturePoints(d.Config)
	if len(points) == 0 {
		return
	}
	g := &ruleGuard{daemon: d, watch: rules.NewWatch(points), names: slices.Clone(d.Config.File.Listen.Transparent)}
	d.Serving.Go(func() {
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
	case errors.Is(err, rules.ErrUnreadable):
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
		fmt.Fprintf(g.daemon.Talk, "egressd: warning: whether rules lead to listen.transparent is not watched: %s\n", why)
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
	hint.Sayf(g.daemon.Talk, "nft list ruleset, and load the rules of egressd help gateway")
}

// note tells the operator and the log.
func (g *ruleGuard) note(text string) {
	err := g.daemon.Gate.Records.Note(record.KindPolicy, clipped(text))
	fmt.Fprintf(g.daemon.Talk, "egressd: %s\n", text)
	if err != nil {
		g.daemon.Complain(err)
	}
}
