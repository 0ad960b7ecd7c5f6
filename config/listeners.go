package config

import (
	"cmp"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// Listeners returns the TCP listeners that the file lists by address.
func (c *Config) Listeners() []netip.AddrPort {
	texts := slices.Concat(c.File.Listen.Proxy, c.File.Listen.DNS, c.File.Listen.Transparent)
	for _, s := range c.File.Sandboxes {
		texts = append(texts, s.Listen)
	}
	var all []netip.AddrPort
	for _, text := range texts {
		if a, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimPrefix(text, file.TLSListener), file.TProxyListener)); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// OpenListeners returns an error if a listener serves whoever can reach it, see [file.File.OpenListeners].
func (c *Config) OpenListeners() error {
	if open := c.File.OpenListeners(); len(open) > 0 {
		return hint.Misused(policy.FileError(open), "correct "+c.Path+", then egressd policy check")
	}
	return nil
}

// HostAddresses returns the current addresses of this host.
func HostAddresses() ([]netip.Addr, error) {
	w, err := hostaddr.Watch()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.Addrs(), nil
}

// AllListeners returns the listeners of clients that mean to come, shared ones first.
func (c *Config) AllListeners() []string {
	all := slices.Clone(c.File.Listen.Proxy)
	for i := range c.File.Sandboxes {
		if l := c.File.Sandboxes[i].Listen; l != "" {
			all = append(all, l)
		}
	}
	return all
}

// listenerOf returns the listener that a sandbox can use: its own, or the first shared one that can
// identify it. It returns "" if there is none.
func (c *Config) listenerOf(s *file.SandboxRules) string {
	if s.Listen != "" {
		return s.Listen
	}
	if s.Enter != "" && s.TokenFile == "" && len(s.UIDs) == 0 && len(s.Sources) == 0 && s.Certificate == "" {
		return "" // the sandbox only attaches its network
	}
	fits := func(l string) bool {
		unix, tls := strings.HasPrefix(l, file.UnixListener), strings.HasPrefix(l, file.TLSListener)
		return (len(s.UIDs) == 0 || unix) && (len(s.Sources) == 0 && !s.Docker.Given() || !unix) && (s.Certificate == "" || tls)
	}
	if i := slices.IndexFunc(c.File.Listen.Proxy, fits); i >= 0 {
		return c.File.Listen.Proxy[i]
	}
	return ""
}

// AsksForUsers reports whether sandboxes with user ids connect at the socket.
func (c *Config) AsksForUsers(socket string) bool {
	return slices.ContainsFunc(c.File.Sandboxes, func(s file.SandboxRules) bool {
		shared := s.Listen == "" && slices.Contains(c.File.Listen.Proxy, socket)
		return len(s.UIDs) > 0 && (s.Listen == socket || shared)
	})
}

// SameListeners returns an error if the listeners changed, since they are opened only at start. A socket
// of one sandbox must not become shared.
func (c *Config) SameListeners(before *Config) error {
	if unset := c.File.Unset(); len(unset) > 0 {
		return unset
	}
	if !slices.Equal(c.owners(), before.owners()) {
		return hint.Failed(errors.New("the listeners changed; restart egressd to change them"), "restart egressd serve")
	}
	if before.File.AsksDocker() && c.File.AsksDocker() && c.EngineSocket() != before.EngineSocket() {
		return hint.Failed(errors.New("docker.socket changed; restart egressd to change it"), "restart egressd serve")
	}
	return nil
}

// owners returns the listeners with the sandboxes that own them.
func (c *Config) owners() []string {
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
	if c.File.Notify.Answers != "" {
		all = append(all, "answers "+c.File.Notify.Answers)
	}
	if c.File.Metrics.Listen != "" {
		all = append(all, "metrics "+c.File.Metrics.Listen)
	}
	return append(all, c.enterOwners()...)
}

// EnterNames returns the sockets at which networks are attached, shared ones first.
func (c *Config) EnterNames() []string {
	all := slices.Clone(c.File.Listen.Enter)
	for _, s := range c.File.Sandboxes {
		if s.Enter != "" {
			all = append(all, s.Enter)
		}
	}
	return all
}

// enterOwners returns these sockets with the sandboxes that own them.
func (c *Config) enterOwners() (all []string) {
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

// AsksWhoEnters reports whether sandboxes with user ids or containers attach their network at the socket.
func (c *Config) AsksWhoEnters(socket string) bool {
	return slices.ContainsFunc(c.File.Sandboxes, func(s file.SandboxRules) bool {
		known := len(s.UIDs) > 0 || s.Docker.Given()
		if s.Enter != "" {
			return s.Enter == socket && known
		}
		return known && slices.Contains(c.File.Listen.Enter, socket)
	})
}

// CaptureAt parses an entry of listen.transparent: its address, and whether it uses tproxy instead of NAT.
func CaptureAt(name string) (at netip.AddrPort, tproxy bool, err error) {
	text, tproxy := strings.CutPrefix(name, file.TProxyListener)
	at, err = netip.ParseAddrPort(text)
	return at, tproxy, err
}

// FolderOfSocket returns the folder of a socket in the policy file.
func FolderOfSocket(name string) string {
	return filepath.Dir(filepath.Clean(strings.TrimPrefix(name, file.UnixListener)))
}

// EnterFolders returns the folders of the sockets at which networks are attached.
func (c *Config) EnterFolders() (all []string) {
	for _, name := range c.EnterNames() {
		all = append(all, FolderOfSocket(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// EngineSocket returns the path of the container engine's socket.
func (c *Config) EngineSocket() string {
	return strings.TrimPrefix(cmp.Or(c.File.Docker.Socket, file.DefaultDocker), file.UnixListener)
}

// AsksSystem reports whether names are asked for at the name servers of the system.
func (c *Config) AsksSystem() bool { return slices.Contains(c.File.Upstream.DNS, "system") }
