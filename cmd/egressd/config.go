package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
	"github.com/spf13/cobra"
)

// configName is the file's name in each of the folders where it is looked for.
const configName = "egressd.yaml"

// A config is a policy file as it was found, with its variables expanded.
type config struct {
	path string
	text []byte // as it was read
	file *policy.File

	who []sandbox.Entry // in place of those that the file lists; nil: those

	learn bool // what no rule speaks of passes

	organisation *config    // the organisation's file; nil where there is none
	projects     []*project // of its sandboxes; nil before they are read

	feeds     feeds    // the bundles that are fetched; none outside of the daemon
	lapses    []*lapse // of the bundles that are files, once they are compiled
	unfetched bool     // leave out what was fetched

	rules []*rego.Evaluator // what the file names under rego, in force; none before it is compiled, and where it names nothing
	parts []regoPart        // what each of rules is made of
}

// A noConfigError says that there is no policy file in any of the places.
type noConfigError struct{ places []string }

func (e *noConfigError) Error() string {
	return "there is no policy file; looked for " + strings.Join(e.places, ", ")
}

// loadConfig reads the policy file at path, or where path is empty the first
// that exists of the places where it belongs, and the organisation's wherever it
// exists. Every error says what to type next, and ends the command with exit code 2.
func loadConfig(path string) (*config, error) { return loadConfigUnder(path, organisationPath) }

func loadConfigUnder(path, organisation string) (*config, error) {
	found, err := findConfig(path)
	if err != nil {
		return nil, err
	}
	text, err := readConfig(found)
	if err != nil {
		return nil, cli.Misused(fmt.Errorf("read policy: %w", err), "egressd init --print, for a policy to start from")
	}
	return newConfig(found, text, organisation)
}

// newConfig is what text at path comes to, under the organisation's file.
func newConfig(path string, text []byte, organisation string) (*config, error) {
	c, err := parseConfig(path, text, policy.ParseFile)
	if err != nil {
		return nil, err
	}
	c.organisation, err = loadOrganisation(organisation)
	return c, err
}

func parseConfig(path string, text []byte, parse func(string, []byte) (*policy.File, error)) (*config, error) {
	file, err := parse(path, text)
	if err != nil {
		return nil, cli.Misused(err, "correct "+path+", then egressd check URL")
	}
	if file, err = file.Expand(os.LookupEnv); err != nil {
		return nil, cli.Misused(err, "set the variable, or write the value into "+path)
	}
	return &config{path: path, text: text, file: file}, nil
}

// findConfig returns path, or the first policy file that exists. The working
// directory is not looked at: a sandbox may be able to write there.
func findConfig(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	places := configPlaces()
	for _, p := range places {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, nil // also one that cannot be read: what follows says so
		}
	}
	return "", cli.Misused(&noConfigError{places}, "egressd init")
}

// configPlaces are the paths of the policy file in the order in which they
// are looked for.
func configPlaces() []string {
	return append(userPlaces("XDG_CONFIG_HOME", ".config", configName), filepath.Join("/etc/egressd", configName))
}

// userPlaces are the paths of name in egressd's own folder below one of the
// XDG base directories. A relative base is ignored, as the XDG specification
// has it.
func userPlaces(variable, fallback, name string) []string {
	var places []string
	if base := os.Getenv(variable); filepath.IsAbs(base) {
		places = append(places, filepath.Join(base, "egressd", name))
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		places = append(places, filepath.Join(home, fallback, "egressd", name))
	}
	return slices.Compact(places)
}

// maxConfigBytes is more than a policy file may have.
const maxConfigBytes = 2 << 20

func readConfig(path string) ([]byte, error) {
	return durable.Read(path, maxConfigBytes)
}

// compile makes the policy of this configuration as far as it can be known
// without the daemon: its listeners are those of the file. A red test in the
// file is an error.
func (c *config) compile() (*policy.Policy, error) {
	self, err := hostAddresses()
	if err != nil {
		return nil, cli.Misused(fmt.Errorf("list this host's addresses: %w", err), "egressd check URL, as a user who may")
	}
	listeners := c.listeners()
	return c.compileWith(func() []netip.Addr { return self }, func() []netip.AddrPort { return listeners })
}

// compileWith makes the policy, where self and listeners are as in
// [policy.Environment].
func (c *config) compileWith(self func() []netip.Addr, listeners func() []netip.AddrPort) (*policy.Policy, error) {
	env, err := c.environment(self, listeners)
	if err != nil {
		return nil, err
	}
	p, err := c.file.Compile(env)
	if err != nil {
		return nil, cli.Misused(err, "correct "+fileOf(err, c.path)+", then egressd check URL")
	}
	return p, nil
}

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

// auditDir is where the audit log of this configuration is.
func (c *config) auditDir() (string, error) {
	if dir := c.file.Audit.Dir; dir != "" {
		return c.relative(dir), nil
	}
	return defaultAuditDir()
}

// keyDir is where the keys are that sign the audit logs of this configuration.
func (c *config) keyDir() (string, error) {
	if dir := c.file.Audit.KeyDir; dir != "" {
		return c.relative(dir), nil
	}
	return defaultKeyDir(c.auditDir)
}

// defaultKeyDir is beside the place where the audit log is by default, even where
// the log is elsewhere, which a sandbox may be able to see. Where no folder for
// state is known it is beside the log.
func defaultKeyDir(log func() (string, error)) (string, error) {
	beside, err := defaultAuditDir()
	if err != nil {
		beside, err = log()
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(beside), "log-keys"), nil
}

// defaultAuditDir is where the audit log is when no policy says otherwise:
// in the user's state folder, or in the system's for root.
func defaultAuditDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/audit", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "audit")
	if len(places) == 0 {
		return "", cli.Misused(errors.New("neither XDG_STATE_HOME nor HOME is set"), "egressd log --dir DIR, or set audit.dir in the policy")
	}
	return places[0], nil
}

// relative reads a path that is relative to the folder of the configuration.
func (c *config) relative(path string) string { return beside(c.path, path) }

// beside reads a path that is relative to the folder of a file.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// sandbox returns the sandbox of that name, or a zero one for "" where none
// are listed.
func (c *config) sandbox(name string) (*policy.SandboxRules, error) {
	listed := c.file.Sandboxes
	if len(listed) == 0 && (name == "" || name == sandbox.Default) {
		return &policy.SandboxRules{Name: sandbox.Default}, nil
	}
	if len(listed) == 0 {
		return nil, cli.Misused(fmt.Errorf("%s lists no sandboxes, so there is none called %q", c.path, name), "leave out --sandbox")
	}
	names := make([]string, len(listed))
	for i := range listed {
		if names[i] = listed[i].Name; names[i] == name {
			return &listed[i], nil
		}
	}
	if name == "" {
		return nil, cli.Misused(fmt.Errorf("%s lists sandboxes, and who asks matters", c.path), "--sandbox "+names[0])
	}
	near := spelling.Nearest(name, names)
	if near == "" {
		near = names[0]
	}
	return nil, cli.Misused(fmt.Errorf("there is no sandbox %q in %s; there is %s", name, c.path, strings.Join(names, ", ")), "--sandbox "+near)
}

// proxyOf returns the listener that a sandbox uses, and the token that it has
// to show there, or nil.
func (c *config) proxyOf(name string) (string, *url.Userinfo, error) {
	s, err := c.sandbox(name)
	if err != nil {
		return "", nil, err
	}
	listener := c.listenerOf(s)
	if listener == "" {
		return "", nil, cli.Failed(fmt.Errorf("%s has no proxy listener", c.path), `add listen: {proxy: ["127.0.0.1:3128"]}, or egressd env --listen ADDR`)
	}
	if s.TokenFile == "" {
		return listener, nil, nil
	}
	token, err := c.token(s)
	if err != nil {
		return "", nil, err
	}
	return listener, url.UserPassword(s.Name, token), nil
}

// maxTokenBytes bounds what is read of a token file.
const maxTokenBytes = 4096

// token reads the secret of a sandbox: the content of its file without the
// newline at its end.
func (c *config) token(s *policy.SandboxRules) (string, error) {
	path := c.relative(s.TokenFile)
	text, err := durable.Read(path, maxTokenBytes)
	if err != nil {
		return "", cli.Failed(fmt.Errorf("token of sandbox %s: %w", s.Name, err), "head -c 24 /dev/urandom | base64 > "+path)
	}
	token := strings.TrimRight(string(text), "\r\n")
	if token == "" {
		return "", cli.Failed(fmt.Errorf("token of sandbox %s: %s holds none", s.Name, path), "head -c 24 /dev/urandom | base64 > "+path)
	}
	return token, nil
}

// completeSandboxes offers the sandboxes of the policy.
func completeSandboxes(path *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		cfg, err := loadConfig(*path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, s := range cfg.file.Sandboxes {
			names = append(names, s.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
