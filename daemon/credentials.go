package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// credentials are what the rules of one policy add to requests.
type credentials struct {
	digest string
	all    []*credential
	over   time.Time // when another took its place; guarded by the keyring
}

// A credential is one rule's, as it was last read.
type credential struct {
	policy.Injection
	now    atomic.Pointer[secret.Secret]
	before atomic.Pointer[secret.Secret] // the one that now took the place of, or nil
}

// A keyring holds the credentials of the policy in force, and while another is
// being put in force, of both. It is safe for concurrent use.
type keyring struct {
	mu      sync.Mutex                                   // held while held is changed
	held    atomic.Pointer[[]*credentials]               // the newest first
	strikes atomic.Pointer[map[string]*secret.Redaction] // of what is held, by host
	refresh sync.WaitGroup
	stop    context.CancelFunc // of what reads the newest again
	forget  *time.Timer        // of the ones before
}

const (
	commandMost = 10 * time.Second
	decidedMost = 10 * time.Second // between a decision and its request, generously
)

// find returns what the rule adds to a request for dst, by the policy with
// that digest: an id of one policy may be another rule's in the next.
func (k *keyring) find(rule, digest string, dst policy.Destination) *secret.Secret {
	held := k.held.Load()
	if held == nil {
		return nil
	}
	for _, set := range *held {
		if set.digest != digest {
			continue
		}
		for _, c := range set.all {
			if c.Rule == rule && c.Covers(dst) {
				return c.now.Load()
			}
		}
	}
	return nil
}

// redaction returns what strikes all credentials that are held for a host out of its
// responses, or nil where there are none. The ports of their rules do not matter.
func (k *keyring) redaction(dst policy.Destination) *secret.Redaction {
	if by := k.strikes.Load(); by != nil {
		return (*by)[dst.Host]
	}
	return nil
}

// hold has held be what is held from now on. k.mu is held.
func (k *keyring) hold(held []*credentials) {
	k.held.Store(&held)
	secrets := map[string][]*secret.Secret{}
	for _, set := range held {
		for _, c := range set.all {
			host := c.Host()
			for _, s := range []*secret.Secret{c.now.Load(), c.before.Load()} {
				if s != nil && !slices.Contains(secrets[host], s) {
					secrets[host] = append(secrets[host], s)
				}
			}
		}
	}
	strikes := make(map[string]*secret.Redaction, len(secrets))
	for host, all := range secrets {
		strikes[host] = secret.Redact(all...)
	}
	k.strikes.Store(&strikes)
}

// renewed takes note of a credential that was read again.
func (k *keyring) renewed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold(*k.held.Load())
}

// add makes set available beside what is held.
func (k *keyring) add(set *credentials) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := []*credentials{set}
	if before := k.held.Load(); before != nil {
		held = append(held, *before...)
	}
	k.hold(held)
}

// drop takes set back, whose policy was not put in force.
func (k *keyring) drop(set *credentials) {
	k.without(func(s *credentials) bool { return s == set })
}

// without forgets the sets that are gone.
func (k *keyring) without(gone func(*credentials) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold(slices.DeleteFunc(slices.Clone(*k.held.Load()), gone))
}

// keep refreshes the credentials of set as its rules say, and forgets the other sets after a while: a request that was
// decided a moment ago still needs them. complain gets the errors of refreshes.
func (k *keyring) keep(set *credentials, c *config.Config, complain func(error)) {
	k.close()
	k.replace(set)
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	for _, one := range set.all {
		if one.Inject.Refresh > 0 {
			k.refresh.Go(func() { one.follow(ctx, c, k.renewed, complain) })
		}
	}
}

// replace forgets all sets but set after a while. Credentials that are refreshed stay so.
func (k *keyring) replace(set *credentials) {
	k.tidy(set)
	if k.forget != nil {
		k.forget.Stop()
	}
	k.forget = time.AfterFunc(decidedMost, func() { // whatever was added in between, and taken back
		now := time.Now()
		k.without(func(s *credentials) bool { return s.isOver(now) })
	})
}

// forPolicy makes a set for the policy with the given digest from that of the policy before, which
// has the same rules for credentials. Both sets share each credential and its refresh.
func (k *keyring) forPolicy(before, digest string) *credentials {
	set := &credentials{digest: digest}
	if held := k.held.Load(); held != nil {
		if i := slices.IndexFunc(*held, func(s *credentials) bool { return s.digest == before }); i >= 0 {
			set.all = (*held)[i].all
		}
	}
	return set
}

// tidy forgets what was replaced a while ago, however often there are other policies, and the
// set before of the same policy.
func (k *keyring) tidy(set *credentials) {
	now, digests := time.Now(), map[string]bool{}
	k.without(func(s *credentials) bool {
		again := digests[s.digest]
		digests[s.digest] = true
		if s != set && s.over.IsZero() {
			s.over = now
		}
		return again || s.isOver(now)
	})
}

// isOver reports whether nothing that was decided by the set's policy can need it any more.
func (s *credentials) isOver(now time.Time) bool {
	return !s.over.IsZero() && now.Sub(s.over) >= decidedMost
}

// close ends what reads credentials again.
func (k *keyring) close() {
	if k.stop != nil {
		k.stop()
		k.forget.Stop()
	}
	k.refresh.Wait()
}

// follow reads the credential again and again until ctx is done, and calls renewed
// each time. One that cannot be read leaves the one before in place.
func (one *credential) follow(ctx context.Context, c *config.Config, renewed func(), complain func(error)) {
	again := time.NewTicker(one.Inject.Refresh)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		switch err := one.read(ctx, c); {
		case err == nil:
			renewed()
		case ctx.Err() == nil:
			complain(err)
		}
	}
}

// readCredentials reads every credential of the file, all at a time.
func readCredentials(ctx context.Context, c *config.Config, digest string) (*credentials, error) {
	set := &credentials{digest: digest}
	for _, in := range c.File.Injections() {
		set.all = append(set.all, &credential{Injection: in})
	}
	failures := make([]error, len(set.all))
	var reading sync.WaitGroup
	for i, one := range set.all {
		reading.Go(func() { failures[i] = one.read(ctx, c) })
	}
	reading.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, hint.Misused(err, "correct inject in "+c.Path)
	}
	return set, nil
}

// read fills in what the rule adds now. The error holds no part of it.
func (one *credential) read(ctx context.Context, c *config.Config) error {
	text, err := secretText(ctx, c, &one.Inject)
	if err != nil {
		return fmt.Errorf("credential of rule %s: %w", one.Rule, err)
	}
	in := one.Inject
	s, err := secret.New(secret.Options{Header: in.Header, Value: in.Value, Placeholder: in.Placeholder, Text: text})
	if err != nil {
		return fmt.Errorf("credential of rule %s: %w", one.Rule, err)
	}
	if now := one.now.Load(); now == nil || !now.Same(s) {
		one.before.Store(now)
		one.now.Store(s)
	}
	return nil
}

func secretText(ctx context.Context, c *config.Config, in *policy.Inject) ([]byte, error) {
	switch {
	case in.File != "":
		f, err := os.Open(c.Relative(in.File))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, 2*config.MaxTokenBytes+1))
	case in.Env != "":
		text, set := os.LookupEnv(in.Env)
		if !set {
			return nil, fmt.Errorf("the variable %s is not set", in.Env)
		}
		return []byte(text), nil
	default:
		return commandOutput(ctx, in.Command)
	}
}

// commandOutput returns the standard output of a command. Standard error is discarded, since it may hold the
// credential.
func commandOutput(ctx context.Context, command []string) ([]byte, error) {
	if len(command) == 0 {
		return nil, errors.New("neither file, env nor command is given")
	}
	ctx, cancel := context.WithTimeout(ctx, commandMost)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], slices.Clone(command[1:])...)
	cmd.Dir = "/" // a working tree has settings that git and others execute
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s did not end within %s", command[0], commandMost)
		}
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return out.Bytes(), nil
}

const maxCanaryBytes = 4 << 10

// readCanaries reads the texts that nothing may send; nil where there are none.
func readCanaries(c *config.Config) (*secret.Canaries, error) {
	if len(c.File.Canaries) == 0 {
		return nil, nil
	}
	var all []secret.Canary
	for _, one := range c.File.Canaries {
		path := c.Relative(one.File)
		text, err := readPrivate(path)
		if err != nil {
			return nil, fmt.Errorf("canary %s: %w", one.Name, err)
		}
		all = append(all, secret.Canary{Name: one.Name, Text: text})
	}
	found, err := secret.NewCanaries(all)
	if err != nil {
		return nil, hint.Misused(err, "correct canaries in "+c.Path+", and the files that it names")
	}
	return found, nil
}

// readPrivate reads a small file that nobody else may read: who can read a canary can
// leave it out.
func readPrivate(path string) ([]byte, error) {
	text, err := durable.Read(path, maxCanaryBytes)
	if err != nil {
		return nil, hint.Failed(err, "write the text into "+path+", with mode 0600")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, hint.Failed(fmt.Errorf("%s can be read by others than its owner", path), "chmod 600 "+path)
	}
	return text, nil
}
