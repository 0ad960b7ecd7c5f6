package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	upstreams "github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
	"github.com/fsnotify/fsnotify"
)

// reloading puts another policy in force where the files have changed.
type reloading struct {
	daemon *Daemon
	above  string            // path of the organisation's file
	seen   [sha256.Size]byte // the state of the files when they were last read, good or bad
	files  *fsnotify.Watcher // of the folders of the policy, or nil
	trees  time.Duration     // how often working trees are looked at
	made   change            // what is in force, as it was read last

	boundary atomic.Pointer[policy.Policy] // of made, for other goroutines
}

// reload reads the policy file and its Rego again. A file with an error leaves the policy in force unchanged, and reload
// reports the error to the log and to the operator.
func (re *reloading) reload(ctx context.Context, why string, always bool) error {
	now := config.StateOf(re.daemon.Path, re.above, re.watch)
	if !always && now == re.seen {
		return nil
	}
	re.seen = now
	err := re.apply(ctx, why)
	re.daemon.current.reloaded(err)
	if err != nil {
		if err := re.daemon.Gate.RejectPolicy("rejected " + re.daemon.Path + ": " + err.Error()); err != nil {
			fmt.Fprintf(re.daemon.Talk, "egressd: error: record the rejected policy: %v\n", err)
		}
		fmt.Fprintf(re.daemon.Talk, "egressd: error: policy not reloaded, the one before stays in force: %v\n", err)
		hint.Sayf(re.daemon.Talk, "correct %s; it is read again when it changes", re.parts())
	}
	return err
}

// A change is all that a reload puts in force.
type change struct {
	config       *config.Config
	policy       *policy.Policy
	boundary     *policy.Policy // of approve_within, or nil
	entries      []sandbox.Entry
	dnsForwarder *dns.Forwarder
	with         *inspect.Inspection
	overTLS      *proxy.TLSListener
	upstream     *upstreams.Proxy
	keys         *policyKeys
	canaries     *secret.Canaries
	sinks        []sink.Config
	notify       notifyParts
	scrape       *scrapeParts
	grants       []*grant
	dropped      []droppedGrant
}

// apply makes everything that can fail before it puts any of it in force. In
// between, a policy denies the sandboxes that it does not list.
func (re *reloading) apply(ctx context.Context, why string) error {
	next, err := re.prepare(ctx)
	if err != nil {
		return err
	}
	return re.enforce(ctx, next, "reloaded "+re.daemon.Path, why)
}

// prepare makes what the files say, and puts none of it in force.
func (re *reloading) prepare(ctx context.Context) (next *change, err error) {
	c, err := re.daemon.load(re.daemon.Path)
	if err != nil {
		return nil, err
	}
	if err := c.SameListeners(re.daemon.Config); err != nil {
		return nil, err
	}
	if err := re.daemon.bundles.openBundles(ctx, c); err != nil {
		return nil, err
	}
	next = &change{config: c}
	if next.policy, err = re.daemon.compile(c); err != nil {
		return nil, err
	}
	next.policy, next.grants, next.dropped = re.daemon.grants.beside(ctx, c, next.policy)
	if next.entries, err = c.Entries(); err != nil {
		return nil, err
	}
	if _, err := sandbox.NewDirectory(next.entries); err != nil {
		return nil, err
	}
	if next.dnsForwarder, err = newForwarder(c, resolvConf); err != nil {
		return nil, err
	}
	return next, re.fill(ctx, next)
}

// fill makes the rest of a change, of which configuration and policy are there.
func (re *reloading) fill(ctx context.Context, next *change) (err error) {
	c := next.config
	if next.boundary, err = c.CompileBoundary(re.daemon.host.Addrs, func() []netip.AddrPort { return *re.daemon.listeners.own.Load() }); err != nil {
		return err
	}
	if next.upstream, err = re.daemon.upstreamProxy(ctx, c); err != nil {
		return err
	}
	if next.with, err = re.daemon.inspection(c); err != nil {
		return err
	}
	if next.overTLS, err = re.daemon.listeners.tlsListener(c, next.with); err != nil {
		return err
	}
	if next.canaries, err = readCanaries(c); err != nil {
		return err
	}
	if next.sinks, err = sinksOf(c); err != nil && re.daemon.tailor.Log != nil { // another user may keep the headers for the daemon
		re.daemon.Complain(fmt.Errorf("the log of this run is not sent: %w", err))
		next.sinks, err = nil, nil
	}
	if err != nil {
		return err
	}
	if err := sink.CheckAnchors(c.File.Audit.Anchors); err != nil {
		return hint.Misused(err, "correct audit.anchors in "+c.Path)
	}
	if next.notify, err = re.daemon.notifying.read(c); err != nil {
		return err
	}
	if next.scrape, err = re.daemon.scraping.read(c); err != nil {
		return err
	}
	key, err := re.daemon.placeholderKey(c)
	if err != nil {
		return err
	}
	servers, err := tokenServers(c, re.daemon.host.Addrs, re.daemon.resolver)
	if err != nil {
		return err
	}
	next.keys, err = readCredentials(ctx, c, servers, next.policy.Digest(), key, re.daemon.Complain)
	return err
}

// enforce puts a change in force. Everything that the new policy needs is ready before. If the change cannot be recorded,
// nothing changes. done and why stand in the record.
func (re *reloading) enforce(ctx context.Context, next *change, done, why string) error {
	if next.with != nil {
		re.daemon.Server.Inspect(next.with)
	}
	re.daemon.keys.add(next.keys)
	if err := re.daemon.Gate.SetPolicy(ctx, next.policy, done+": "+why); err != nil {
		re.daemon.keys.drop(next.keys)
		re.daemon.Server.Inspect(re.daemon.With)
		return err
	}
	re.daemon.Gate.SetCanaries(next.canaries)
	re.daemon.Gate.SetDenyMessages(denyMessages(next.config))
	re.daemon.Gate.Ceilings.Set(budgetsOf(next.config))
	before := re.daemon.Config.File
	re.daemon.policy, re.daemon.Config = next.policy, next.config // together: grants are compiled beside the file in force
	re.daemon.current.putInForce(next.policy, next.config, done+": "+why)
	re.daemon.observing.begin()
	if next.upstream != re.made.upstream {
		re.daemon.useUpstream(ctx, next.upstream)
	}
	re.made = *next
	if before := re.boundary.Swap(next.boundary); before.Digest() != next.boundary.Digest() {
		re.daemon.Gate.Approvals.Wake() // so that questions are tried again
	}
	re.daemon.grants.settle(next)
	re.daemon.audit.attest()
	re.daemon.bundles.adopt(next.config)
	re.daemon.attachments.trust(next.with, next.config)
	if re.daemon.With = next.with; re.daemon.With == nil {
		re.daemon.Server.Inspect(nil)
	}
	re.daemon.keys.keep(next.keys, re.daemon.tailor.OneRun, re.daemon.Complain)
	if err := re.daemon.sandboxes.Set(next.entries); err != nil {
		return err
	}
	re.daemon.watchContainers(next.config)
	re.daemon.listeners.overTLS.Store(next.overTLS)
	if err := re.daemon.listeners.admitUsers(next.config); err != nil {
		re.daemon.Complain(err)
	}
	re.daemon.resolver.machine.use(next.config)
	re.daemon.resolver.replace(next.dnsForwarder)
	if now := next.config.File; now.Limits != before.Limits || now.Placeholders != before.Placeholders || !sameLog(now.Audit, before.Audit) {
		fmt.Fprintln(re.daemon.Talk, "egressd: warning: limits, placeholders and audit are read at the start only; restart to change them")
	}
	if err := re.daemon.audit.sinks.Apply(next.sinks); err != nil {
		re.daemon.Complain(err)
	}
	if err := re.daemon.audit.anchors.Apply(next.config.File.Audit.Anchors); err != nil {
		re.daemon.Complain(err)
	}
	re.daemon.notifying.use(next.notify)
	re.daemon.scraping.use(next.scrape)
	fmt.Fprintf(re.daemon.Talk, "egressd: policy reloaded (%s): %s\n", digests(next.policy), why)
	for _, w := range re.daemon.Config.ListDoubts() { // others write these files, and not with the policy
		fmt.Fprintf(re.daemon.Talk, "egressd: warning: %s\n", printable.Text(w.String()))
	}
	for _, err := range []error{re.daemon.observing.say(), re.noteProjects()} {
		if err != nil {
			re.daemon.Complain(err) // what the change itself is, is recorded
		}
	}
	return nil
}

// denyMessages are the operator's words for denied programs.
func denyMessages(c *config.Config) (m egress.DenyMessages) {
	m.User = c.File.DenyMessage
	if c.Organisation != nil {
		m.Organisation = c.Organisation.File.DenyMessage
	}
	return m
}
