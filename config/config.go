// Package config finds and reads the configuration: the policy file, the organisation's file, their Rego,
// and the trusted projects of sandboxes. It determines the paths of the log and keys, the listeners and
// the sandboxes, and compiles the policy. It opens no listener and contacts only the servers of bundles,
// in [Config.Fetch].
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
)

// FileName is the name of the policy file in each folder of the search path.
const FileName = "egressd.yaml"

// A Config is a policy file with expanded variables.
type Config struct {
	Path string
	Text []byte // as read
	File *file.File

	Who []sandbox.Entry // replaces the sandboxes of the file unless nil

	Learn bool // let pass what no rule mentions

	// Patient is for commands that answer a person: an evaluation of Rego may take five seconds of processor
	// time, so that a busy machine does not make the answer a failure.
	Patient bool

	NoFile bool     // there is none at Path, and Text allows nothing
	Added  []string // rules of the command line, which are in File and not in Text; the digest covers them

	// AdminListeners returns the addresses of the operator's listener. If it is nil, those of the file apply.
	AdminListeners func() []netip.AddrPort

	// UpstreamAt is as in [policy.BaselineOptions].
	UpstreamAt func() []netip.AddrPort

	Organisation *Config    // the organisation's file, or nil
	Projects     []*Project // projects of the sandboxes; nil until they are read

	Feeds     Feeds    // fetched bundles; nil outside the daemon
	Lapses    []*Lapse // expiries of bundle files; set by compilation
	unfetched bool     // leave out fetched bundles

	Rules []*rego.Evaluator // Rego in force; set by compilation
	Parts []RegoPart        // sources of Rules, index by index

	HostLists []policy.ListedHosts // the files of allow_file and deny_file; set by compilation

	env  *file.Environment // compiled environment; nil before
	read []RegoPart        // compiled parts, including shadow
	kept []RegoPart        // compile these parts and read only fetched bundles; nil to read all
}

// A NotFoundError says that no path of the search path has a policy file.
type NotFoundError struct{ paths []string }

func (e *NotFoundError) Error() string {
	return "there is no policy file; looked for " + strings.Join(e.paths, ", ")
}

// Load reads the policy file at path. If path is empty, it reads the first existing file of the search
// path. It also reads the organisation's file if that exists. Every error has a hint and exit code 2.
func Load(path string) (*Config, error) { return LoadUnder(path, OrganisationPath) }

// Beginning says what to type if the policy file at path cannot be read.
func Beginning(path string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "egressd init --config " + shell.Word(path) + ", which writes a policy to start from; or correct the path"
	}
	return "egressd init --print, for a policy to start from"
}

// LoadUnder is like [Load] with another path of the organisation's file.
func LoadUnder(path, organisation string) (*Config, error) {
	found, err := Find(path)
	if err != nil {
		return nil, err
	}
	text, err := Read(found)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read policy: %w", err), Beginning(found, err))
	}
	return New(found, text, organisation)
}

// Places reads only where egressd listens and where its log is. It succeeds if another part of the policy file is wrong.
// If it cannot read these either, it returns the error of [Load].
func Places(path string) (*Config, error) {
	c, err := Load(path)
	if err == nil {
		return c, nil
	}
	found, missing := Find(path)
	if missing != nil {
		return nil, err
	}
	text, unread := Read(found)
	if unread != nil {
		return nil, err
	}
	if c, wrong := parseConfig(found, text, file.ParsePlaces); wrong == nil {
		return c, nil
	}
	return nil, err
}

// New parses text as the policy file at path, under the organisation's file.
func New(path string, text []byte, organisation string) (*Config, error) {
	c, err := parseConfig(path, text, file.Parse)
	if err != nil {
		return nil, err
	}
	if c.Organisation, err = loadOrganisation(organisation); err != nil {
		return c, err
	}
	return c, c.addSinks()
}

func parseConfig(path string, text []byte, parse func(string, []byte) (*file.File, error)) (*Config, error) {
	file, err := parse(path, text)
	if err != nil {
		return nil, hint.Misused(err, "correct "+path+", then egressd check URL")
	}
	if file, err = file.Expand(lookupVariable); err != nil {
		return nil, hint.Misused(err, "set the variable, or write the value into "+path)
	}
	return &Config{Path: path, Text: text, File: file}, nil
}

// maxConfigBytes is the maximum size of a policy file.
const maxConfigBytes = 2 << 20

// Read reads a complete policy file.
func Read(path string) ([]byte, error) {
	return durable.Read(path, maxConfigBytes)
}

// Compile compiles the policy without a daemon; the listeners are those of the file. A failing test of the
// file is an error.
func (c *Config) Compile() (*policy.Policy, error) {
	self, err := hostAddresses()
	if err != nil {
		return nil, err
	}
	listeners := c.Listeners()
	return c.CompileWith(self, func() []netip.AddrPort { return listeners })
}

// hostAddresses returns a function for the addresses that this host has now.
func hostAddresses() (func() []netip.Addr, error) {
	self, err := HostAddresses()
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("list this host's addresses: %w", err), "egressd check URL, as a user who may")
	}
	return func() []netip.Addr { return self }, nil
}

// CompileWith compiles the policy. The functions self and listeners are those of [file.Environment].
func (c *Config) CompileWith(self func() []netip.Addr, listeners func() []netip.AddrPort) (*policy.Policy, error) {
	env, err := c.Environment(self, listeners)
	if err != nil {
		return nil, err
	}
	for _, rule := range c.Added {
		env.Texts = append(env.Texts, []byte(rule))
	}
	p, err := c.File.Compile(env)
	if err == nil {
		if problems := c.File.Unasked(p); len(problems) > 0 {
			err = problems
		}
	}
	if err != nil {
		return nil, hint.Misused(err, "correct "+fileOf(err, c.Path)+", then egressd check URL")
	}
	c.env = &env
	return p, nil
}

// Renewed returns a copy of a compiled configuration that is compiled with the current bundles of its
// feeds. It reads no other file again, since a sandbox may have changed one.
func (c *Config) Renewed() *Config {
	next := *c
	next.kept = c.read
	return &next
}

// Granting compiles the policy again with temporary rules beside those of the file. It reads no file. The
// configuration must be compiled.
func (c *Config) Granting(grants []policy.Grant) (*policy.Policy, error) {
	if c.env == nil {
		return nil, errors.New("the policy has not been compiled")
	}
	env := *c.env
	env.Grants = grants
	return c.File.Compile(env)
}

// A Rejection is the last policy change that was refused, as commands and the operator's API show it.
type Rejection struct {
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	Current bool      `json:"current"` // no later change was put in force
}

// ExtraRoots reads the authorities that upstreams may have beside the system's, file by file.
func (c *Config) ExtraRoots() (all [][]byte, err error) {
	for _, path := range c.File.TLS.ExtraRoots {
		text, err := os.ReadFile(c.Relative(path))
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("tls.extra_roots: %w", err), "correct tls.extra_roots in "+c.Path)
		}
		all = append(all, text)
	}
	return all, nil
}

// starter is the policy that egressd init writes.
//
//go:embed starter.yaml
var starter string

// Starter returns the text of the starter policy.
func Starter() []byte { return []byte(starter) }

// blank is a policy that allows nothing.
const blank = `# What a sandbox may reach. What no line allows is denied and recorded.
# For coding agents: egressd init --print
version: 1
`

// Blank returns the text of a policy that allows nothing, for commands that add the first line.
func Blank() []byte { return []byte(blank) }

// WithoutFile returns [Blank] as if it were the user's policy file, under the organisation's file.
func WithoutFile(organisation string) (*Config, error) {
	c, err := New(SearchPath()[0], Blank(), organisation)
	if err == nil {
		c.NoFile = true
	}
	return c, err
}
