package config

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
)

// Sandbox returns the sandbox with that name, which may be one of a template. If the file lists none, it returns
// the default sandbox for "".
func (c *Config) Sandbox(name string) (*file.SandboxRules, error) {
	listed := c.File.Sandboxes
	if len(listed) == 0 && (name == "" || name == sandbox.Default) {
		return &file.SandboxRules{Name: sandbox.Default}, nil
	}
	if len(listed) == 0 {
		return nil, hint.Misused(fmt.Errorf("%s lists no sandboxes, so there is none called %q", c.Path, name), "leave out --sandbox")
	}
	if s := c.EntryFor(name); s != nil {
		return oneOf(s, name), nil
	}
	names := make([]string, len(listed))
	for i := range listed {
		names[i] = listed[i].Name
	}
	if name == "" {
		return nil, hint.Misused(fmt.Errorf("%s lists sandboxes, and who asks matters", c.Path), "--sandbox "+names[0])
	}
	near := spelling.Nearest(name, names)
	if near == "" {
		near = names[0]
	}
	return nil, hint.Misused(fmt.Errorf("there is no sandbox %q in %s; there is %s", name, c.Path, strings.Join(names, ", ")), "--sandbox "+near)
}

// EntryFor returns the entry for a sandbox: its own, or that of its template. It returns nil if there is none.
func (c *Config) EntryFor(name string) *file.SandboxRules {
	i := slices.IndexFunc(c.File.Sandboxes, func(s file.SandboxRules) bool {
		t, _ := policy.ParseTemplate(s.Name)
		_, fits := t.ID(name)
		return fits || s.Name == name
	})
	if i < 0 {
		return nil
	}
	return &c.File.Sandboxes[i]
}

// AddSandboxes adds the sandboxes of c to those to compare policies for. Of a template it adds one. A configuration without a list has the sandbox "default".
func (c *Config) AddSandboxes(all []policy.Sandbox) []policy.Sandbox {
	var own []policy.Sandbox
	for i := range c.File.Sandboxes {
		one := EntryOf(&c.File.Sandboxes[i]).Sandbox()
		if t, ok := policy.ParseTemplate(one.Name); ok {
			one.Name, one.Template = t.Name("any"), one.Name
		}
		own = append(own, one)
	}
	if len(own) == 0 {
		own = []policy.Sandbox{{Name: sandbox.Default}}
	}
	for _, one := range own {
		if !slices.ContainsFunc(all, func(known policy.Sandbox) bool { return known.Name == one.Name }) {
			all = append(all, one)
		}
	}
	return all
}

// oneOf returns the entry of a template as that of one of its sandboxes. Every other entry is returned as it is.
func oneOf(s *file.SandboxRules, name string) *file.SandboxRules {
	t, _ := policy.ParseTemplate(s.Name)
	id, ok := t.ID(name)
	if !ok {
		return s
	}
	one := *s
	user, _ := policy.ParseTemplate(s.ProxyUser())
	one.Name, one.User = name, user.Name(id)
	return &one
}

// ProxyAt is like [Config.ProxyOf] for the configuration at path. A listen address overrides the result.
// With listen and without a sandbox no configuration is read.
func ProxyAt(path, listen, sandbox string) (string, *url.Userinfo, error) {
	if listen != "" && sandbox == "" {
		return listen, nil, nil
	}
	cfg, err := Load(path)
	if err != nil {
		return "", nil, err
	}
	listener, user, err := cfg.ProxyOf(sandbox)
	if err != nil {
		return "", nil, err
	}
	if listen != "" {
		listener = listen
	}
	return listener, user, nil
}

// ProxyOf returns the listener of a sandbox and its token, or nil if it has no token.
func (c *Config) ProxyOf(name string) (string, *url.Userinfo, error) {
	s, err := c.Sandbox(name)
	if err != nil {
		return "", nil, err
	}
	if policy.IsTemplate(s.Name) {
		return "", nil, hint.Misused(fmt.Errorf("%s is a template, which names many sandboxes", s.Name), "--sandbox "+strings.Replace(s.Name, "{id}", "ID", 1)+", with an id")
	}
	listener := c.listenerOf(s)
	if listener == "" {
		return "", nil, hint.Failed(fmt.Errorf("%s has no proxy listener", c.Path), `add listen: {proxy: ["127.0.0.1:3128"]}, or egressd env --listen ADDR`)
	}
	if s.TokenFile == "" {
		return listener, nil, nil
	}
	token, err := c.token(s)
	if err != nil {
		return "", nil, err
	}
	return listener, url.UserPassword(s.ProxyUser(), token), nil
}

// MaxTokenBytes is the maximum size of a token file.
const MaxTokenBytes = 4096

// token reads the token of a sandbox: the contents of its file without the final newline.
func (c *Config) token(s *file.SandboxRules) (string, error) {
	path := c.Relative(s.TokenFile)
	text, err := durable.Read(path, MaxTokenBytes)
	if err != nil {
		return "", hint.Failed(fmt.Errorf("token of sandbox %s: %w", s.Name, err), "head -c 24 /dev/urandom | base64 > "+path)
	}
	token := strings.TrimRight(string(text), "\r\n")
	if token == "" {
		return "", hint.Failed(fmt.Errorf("token of sandbox %s: %s holds none", s.Name, path), "head -c 24 /dev/urandom | base64 > "+path)
	}
	return token, nil
}

// EntryOf returns the entry that identifies the sandbox. Its Token is the file name until [Config.Entries]
// reads the file.
func EntryOf(s *file.SandboxRules) *sandbox.Entry {
	return &sandbox.Entry{
		Name: s.Name, User: s.User, Token: s.TokenFile, Listener: s.Listen, Enter: s.Enter,
		UIDs: s.UIDs, Sources: s.Sources, Certificate: s.Certificate, Docker: s.Docker,
	}
}

// overflowUID is the uid that the kernel shows for users outside the user namespace (user_namespaces(7)).
const overflowUID = 65534

// checkUsers refuses a uid that can stand for any user.
func (c *Config) checkUsers() error {
	for i := range c.File.Sandboxes {
		s := &c.File.Sandboxes[i]
		if !slices.Contains(s.UIDs, overflowUID) {
			continue
		}
		text, err := os.ReadFile("/proc/self/uid_map")
		if err != nil || !mapsEveryone(string(text)) {
			err := fmt.Errorf("sandbox %s: egressd runs in a user namespace, in which uid %d is every user that has no number there", s.Name, overflowUID)
			return hint.Misused(err, "give the program another user, or run egressd outside of the namespace")
		}
	}
	return nil
}

// mapsEveryone reports whether a user namespace with that uid_map maps every user.
func mapsEveryone(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

// Entries returns the sandboxes of the file with their tokens.
func (c *Config) Entries() ([]sandbox.Entry, error) {
	if c.Who != nil {
		return c.Who, nil
	}
	if err := c.checkUsers(); err != nil {
		return nil, err
	}
	var all []sandbox.Entry
	for i := range c.File.Sandboxes {
		s := &c.File.Sandboxes[i]
		e := EntryOf(s)
		if s.TokenFile != "" {
			token, err := c.token(s)
			if err != nil {
				return nil, err
			}
			e.Token = token
		}
		all = append(all, *e)
	}
	return all, nil
}
