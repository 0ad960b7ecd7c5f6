package daemon

import (
	"context"
	"fmt"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/dns"
	upstreams "github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
)

// reload reads the policy file and its Rego again. A file with an error leaves the policy in force unchanged, and reload
// reports the error to the log and to the operator.
func (d *Daemon) reload(ctx context.Context, why string, always bool) error {
	now := config.StateOf(d.Path, d.above, d.watch)
	if !always && now == d.seen {
		return nil
	}
	d.seen = now
	err := d.apply(ctx, why)
	d.reloaded(err)
	if err != nil {
		if err := d.Gate.RejectPolicy("rejected " + d.Path + ": " + err.Error()); err != nil {
			fmt.Fprintf(d.Talk, "egressd: error: record the rejected policy: %v\n", err)
		}
		fmt.Fprintf(d.Talk, "egressd: error: policy not reloaded, the one before stays in force: %v\n", err)
		fmt.Fprintf(d.Talk, "egressd: hint: correct %s; it is read again when it changes\n", d.parts())
	}
	return err
}

// A change is all that a reload puts in force.
type change struct {
	config    *config.Config
	policy    *policy.Policy
	entries   []sandbox.Entry
	forwarder *dns.Forwarder
	with      *inspect.Inspection
	overTLS   *proxy.TLSListener
	upstream  *upstreams.Proxy
	keys      *credentials
	canaries  *secret.Canaries
	sinks     []sink.Config
	witnesses []sink.Witness
	grants    []*grant
	dropped   []droppedGrant
}

// apply makes everything that can fail before it puts any of it in force. In
// between, a policy denies the sandboxes that it does not list.
func (d *Daemon) apply(ctx context.Context, why string) error {
	next, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	return d.enforce(ctx, next, "reloaded "+d.Path, why)
}

func (d *Daemon) prepare(ctx context.Context) (*change, error) {
	c, err := d.load(d.Path)
	if err != nil {
		return nil, err
	}
	if err := c.SameListeners(d.Config); err != nil {
		return nil, err
	}
	if err := d.openBundles(ctx, c); err != nil {
		return nil, err
	}
	return d.make(ctx, c)
}

// make makes what a configuration says, and puts none of it in force.
func (d *Daemon) make(ctx context.Context, c *config.Config) (next *change, err error) {
	next = &change{config: c}
	if next.policy, err = d.compile(c); err != nil {
		return nil, err
	}
	next.policy, next.grants, next.dropped = d.beside(ctx, c, next.policy)
	if next.entries, err = c.Entries(); err != nil {
		return nil, err
	}
	if _, err := sandbox.NewDirectory(next.entries); err != nil {
		return nil, err
	}
	if next.forwarder, err = newForwarder(c); err != nil {
		return nil, err
	}
	if next.upstream, err = d.upstreamProxy(ctx, c); err != nil {
		return nil, err
	}
	if next.with, err = d.inspection(c); err != nil {
		return nil, err
	}
	if next.overTLS, err = d.tlsListener(c, next.with); err != nil {
		return nil, err
	}
	if next.canaries, err = readCanaries(c); err != nil {
		return nil, err
	}
	if next.sinks, err = sinksOf(c); err != nil {
		return nil, err
	}
	if err := sink.CheckAnchors(c.File.Audit.Anchors); err != nil {
		return nil, hint.Misused(err, "correct audit.anchors in "+c.Path)
	}
	if next.witnesses, err = WitnessesOf(c); err != nil {
		return nil, err
	}
	next.keys, err = readCredentials(ctx, c, next.policy.Digest())
	return next, err
}

// enforce puts a change in force. Everything that the new policy needs is ready before. If the change cannot be recorded,
// nothing changes. done and why stand in the record.
func (d *Daemon) enforce(ctx context.Context, next *change, done, why string) error {
	if next.with != nil {
		d.Server.Inspect(next.with)
	}
	d.keys.add(next.keys)
	if err := d.Gate.SetPolicy(ctx, next.policy, done+": "+why); err != nil {
		d.keys.drop(next.keys)
		d.Server.Inspect(d.With)
		return err
	}
	d.Gate.SetCanaries(next.canaries)
	before := d.Config.File
	d.policy, d.Config = next.policy, next.config // together: grants are compiled beside the file in force
	d.putInForce(next.policy, next.config, done+": "+why)
	if next.upstream != d.made.upstream {
		d.useUpstream(ctx, next.upstream)
	}
	d.made = *next
	d.settle(next)
	d.attest()
	d.adopt(next.config)
	d.attachments.trust(next.with)
	if d.With = next.with; d.With == nil {
		d.Server.Inspect(nil)
	}
	d.keys.keep(next.keys, next.config, d.Complain)
	if err := d.sandboxes.Set(next.entries); err != nil {
		return err
	}
	d.watchContainers(next.config)
	d.overTLS.Store(next.overTLS)
	if err := d.admitUsers(next.config); err != nil {
		d.Complain(err)
	}
	d.resolver.replace(next.forwarder)
	if now := next.config.File; now.Limits != before.Limits || !sameLog(now.Audit, before.Audit) {
		fmt.Fprintln(d.Talk, "egressd: warning: limits and audit are read at the start only; restart to change them")
	}
	if err := d.sinks.Apply(next.sinks); err != nil {
		d.Complain(err)
	}
	if err := d.anchors.Apply(next.config.File.Audit.Anchors, next.witnesses); err != nil {
		d.Complain(err)
	}
	fmt.Fprintf(d.Talk, "egressd: policy reloaded (%s): %s\n", digests(next.policy), why)
	if err := d.noteProjects(); err != nil {
		d.Complain(err) // what the change itself is, is recorded
	}
	return nil
}
