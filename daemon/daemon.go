// Package daemon wires together what decides and records: Serve is egressd serve, from its
// listeners to its signals, and New a daemon for the one program of egressd run. It has no
// commands and no flags.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/daemon/confine"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/internal/version"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A Daemon wires everything for serve, and for run with one program. Close a Daemon that New returned. A Daemon
// with only exported fields set can Complain and Tell, and nothing else.
type Daemon struct {
	Talk   io.Writer      // for the operator
	Path   string         // of the policy file
	flag   string         // [ConfigFlag] of what was asked for
	Config *config.Config // that is in force, or is to be
	Log    *audit.Log
	Gate   *egress.Gate
	Server *proxy.Server
	With   *inspect.Inspection // that is in use, or nil

	Serving sync.WaitGroup // what goes on until the context of Begin and Follow is done

	tailor     Tailoring
	host       *hostaddr.Watcher
	sandboxes  *sandbox.Directory
	resolver   *resolver
	nameServer *dns.Server
	keys       keyring
	ownKey     *credentials.Key // of placeholders, see placeholderKey
	room       []byte           // see giveRoom
	alarms     *alarms          // that the operator is told of
	policy     *policy.Policy   // in force

	containers  *engineWatch // nil where no sandbox is told by its container
	attachments attachments
	audit       auditing
	listeners   listeners
	names       nameListeners
	captures    capturing
	current     currentPolicy
	admin       adminListener
	grants      granting
	observing   observing
	notifying   notifying
	scraping    scraping
	allowed     allowances
	bundles     bundleFollower
	reloads     reloading
	manager     notifier
}

// connect gives each part of the daemon the daemon.
func (d *Daemon) connect() {
	d.audit.daemon, d.listeners.daemon, d.names.daemon, d.captures.daemon = d, d, d, d
	d.admin.daemon, d.grants.daemon, d.bundles.daemon, d.reloads.daemon, d.manager.daemon, d.allowed.daemon, d.observing.daemon, d.notifying.daemon, d.scraping.daemon = d, d, d, d, d, d, d, d, d
}

// A Tailoring is what makes a daemon that serves one program differ from one that
// serves whoever comes. Its zero value changes nothing.
type Tailoring struct {
	Change       func(*config.Config) error // of each configuration that is read; may be nil
	NoFile       bool                       // no policy file is needed, since Change adds the rules
	Unread       bool                       // the files are not read again
	Placeholders bool                       // names get addresses that stand for them, since all connections are captured
	Tally        *egress.Tally              // counts what passes; may be nil
	OneRun       bool                       // the daemon serves one egressd run, so a policy change takes effect in the next

	AcceptDamage bool                 // begin a new log in the place of one that does not hold together
	Log          func(*audit.Options) // changes how the log is written; may be nil

	above  string  // the organisation's file, where a test has another
	handed *handed // sockets of the service manager; may be nil
}

// load reads the configuration as this daemon takes it.
func (d *Daemon) load(path string) (*config.Config, error) {
	c, err := config.LoadUnder(path, d.reloads.above)
	var none *config.NotFoundError
	if d.tailor.NoFile && errors.As(err, &none) {
		c, err = config.WithoutFile(d.reloads.above)
	}
	if err == nil && d.tailor.Change == nil {
		err = config.CheckTreePolicy(c.Path, c.Text)
	}
	if err == nil && d.tailor.Change != nil {
		err = d.tailor.Change(c)
	}
	return c, err
}

// New builds a daemon that does not listen yet, for the policy file at path; "" is the one
// that config finds. It says to talk what the operator is to know. An error leaves nothing open.
func New(talk io.Writer, path string, t Tailoring) (_ *Daemon, err error) {
	d := &Daemon{Talk: talk, tailor: t, alarms: newAlarms(talk)}
	d.connect()
	d.reloads.above, d.reloads.trees = cmp.Or(t.above, config.OrganisationPath), config.ProjectsEvery
	d.audit.clock, d.audit.outage, d.bundles.fetches = make(chan string, clockNotes), newOutage(), make(chan fetched)
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	d.listeners.own.Store(&[]netip.AddrPort{})
	d.admin.orders, d.admin.ended, d.grants.turns = make(chan order), make(chan struct{}), make(chan func(context.Context))
	d.grants.ends.come, d.observing.ends.come = make(chan struct{}, 1), make(chan struct{}, 1)
	if d.Config, err = d.load(path); err != nil {
		return nil, err
	}
	d.Path, d.flag = d.Config.Path, ConfigFlag(path)
	at := d.Config.AdminAt()
	d.admin.at.Store(&at)
	if !t.Unread {
		d.reloads.seen = config.StateOf(d.Path, d.reloads.above, nil)
	}
	if d.host, err = hostaddr.Watch(); err != nil {
		return nil, hint.Failed(err, "egressd serve, where netlink sockets are allowed")
	}
	entries, err := d.Config.Entries()
	if err != nil {
		return nil, err
	}
	if d.sandboxes, err = sandbox.NewDirectory(entries); err != nil {
		return nil, hint.Misused(err, "correct sandboxes in "+d.Path)
	}
	d.reloads.made.entries = entries
	if d.resolver, err = newResolver(d.Config); err != nil {
		return nil, err
	}
	if err := d.build(path); err != nil {
		return nil, err
	}
	return d, nil
}

// build opens the log and puts the gate and the server together.
func (d *Daemon) build(path string) error {
	if err := d.audit.openLog(); err != nil {
		return err
	}
	l := d.Config.File.Limits
	d.Gate = egress.New(egress.Config{
		Log: d.Log, Sandboxes: d.sandboxes, Resolver: d.resolver, Life: d.resolver.life,
		FlowsPerSandbox: l.FlowsPerSandbox, DialTimeout: l.DialTimeout,
		Placeholders: d.placeholders(), Tally: d.tailor.Tally, Alarm: d.alarms.tell,
		FixFlags: d.fixFlags(), Inquiries: d.allowed.to,
		BindAnswers: len(d.Config.File.Listen.Transparent) > 0,
		NameLimits:  names.Limits{PerSecond: l.DNSQueriesPerSecond, NameBytes: l.DNSNameBytes},
	})
	d.nameServer = &dns.Server{Gate: d.Gate, Limits: dns.Limits{PerSecond: l.DNSQueriesPerSecond}}
	descriptors := confine.OpenFiles()
	if !foreign.KernelRefuses() {
		descriptors = descriptors / 5 * 3 // the socket pairs of a Screen take the rest
	}
	if p := d.Config.File.Upstream.Proxy; p != nil && p.TLS {
		descriptors = descriptors / 5 * 3 // a tunnel has a socket pair more, see upstream.Socket
	}
	d.Server = &proxy.Server{Gate: d.Gate, Sandboxes: d.sandboxes, Program: d.attachments.program, Limits: proxy.Limits{
		Connections: proxy.ConnectionsWithin(l.Connections, descriptors), HeadBytes: l.HeadBytes, HeadFields: l.HeaderFields, Head: l.HeadTimeout,
		ResponseHeadBytes: l.ResponseHeadBytes, ResponseFields: l.ResponseFields,
		BodyBytes: l.BodyBytes, HelloBytes: l.HelloBytes, Hello: l.HelloTimeout, Idle: l.IdleTimeout, Lifetime: l.TunnelLifetime,
	}}
	d.prepareAttachments()
	return nil
}

// fixFlags returns the flags that the printed command for a denied host needs: --save if no running
// daemon can take a temporary rule, and --config if the policy file was named.
func (d *Daemon) fixFlags() (flags string) {
	if d.tailor.OneRun || d.Config.AdminName() == "" {
		flags = " --save"
	}
	return flags + d.flag
}

// ConfigFlag returns the flag --config, after a space, that names the policy file at path from any folder. It is empty if
// path is.
func ConfigFlag(path string) string {
	if path == "" {
		return ""
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return " --config " + shell.Word(path)
}

// openLog opens the log, or makes it where there is none.
func (au *auditing) openLog() error {
	dir, err := au.daemon.Config.AuditDir()
	if err != nil {
		return err
	}
	options, err := au.logOptions()
	if err != nil {
		return err
	}
	au.anchors = sink.NewAnchors(dir, export.Here(), au.daemon.Complain, au.daemon.Tell)
	options.Anchor = au.anchors.Send
	au.sinks = sink.NewSet(dir, export.Here(), au.daemon.Complain)
	options.Owed = au.sinks.Oldest
	au.daemon.Log, err = audit.Open(dir, options)
	if au.daemon.tailor.AcceptDamage && isDamage(err) {
		au.daemon.Log, err = au.acceptAndBegin(dir, options, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		au.daemon.Log, err = au.createLog(dir, options)
	}
	if err != nil {
		return au.explainLog(dir, err)
	}
	if au.daemon.tailor.Log == nil { // the key of a run is made later, see Send
		origin, _ := au.daemon.Log.Origin()
		au.sinks.OfLog(origin)
		au.beats.open(dir, options.Keys, origin)
	}
	au.outage.follow(au.daemon.Talk, dir, au.daemon.Log)
	au.anchors.Send(au.daemon.Log.Newest()) // which a crash may have kept from being sent
	return nil
}

// start puts the policy in force and opens the listeners.
func (d *Daemon) start(ctx context.Context) error {
	p, err := d.Begin(ctx)
	if err != nil {
		return err
	}
	d.watchContainers(d.Config)
	for _, l := range d.listeners.listening {
		d.Serving.Go(func() {
			if err := d.listeners.serveOn(l); !errors.Is(err, proxy.ErrClosed) {
				d.admin.isLost(l.name, err)
			}
		})
		fmt.Fprintf(d.Talk, "egressd: listening on %s (proxy)\n", addressOf(l))
	}
	d.captures.serveCaptured()
	d.names.serveNames()
	d.serveAttachments()
	d.admin.serve(ctx)
	d.scraping.serve()
	fmt.Fprintf(d.Talk, "egressd: policy %s (%s)\n", d.Path, digests(p))
	d.audit.sayBound()
	d.guardRules(ctx)
	d.audit.recordClock(ctx)
	d.audit.beat(ctx)
	if folder, err := d.Config.RunsDir(); err == nil { // else there is no log either
		d.sendRuns(ctx, folder)
	}
	d.manager.notify(sd.SdNotifyReady)
	return nil
}

// Begin puts the policy in force, once all that it needs is there.
func (d *Daemon) Begin(ctx context.Context) (*policy.Policy, error) {
	if err := d.bundles.openBundles(ctx, d.Config); err != nil {
		return nil, err
	}
	p, err := d.compileAtStart(ctx)
	if err != nil {
		return nil, err
	}
	first := change{config: d.Config, policy: p, entries: d.reloads.made.entries, dnsForwarder: d.resolver.forwarder.Load()}
	if err := d.reloads.fill(ctx, &first); err != nil {
		return nil, err
	}
	d.useUpstream(ctx, first.upstream)
	d.Gate.SetCanaries(first.canaries)
	d.Gate.SetDenyMessages(denyMessages(d.Config))
	d.reloads.made = first
	d.reloads.boundary.Store(first.boundary)
	d.With = first.with
	d.attachments.trust(d.With, d.Config)
	d.Server.Inspect(d.With)
	d.listeners.overTLS.Store(first.overTLS)
	d.keys.add(first.keys)
	d.keys.keep(first.keys, d.tailor.OneRun, d.Complain)
	if err := d.countSpent(time.Now()); err != nil {
		return nil, err
	}
	if err := d.listeners.listen(); err != nil {
		return nil, err
	}
	if err := d.audit.recordStart(); err != nil {
		return nil, err
	}
	loaded := "loaded " + absolute(d.Path)
	if err := d.Gate.SetPolicy(ctx, p, loaded); err != nil {
		return nil, hint.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	d.policy = p
	d.current.putInForce(p, d.Config, loaded)
	d.observing.begin()
	d.audit.attest()
	d.bundles.adopt(d.Config)
	if d.tailor.Log == nil { // a run sends once its program runs, see Send
		if err := d.audit.sinks.Apply(first.sinks); err != nil {
			return nil, hint.Failed(err, "correct audit.sinks in "+d.Path)
		}
	}
	if err := d.audit.anchors.Apply(d.Config.File.Audit.Anchors); err != nil {
		return nil, hint.Misused(err, "correct audit.anchors in "+d.Path)
	}
	warnings := d.Config.Warnings()
	if w := unusedRoots(d.Config, d.With); w != "" {
		warnings = append(warnings, w)
	}
	for _, w := range warnings {
		fmt.Fprintf(d.Talk, "egressd: warning: %s\n", printable.Text(w))
	}
	return p, d.reloads.noteProjects()
}

// absolute returns a path that readers of the log in other folders understand.
func absolute(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

func (au *auditing) recordStart() error {
	au.fresh.announce(au.daemon.Talk, au.daemon.Log)
	au.fresh = nil
	for _, torn := range au.daemon.Log.Recovered() {
		if err := au.daemon.Gate.Records.Note(record.KindRecovery, fmt.Sprintf("%+v", torn)); err != nil {
			return hint.Failed(err, "free space for the audit log")
		}
	}
	if au.accepted != "" {
		if err := au.daemon.Gate.Records.Note(record.KindRecovery, clipped(au.accepted)); err != nil {
			return hint.Failed(err, "free space for the audit log")
		}
	}
	note := "started " + version.This().String()
	if w := au.daemon.Config.Warnings(); len(w) > 0 {
		note += "; warning: " + strings.Join(w, "; warning: ")
	}
	if err := au.daemon.Gate.Records.Note(record.KindStart, clipped(note)); err != nil {
		return hint.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	return nil
}

func (d *Daemon) compile(c *config.Config) (*policy.Policy, error) {
	if d.tailor.Change == nil { // under run a program must not reach the daemon's listener; this process has none
		c.AdminListeners = d.admin.closed
		if err := c.OpenListeners(); err != nil {
			return nil, err
		}
	}
	c.UpstreamAt = d.Gate.Route.At
	return c.CompileWith(d.host.Addrs, func() []netip.AddrPort { return *d.listeners.own.Load() })
}

// parts names the files of the policy.
func (re *reloading) parts() string {
	text := re.daemon.Path
	if re.daemon.Config.Organisation != nil {
		text += ", " + re.daemon.Config.Organisation.Path
	}
	if len(re.daemon.Config.Rules) > 0 {
		text += " or its rego"
	}
	return text
}

// noteProjects tells the operator and the log of the projects that do not count.
func (re *reloading) noteProjects() error {
	for _, w := range re.daemon.Config.ProjectWarnings() {
		err := re.daemon.Gate.Records.Note(record.KindPolicy, clipped("warning: "+w))
		fmt.Fprintf(re.daemon.Talk, "egressd: warning: %s\n", printable.Text(w)) // whoever reads it finds it in the log
		if err != nil {
			return hint.Failed(fmt.Errorf("record the policy: %w", err), "free space for the audit log")
		}
	}
	return nil
}

// clipped is a note of a length, in bytes, that a record has room for.
func clipped(note string) string { return note[:min(len(note), 1000)] }

// Complain tells the operator of what went wrong beside the work.
func (d *Daemon) Complain(err error) { fmt.Fprint(d.Talk, complaint(err)) }

func complaint(err error) string { return fmt.Sprintf("egressd: error: %v\n", err) }

// Tell tells the operator of what is well again.
func (d *Daemon) Tell(text string) { fmt.Fprintf(d.Talk, "egressd: %s\n", text) }

// Close releases what New, Begin and the start of Serve have opened.
func (d *Daemon) Close() {
	d.admin.end()
	d.scraping.end()
	d.grants.ends.stop()
	d.observing.ends.stop()
	d.keys.close()
	for _, l := range d.listeners.listening {
		l.Close()
	}
	d.tailor.handed.close()
	d.names.closeNames()
	d.captures.closeCaptured()
	d.attachments.close()
	d.containers.close()
	if d.resolver != nil {
		d.resolver.close()
	}
	if d.Gate != nil {
		d.Gate.Records.Settle()
		d.alarms.end()
	}
	if d.audit.sinks != nil {
		d.audit.sinks.Stop(0)
	}
	if d.Log != nil {
		d.audit.outage.end()
		d.audit.beats.end(&d.audit)
		d.Log.Close()
		d.audit.messages.writing.Wait()
		d.audit.anchors.Stop(AnchorsDrain) // the last checkpoint was made just now
		if fresh := d.audit.fresh; fresh != nil {
			if err := audit.Discard(fresh.dir, fresh.keys); err != nil {
				d.Complain(err)
			}
		}
	}
	if d.host != nil {
		d.host.Close()
	}
}

// digests names a policy, and its shadow, for a person.
func digests(p *policy.Policy) string {
	text := fmt.Sprintf("%.19s…", p.Digest())
	if s := p.Shadow(); s != nil {
		text += fmt.Sprintf(", in shadow %.19s…", s.Digest())
	}
	return text
}
