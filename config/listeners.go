package config

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

// Listeners are the TCP listeners that the file names by address.
func (c *Config) Listeners() []netip.AddrPort {
	texts := slices.Concat(c.File.Listen.Proxy, c.File.Listen.DNS, c.File.Listen.Transparent)
	for _, s := range c.File.Sandboxes {
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

// OperatorAt is where the operator's listener is over TCP, by the file; nothing where it is
// elsewhere.
func (c *Config) OperatorAt() (all []netip.AddrPort) {
	if a, err := netip.ParseAddrPort(c.File.Listen.Admin); err == nil {
		all = append(all, a)
	}
	return all
}

// OperatorSocket is the path of the operator's listener, or "" where it is no Unix socket.
func (c *Config) OperatorSocket() string {
	path, unix := strings.CutPrefix(c.File.Listen.Admin, policy.UnixListener)
	if !unix {
		return ""
	}
	return path
}

// HostAddresses are the addresses that this host has now.
func HostAddresses() ([]netip.Addr, error) {
	w, err := hostaddr.Watch()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.Addrs(), nil
}

// AllListeners are the proxy's listeners, shared ones first.
func (c *Config) AllListeners() []string {
	all := slices.Clone(c.File.Listen.Proxy)
	for i := range c.File.Sandboxes {
		if l := c.File.Sandboxes[i].Listen; l != "" {
			all = append(all, l)
		}
	}
	return all
}

// listenerOf returns the listener by which a sandbox can come: its own, or the
// first that has what it is told by, and "" where there is none.
func (c *Config) listenerOf(s *policy.SandboxRules) string {
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
	if i := slices.IndexFunc(c.File.Listen.Proxy, fits); i >= 0 {
		return c.File.Listen.Proxy[i]
	}
	return ""
}

// AsksForUsers reports whether a socket is one that sandboxes with users come
// by: their own, or a shared one.
func (c *Config) AsksForUsers(socket string) bool {
	return slices.ContainsFunc(c.File.Sandboxes, func(s policy.SandboxRules) bool {
		shared := s.Listen == "" && slices.Contains(c.File.Listen.Proxy, socket)
		return len(s.UIDs) > 0 && (s.Listen == socket || shared)
	})
}

// SamePlaces refuses a change of listeners, which are opened at the start only.
// A socket that was one sandbox's must not become everybody's.
func (c *Config) SamePlaces(before *Config) error {
	if !slices.Equal(c.places(), before.places()) {
		return errors.New("the listeners changed; restart egressd to change them")
	}
	if before.File.AsksDocker() && c.File.AsksDocker() && c.EngineSocket() != before.EngineSocket() {
		return errors.New("docker.socket changed; restart egressd to change it")
	}
	return nil
}

// places are the listeners and whose they are.
func (c *Config) places() []string {
	all := slices.Clone(c.File.Listen.Proxy)
	for _, name := range c.File.Listen.Transparent {
		all = append(all, "transparent "+name)
	}
	for _, name := range c.File.Listen.DNS {
		all = append(all, "dns "+name)
	}
	for _, s := range c.File.Sandboxes {
		if s.Listen != "" {
			all = append(all, s.Name+" "+s.Listen)
		}
	}
	if c.File.Listen.Admin != "" {
		all = append(all, "admin "+c.File.Listen.Admin)
	}
	return append(all, c.enterPlaces()...)
}

// EnterNames are the sockets at which networks are handed in, shared ones first.
func (c *Config) EnterNames() []string {
	all := slices.Clone(c.File.Listen.Enter)
	for _, s := range c.File.Sandboxes {
		if s.Enter != "" {
			all = append(all, s.Enter)
		}
	}
	return all
}

// enterPlaces are those and whose they are.
func (c *Config) enterPlaces() (all []string) {
	for _, name := range c.File.Listen.Enter {
		all = append(all, "enter "+name)
	}
	for _, s := range c.File.Sandboxes {
		if s.Enter != "" {
			all = append(all, "enter "+s.Name+" "+s.Enter)
		}
	}
	return all
}

// AsksWhoEnters reports whether a socket is one that sandboxes with users, or containers, hand
// their network in at.
func (c *Config) AsksWhoEnters(socket string) bool {
	return slices.ContainsFunc(c.File.Sandboxes, func(s policy.SandboxRules) bool {
		known := len(s.UIDs) > 0 || s.Docker.Given()
		if s.Enter != "" {
			return s.Enter == socket && known
		}
		return known && slices.Contains(c.File.Listen.Enter, socket)
	})
}

// CaptureAt reads an entry of listen.transparent: its address, and whether what leads
// there is tproxy instead of NAT.
func CaptureAt(name string) (at netip.AddrPort, tproxy bool, err error) {
	text, tproxy := strings.CutPrefix(name, policy.TProxyListener)
	at, err = netip.ParseAddrPort(text)
	return at, tproxy, err
}

// FolderOfSocket is the folder in which a socket of the policy file lies.
func FolderOfSocket(name string) string {
	return filepath.Dir(filepath.Clean(strings.TrimPrefix(name, policy.UnixListener)))
}

// DoorFolders are those in which the sockets lie at which networks are handed in.
func (c *Config) DoorFolders() (all []string) {
	for _, name := range c.EnterNames() {
		all = append(all, FolderOfSocket(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// EngineSocket is the path of the socket of the engine whose containers are sandboxes.
func (c *Config) EngineSocket() string {
	return strings.TrimPrefix(cmp.Or(c.File.Docker.Socket, policy.DefaultDocker), policy.UnixListener)
}
