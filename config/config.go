// Package config finds and reads the configuration: the policy file, the organisation's
// above it, what they name under rego, the projects of sandboxes and what somebody
// trusted of them. It says where the log, the keys and the rest are, who listens and who
// asks, and compiles the policy. It opens no listener and asks no server but those of
// bundles, and that only where it is told to ([Config.Fetch]).
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
)

// FileName is the file's name in each of the folders where it is looked for.
const FileName = "egressd.yaml"

// A Config is a policy file as it was found, with its variables expanded.
type Config struct {
	Path string
	Text []byte // as it was read
	File *policy.File

	Who []sandbox.Entry // in place of those that the file lists; nil: those

	Learn bool // what no rule speaks of passes

	// Operator returns where the operator's listener is; nil: where the file says.
	Operator func() []netip.AddrPort

	Organisation *Config    // the organisation's file; nil where there is none
	Projects     []*Project // of its sandboxes; nil before they are read

	Feeds     Feeds    // the bundles that are fetched; none outside of the daemon
	Lapses    []*Lapse // of the bundles that are files, once they are compiled
	unfetched bool     // leave out what was fetched

	Rules []*rego.Evaluator // what the file names under rego, in force; none before it is compiled, and where it names nothing
	Parts []RegoPart        // what each of rules is made of

	env  *policy.Environment // of which the policy was compiled; nil before
	read []RegoPart          // that it was compiled of, those in shadow too
	kept []RegoPart          // compile these, and read only what was fetched; nil: read all
}

// A NotFoundError says that there is no policy file in any of the places.
type NotFoundError struct{ places []string }

func (e *NotFoundError) Error() string {
	return "there is no policy file; looked for " + strings.Join(e.places, ", ")
}

// Load reads the policy file at path, or where path is empty the first
// that exists of the places where it belongs, and the organisation's wherever it
// exists. Every error says what to type next, and ends the command with exit code 2.
func Load(path string) (*Config, error) { return LoadUnder(path, OrganisationPath) }

// LoadUnder is [Load] with the organisation's file at another path.
func LoadUnder(path, organisation string) (*Config, error) {
	found, err := Find(path)
	if err != nil {
		return nil, err
	}
	text, err := Read(found)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read policy: %w", err), "egressd init --print, for a policy to start from")
	}
	return New(found, text, organisation)
}

// New is what text at path comes to, under the organisation's file.
func New(path string, text []byte, organisation string) (*Config, error) {
	c, err := parseConfig(path, text, policy.ParseFile)
	if err != nil {
		return nil, err
	}
	c.Organisation, err = loadOrganisation(organisation)
	return c, err
}

func parseConfig(path string, text []byte, parse func(string, []byte) (*policy.File, error)) (*Config, error) {
	file, err := parse(path, text)
	if err != nil {
		return nil, hint.Misused(err, "correct "+path+", then egressd check URL")
	}
	if file, err = file.Expand(os.LookupEnv); err != nil {
		return nil, hint.Misused(err, "set the variable, or write the value into "+path)
	}
	return &Config{Path: path, Text: text, File: file}, nil
}

// maxConfigBytes is more than a policy file may have.
const maxConfigBytes = 2 << 20

// Read reads a policy file whole, or not at all.
func Read(path string) ([]byte, error) {
	return durable.Read(path, maxConfigBytes)
}

// Compile makes the policy of this configuration as far as it can be known
// without the daemon: its listeners are those of the file. A red test in the
// file is an error.
func (c *Config) Compile() (*policy.Policy, error) {
	self, err := HostAddresses()
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("list this host's addresses: %w", err), "egressd check URL, as a user who may")
	}
	listeners := c.Listeners()
	return c.CompileWith(func() []netip.Addr { return self }, func() []netip.AddrPort { return listeners })
}

// CompileWith makes the policy, where self and listeners are as in
// [policy.Environment].
func (c *Config) CompileWith(self func() []netip.Addr, listeners func() []netip.AddrPort) (*policy.Policy, error) {
	env, err := c.Environment(self, listeners)
	if err != nil {
		return nil, err
	}
	p, err := c.File.Compile(env)
	if err != nil {
		return nil, hint.Misused(err, "correct "+fileOf(err, c.Path)+", then egressd check URL")
	}
	c.env = &env
	return p, nil
}

// Renewed returns a copy of a configuration that has been compiled, to be compiled with the
// bundles that its feeds have now. It reads no file again: a sandbox may have changed one.
func (c *Config) Renewed() *Config {
	next := *c
	next.kept = c.read
	return &next
}

// Granting makes the policy of a configuration that has been compiled once more, with lines
// that count beside those of its file for a while. It reads nothing: what has changed on disk
// since is not in it.
func (c *Config) Granting(grants []policy.Grant) (*policy.Policy, error) {
	if c.env == nil {
		return nil, errors.New("the policy has not been compiled")
	}
	env := *c.env
	env.Grants = grants
	return c.File.Compile(env)
}
