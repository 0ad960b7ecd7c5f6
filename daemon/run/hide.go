package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
)

// hideFiles notes what a program that shares the user must not see: the logs of
// egressd, the keys of its authority, what its rules add to requests, and what --hide names.
func (r *runner) hideFiles(c *config.Config, runs string) error {
	_ = os.MkdirAll(runs, 0o700) // what another run makes later would not be hidden
	r.hidden, r.cut = []string{runs}, nil
	r.hidden = append(r.hidden, temporaryFolders()...)
	if dir, err := c.AuditDir(); err == nil {
		r.hidden = append(r.hidden, dir)
	}
	if dir, err := c.CADir(); err == nil {
		r.hidden = append(r.hidden, dir)
	}
	if store, err := config.OpenTrustStore(); err == nil {
		_ = os.MkdirAll(string(store), 0o700) // else the program could make it, and trust itself
		r.hidden = append(r.hidden, string(store))
	}
	for _, state := range config.StateFolders() {
		_ = os.MkdirAll(state, 0o700)      // also the one that counts for a run without XDG_STATE_HOME
		r.hidden = append(r.hidden, state) // as a whole: the program could make what is not there yet, such as an authority whose key it knows
	}
	r.hidden = append(r.hidden, "/var/lib/egressd", "/var/lib/private/egressd") // of a service, whose files root could read
	if r.jail.AllUsers() {                                                      // who may then reach sockets that other users make later
		r.hidden = append(r.hidden, runtimeFoldersOfOthers()...)
	}
	r.hideKeys(c, runs)
	r.hideBundles(c)
	if err := r.hideNamedFiles(c); err != nil {
		return err
	}
	for _, s := range c.File.Audit.Sinks {
		if s.Path != "" {
			r.hidden = append(r.hidden, c.Relative(s.Path))
		}
	}
	for _, place := range c.File.Audit.Anchors {
		kind, at, ok := file.CutAnchor(place)
		if !ok || !filepath.IsAbs(at) {
			continue
		}
		if kind == "file" { // else the program could make it
			if f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600); err == nil {
				f.Close()
			}
		}
		r.hidden = append(r.hidden, at)
	}
	for _, i := range c.File.Injections() {
		if i.Inject.Env != "" {
			r.cut = append(r.cut, i.Inject.Env)
		}
	}
	for i := range c.File.Credentials {
		r.cut = append(r.cut, c.File.Credentials[i].Spec.EnvNames()...)
	}
	r.hideAdmin(c)
	if err := r.hideNamed(); err != nil {
		return err
	}
	return r.hideAttachSockets(c)
}

// runtimeFoldersOfOthers are where the services of other users listen.
func runtimeFoldersOfOthers() (folders []string) {
	all, _ := filepath.Glob("/run/user/[0-9]*")
	for _, folder := range all {
		if filepath.Base(folder) != strconv.Itoa(os.Getuid()) {
			folders = append(folders, folder)
		}
	}
	return folders
}

// hideNamed hides what --hide names, which has to be there: what is made later could be
// seen.
func (r *runner) hideNamed() error {
	for _, name := range r.options.Hide {
		path, err := filepath.Abs(name)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return hint.Misused(fmt.Errorf("--hide %s: %w", name, err), "leave out --hide if there is nothing to hide, or give a path that exists")
		}
		if holdsOthers(path) {
			return hint.Misused(fmt.Errorf("--hide %s: programs need that folder", name), "egressd run --fs, and --hide for what lies in it")
		}
		r.hidden = append(r.hidden, path)
	}
	return nil
}

// hideBundles hides what is kept of bundles that are fetched, which the program could
// turn back to older ones, and by what egressd asks for them.
func (r *runner) hideBundles(c *config.Config) {
	sources, _ := c.Sources()
	for _, source := range sources {
		if source.TokenFile != "" {
			r.hidden = append(r.hidden, c.Relative(source.TokenFile))
		}
		if !source.Fetched() {
			continue
		}
		if dir, err := config.BundlesDir(); err == nil && !slices.Contains(r.hidden, dir) {
			_ = os.MkdirAll(dir, 0o700)
			r.hidden = append(r.hidden, dir)
		}
	}
}

// fixed are what the program can read and not change: all that makes the policy, for the next
// run, and for an egressd serve that reads it again. The policy file's folder is among them
// where programs can do without: a file that is replaced there from outside, as editors and
// egressd allow --save do, is no mount any more. A policy file in the working tree may be left alone, see checkPolicyInTree.
func (r *runner) fixed(c *config.Config) []string {
	var all []string
	if !c.NoFile && r.policyEnd == nil {
		if folder := filepath.Dir(c.Path); !holdsOthers(folder) {
			all = append(all, folder)
		}
		all = append(all, c.Path)
	}
	if c.Organisation != nil {
		all = append(all, c.Organisation.Path)
	}
	for _, f := range namedFiles(c) {
		if _, err := os.Stat(f.path); err == nil && !f.secret {
			all = append(all, f.path)
		}
	}
	for _, s := range secretCommands(c) {
		all = append(all, filesOf(s.command)...)
	}
	sources, _ := c.Sources()
	for _, source := range sources {
		paths := []string{source.Path, source.Key, source.CA}
		if !source.Fetched() {
			paths = append(paths, source.Bundle)
		}
		for _, path := range paths {
			if path != "" {
				all = append(all, c.Relative(path))
				all = append(all, linkedFrom(c.Relative(path))...)
			}
		}
	}
	return all
}

// hideAdmin hides the operator's listener, and tokens. Their folders are hidden, since a
// daemon that is started anew makes both anew; where programs need that of the socket, the socket
// alone is: who connects from the sandbox is refused for its network, too.
func (r *runner) hideAdmin(c *config.Config) {
	if tokens, err := config.AdminTokens(); err == nil {
		_ = os.MkdirAll(tokens, 0o700) // as below
		r.hidden = append(r.hidden, tokens)
	}
	socket := c.AdminSocket()
	if socket == "" {
		return
	}
	folder := filepath.Dir(socket)
	if holdsOthers(folder) {
		r.hidden = append(r.hidden, socket)
		return
	}
	_ = daemon.MakeFolder(folder) // what is not there cannot be hidden, and could be made later
	r.hidden = append(r.hidden, folder)
}
