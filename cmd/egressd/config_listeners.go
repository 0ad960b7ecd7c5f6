package main

import (
	"cmp"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/policy"
)

// listeners are the TCP listeners that the file names by address.
func (c *config) listeners() []netip.AddrPort {
	texts := append(slices.Clone(c.file.Listen.Proxy), c.file.Listen.Admin)
	texts = append(append(texts, c.file.Listen.DNS...), c.file.Listen.Transparent...)
	for _, s := range c.file.Sandboxes {
		texts = append(texts, s.Listen)
	}
	var all []netip.AddrPort
	for _, text := range texts {
		if a, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimPrefix(text, policy.TLSListener), policy.TProxyListener)); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// hostAddresses are the addresses that this host has now.
func hostAddresses() ([]netip.Addr, error) {
	w, err := hostaddr.Watch()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.Addrs(), nil
}

// allListeners are the proxy's listeners, shared ones first.
func (c *config) allListeners() []string {
	all := slices.Clone(c.file.Listen.Proxy)
	for i := range c.file.Sandboxes {
		if l := c.file.Sandboxes[i].Listen; l != "" {
			all = append(all, l)
		}
	}
	return all
}

// listenerOf returns the listener by which a sandbox can come: its own, or the
// first that has what it is told by, and "" where there is none.
func (c *config) listenerOf(s *policy.SandboxRules) string {
	if s.Listen != "" {
		return s.Listen
	}
	if s.Enter != "" && s.TokenFile == "" && len(s.UIDs) == 0 && len(s.Sources) == 0 && s.Certificate == "" {
		return "" // it hands its network in
	}
	fits := func(l string) bool {
		unix, tls := strings.HasPrefix(l, policy.UnixListener), strings.HasPrefix(l, policy.TLSListener)
		return (len(s.UIDs) == 0 || unix) && (len(s.Sources) == 0 && !s.Docker.Given() || !unix) && (s.Certificate == "" || tls)
	}
	if i := slices.IndexFunc(c.file.Listen.Proxy, fits); i >= 0 {
		return c.file.Listen.Proxy[i]
	}
	return ""
}

// asksForUsers reports whether a socket is one that sandboxes with users come
// by: their own, or a shared one.
func (c *config) asksForUsers(socket string) bool {
	return slices.ContainsFunc(c.file.Sandboxes, func(s policy.SandboxRules) bool {
		shared := s.Listen == "" && slices.Contains(c.file.Listen.Proxy, socket)
		return len(s.UIDs) > 0 && (s.Listen == socket || shared)
	})
}

// samePlaces refuses a change of listeners, which are opened at the start only.
// A socket that was one sandbox's must not become everybody's.
func (c *config) samePlaces(before *config) error {
	if !slices.Equal(c.places(), before.places()) {
		return errors.New("the listeners changed; restart egressd to change them")
	}
	if before.file.AsksDocker() && c.file.AsksDocker() && c.engineSocket() != before.engineSocket() {
		return errors.New("docker.socket changed; restart egressd to change it")
	}
	return nil
}

// places are the listeners and whose they are.
func (c *config) places() []string {
	all := slices.Clone(c.file.Listen.Proxy)
	for _, name := range c.file.Listen.Transparent {
		all = append(all, "transparent "+name)
	}
	for _, name := range c.file.Listen.DNS {
		all = append(all, "dns "+name)
	}
	for _, s := range c.file.Sandboxes {
		if s.Listen != "" {
			all = append(all, s.Name+" "+s.Listen)
		}
	}
	return append(all, c.enterPlaces()...)
}

// enterNames are the sockets at which networks are handed in, shared ones first.
func (c *config) enterNames() []string {
	all := slices.Clone(c.file.Listen.Enter)
	for _, s := range c.file.Sandboxes {
		if s.Enter != "" {
			all = append(all, s.Enter)
		}
	}
	return all
}

// enterPlaces are those and whose they are.
func (c *config) enterPlaces() (all []string) {
	for _, name := range c.file.Listen.Enter {
		all = append(all, "enter "+name)
	}
	for _, s := range c.file.Sandboxes {
		if s.Enter != "" {
			all = append(all, "enter "+s.Name+" "+s.Enter)
		}
	}
	return all
}

// asksWhoEnters reports whether a socket is one that sandboxes with users, or containers, hand
// their network in at.
func (c *config) asksWhoEnters(socket string) bool {
	return slices.ContainsFunc(c.file.Sandboxes, func(s policy.SandboxRules) bool {
		known := len(s.UIDs) > 0 || s.Docker.Given()
		if s.Enter != "" {
			return s.Enter == socket && known
		}
		return known && slices.Contains(c.file.Listen.Enter, socket)
	})
}

func folderOfSocket(name string) string {
	return filepath.Dir(filepath.Clean(strings.TrimPrefix(name, policy.UnixListener)))
}

// doorFolders are those in which the sockets lie at which networks are handed in.
func (c *config) doorFolders() (all []string) {
	for _, name := range c.enterNames() {
		all = append(all, folderOfSocket(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (c *config) engineSocket() string {
	return strings.TrimPrefix(cmp.Or(c.file.Docker.Socket, policy.DefaultDocker), policy.UnixListener)
}
