package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// policyKeys are what the rules of one policy add to requests.
type policyKeys struct {
	digest string
	set    *credentials.Set
	rules  []policy.Injection
	over   time.Time // when another took its place; guarded by the keyring
}

// A keyring holds the credentials of the policy in force, and while another is
// being put in force, of both. It is safe for concurrent use.
type keyring struct {
	mu      sync.Mutex                    // held while held is changed
	held    atomic.Pointer[[]*policyKeys] // the newest first
	strikes atomic.Pointer[strikes]       // of what is held
	refresh sync.WaitGroup
	stop    context.CancelFunc // of what reads the newest again
	forget  *time.Timer        // of the ones before
}

// strikes strike the credentials out of responses, by host. The key of what goes to all hosts with one end begins with a dot.
type strikes map[string]strike

// A strike is what is struck out of the responses of a host. whole: one of the secrets travels in requests.
type strike struct {
	of    *secret.Redaction
	whole bool
}

const decidedMost = 10 * time.Second // between a decision and its request, generously

// apply puts what the rule adds into a request for dst, by the policy with that digest: an id of one policy may be
// another rule's in the next.
func (k *keyring) apply(digest string, dst policy.Destination, r *credentials.Request) credentials.Answer {
	held := k.held.Load()
	if held == nil {
		return (*credentials.Set)(nil).Apply(r)
	}
	for _, keys := range *held {
		if keys.digest == digest {
			return keys.apply(dst, r)
		}
	}
	if r.Rule == "" {
		return (*held)[0].set.Apply(r)
	}
	return credentials.Answer{Refused: "the policy that decided the request is no longer in force", Unavailable: true}
}

// apply refuses a request whose rule has no credential for dst: Rego can name a rule for another host.
func (s *policyKeys) apply(dst policy.Destination, r *credentials.Request) credentials.Answer {
	at := slices.IndexFunc(s.rules, func(in policy.Injection) bool { return in.Rule == r.Rule && in.Covers(dst) })
	if r.Rule != "" && !r.Clear && at < 0 {
		return credentials.Answer{Refused: "the credential that the rule adds cannot be had now", Unavailable: true}
	}
	if r.Named && (r.Rule == "" || at < 0 || !s.rules[at].LFS) {
		of := *r
		of.Named, r = false, &of
	}
	return s.set.Apply(r)
}

// variables are what a sandbox is to have in its environment.
func (k *keyring) variables(sandbox string) (all []credentials.Variable, missing []string) {
	held := k.held.Load()
	if held == nil || len(*held) == 0 {
		return nil, nil
	}
	return (*held)[0].set.Variables(sandbox)
}

// redaction returns what strikes the credentials of a host out of its responses, or nil if egressd holds none for it. whole
// says that egressd has to search all of a response. The ports of the rules do not matter.
func (k *keyring) redaction(dst policy.Destination) (r *secret.Redaction, whole bool) {
	by := k.strikes.Load()
	if by == nil {
		return nil, false
	}
	host := dst.Host
	for {
		if n, ok := (*by)[host]; ok {
			return n.of, n.whole
		}
		dot := strings.IndexByte(host[min(1, len(host)):], '.')
		if dot < 0 {
			return nil, false
		}
		host = host[dot+1:]
	}
}

// hold has held be what is held from now on. k.mu is held.
func (k *keyring) hold(held []*policyKeys) {
	k.held.Store(&held)
	secrets, whole := map[string][]*secret.Secret{}, map[string]bool{}
	for _, keys := range held {
		for _, c := range keys.set.All() {
			hosts := c.Hosts()
			if c.Plain != nil {
				hosts = []string{c.Plain.Host}
			}
			for _, host := range hosts {
				whole[host] = whole[host] || c.Travels()
				for _, s := range c.Secrets() {
					if !slices.Contains(secrets[host], s) {
						secrets[host] = append(secrets[host], s)
					}
				}
			}
		}
	}
	by := make(strikes, len(secrets))
	for host, all := range secrets {
		by[host] = strike{secret.Redact(all...), whole[host]}
	}
	k.strikes.Store(&by)
}

// renewed takes note of a credential that was read again.
func (k *keyring) renewed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold(*k.held.Load())
}

// add makes set available beside what is held.
func (k *keyring) add(set *policyKeys) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := []*policyKeys{set}
	if before := k.held.Load(); before != nil {
		held = append(held, *before...)
	}
	k.hold(held)
}

// drop takes set back, whose policy was not put in force.
func (k *keyring) drop(set *policyKeys) {
	k.without(func(s *policyKeys) bool { return s == set })
}

// without forgets the sets that are gone.
func (k *keyring) without(gone func(*policyKeys) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold(slices.DeleteFunc(slices.Clone(*k.held.Load()), gone))
}

// keep refreshes the credentials of set as its rules say, and forgets the other sets after a while: a request that was
// decided a moment ago still needs them. complain gets the errors of refreshes. once keeps what the files did not ask
// to have read again.
func (k *keyring) keep(set *policyKeys, once bool, complain func(error)) {
	k.close()
	k.replace(set)
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	for _, one := range set.set.All() {
		if one.Next() > 0 && (!once || one.From.Refresh > 0) {
			k.refresh.Go(func() { follow(ctx, one, k.renewed, complain) })
		}
	}
}

// replace forgets all sets but set after a while. Credentials that are refreshed stay so.
func (k *keyring) replace(set *policyKeys) {
	k.tidy(set)
	if k.forget != nil {
		k.forget.Stop()
	}
	k.forget = time.AfterFunc(decidedMost, func() { // whatever was added in between, and taken back
		now := time.Now()
		k.without(func(s *policyKeys) bool { return s.isOver(now) })
	})
}

// forPolicy makes a set for the policy with the given digest from that of the policy before, which
// has the same rules for credentials. Both sets share each credential and its refresh.
func (k *keyring) forPolicy(before, digest string) *policyKeys {
	keys := &policyKeys{digest: digest, set: credentials.NewSet(credentials.Key{}, nil)}
	if held := k.held.Load(); held != nil {
		if i := slices.IndexFunc(*held, func(s *policyKeys) bool { return s.digest == before }); i >= 0 {
			keys.set, keys.rules = (*held)[i].set, (*held)[i].rules
		}
	}
	return keys
}

// tidy forgets what was replaced a while ago, however often there are other policies, and the
// set before of the same policy.
func (k *keyring) tidy(set *policyKeys) {
	now, digests := time.Now(), map[string]bool{}
	k.without(func(s *policyKeys) bool {
		again := digests[s.digest]
		digests[s.digest] = true
		if s != set && s.over.IsZero() {
			s.over = now
		}
		return again || s.isOver(now)
	})
}

// isOver reports whether nothing that was decided by the set's policy can need it any more.
func (s *policyKeys) isOver(now time.Time) bool {
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
func follow(ctx context.Context, one *credentials.Credential, renewed func(), complain func(error)) {
	failed := ""
	for {
		wait := one.Next()
		if wait == 0 {
			return
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		}
		switch err := one.Read(ctx); {
		case err == nil:
			failed = ""
			renewed()
		case ctx.Err() == nil && err.Error() != failed:
			failed = err.Error() // said once
			complain(err)
		}
	}
}

// readCredentials reads every credential of the file, all at a time. A rule's own credential has to be there.
// Requests of another are refused until it can be read, and complain gets the reason.
func readCredentials(ctx context.Context, c *config.Config, servers *tokens.Asker, digest string, key credentials.Key, complain func(error)) (*policyKeys, error) {
	all := credentialsOf(c, servers)
	failures := make([]error, len(all))
	var reading sync.WaitGroup
	for i, one := range all {
		reading.Go(func() { failures[i] = one.Read(ctx) })
	}
	reading.Wait()
	for i, one := range all {
		if one.Plain == nil && failures[i] != nil {
			complain(hint.Failed(failures[i], "correct credentials in "+c.Path+"; until then requests that need it are refused"))
			failures[i] = nil
		}
	}
	if err := errors.Join(failures...); err != nil {
		return nil, hint.Misused(err, "correct inject in "+c.Path)
	}
	return &policyKeys{digest: digest, set: credentials.NewSet(key, all), rules: c.File.Injections()}, nil
}

// tokenServers returns what asks servers of tokens, which egressd verifies as it does upstreams, or nil if c has no credentials. self
// are the host's own addresses.
func tokenServers(c *config.Config, self func() []netip.Addr, names *resolver) (*tokens.Asker, error) {
	if len(c.File.Credentials) == 0 {
		return nil, nil
	}
	pool, err := upstreamRoots(c)
	if err != nil {
		return nil, err
	}
	return tokens.New(pool, ownAddrs(c, self, names.addrs)), nil
}

// ownAddrs finds the addresses to which egressd may connect for itself. Special-purpose addresses are closed to it as they are to
// sandboxes, unless c opens them.
func ownAddrs(c *config.Config, self func() []netip.Addr, lookup func(context.Context, string) ([]netip.Addr, error)) tokens.Addrs {
	options := policy.BaselineOptions{Self: self, Exceptions: c.File.Allow, Unsafe: c.File.UnsafeAllow}
	if above := c.Organisation; above != nil {
		options.Exceptions, options.Unsafe = slices.Concat(options.Exceptions, above.File.Allow), slices.Concat(options.Unsafe, above.File.UnsafeAllow)
	}
	baseline := policy.NewBaseline(options)
	return func(ctx context.Context, host string, port uint16) ([]netip.Addr, error) {
		dst, err := policy.ParseDestination(net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			return nil, err
		}
		open := func() error {
			d, err := baseline.Evaluate(ctx, &policy.Request{Destination: dst})
			if err == nil && d.Verdict != policy.Abstain {
				err = fmt.Errorf("%s; if egressd may ask it, open the address under allow or unsafe_allow", d.Reason)
			}
			return err
		}
		if err := open(); err != nil {
			return nil, err
		}
		if dst.Addr.IsValid() {
			return []netip.Addr{dst.Addr}, nil
		}
		if dst.Addrs, err = lookup(ctx, dst.Host); err != nil {
			return nil, err
		}
		if err := open(); err != nil {
			return nil, err
		}
		return dst.Addrs, nil
	}
}

// credentialsOf are the credentials of the file and of its rules, unread.
func credentialsOf(c *config.Config, servers *tokens.Asker) (all []*credentials.Credential) {
	for _, in := range c.File.Injections() {
		if in.Credential != "" {
			continue
		}
		own := in.Inject
		all = append(all, credentials.New(
			credentials.Spec{Name: "of rule " + in.Rule, From: credentials.Source{File: own.File, Env: own.Env, Command: own.Command, Refresh: own.Refresh}},
			&credentials.Plain{Rule: in.Rule, Host: in.Host(), Header: own.Header, Value: own.Value, Placeholder: own.Placeholder}, c.Relative))
	}
	for i := range c.File.Credentials {
		one := credentials.New(c.File.Credentials[i].Complete(), nil, c.Relative)
		one.Servers = servers
		all = append(all, one)
	}
	return all
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
