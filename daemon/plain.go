//go:build !linux

package daemon

import (
	"context"
	"errors"
	"net/netip"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
)

// Networks are attached, and containers and packet filter rules are watched, on Linux only. Here a daemon is an
// explicit proxy.

func (d *Daemon) placeholders() names.Range { return names.Range{} }

func (d *Daemon) listenForNetworks() error {
	if len(d.Config.EnterNames()) == 0 {
		return nil
	}
	return hint.Failed(sandbox.TellsNetworksApart(), "leave listen.enter and enter out of "+d.Path)
}

func (d *Daemon) prepareAttachments() {}

func (d *Daemon) serveAttachments() {}

func (d *Daemon) guardRules(context.Context) {}

type attachments struct{ listeners []struct{} }

func (*attachments) setModes(*config.Config) error { return nil }

func (*attachments) close() {}

func (*attachments) stop(context.Context) (wait func()) { return func() {} }

func (*attachments) trust(*inspect.Inspection, *config.Config) {}

func (*attachments) has(string) bool { return false }

func (*attachments) program(string, netip.AddrPort, netip.AddrPort) *policy.Process { return nil }

type captureListener struct{}

func (cs *capturing) listenForCaptured(*[]netip.AddrPort) error {
	if len(cs.daemon.Config.File.Listen.Transparent) == 0 {
		return nil
	}
	return hint.Failed(errors.New("connections can be captured on Linux only"), "leave listen.transparent out of "+cs.daemon.Path)
}

func (cs *capturing) serveCaptured() {}

func (cs *capturing) closeCaptured() {}

type engineWatch struct{}

func (d *Daemon) watchContainers(*config.Config) {}

func (*engineWatch) close() {}
