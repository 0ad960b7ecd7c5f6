package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
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
