// Package daemon wires together what decides and records: Serve is egressd serve, from its
// listeners to its signals, and New a daemon for the one program of egressd run. It has no
// commands and no flags.
package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
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
	"github.com/fsnotify/fsnotify"
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

	Serving sync.WaitGroup // what goes on until the context of Begin and FollowBundles is done

	tailor Tailoring
	above  string            // path of the organisation's file
	seen   [sha256.Size]byte // the state of the files when they were last read, good or bad
	files  *fsnotify.Watcher // of the folders of the policy, or nil
	trees  time.Duration     // how often working trees are looked at

	host      *hostaddr.Watcher
	sinks     *sink.Set // nil where the log is not open
	anchors   *sink.Anchors
	sandboxes *sandbox.Directory
	resolver  *resolver
	filter    *dns.Filter
	keys      keyring
	accepted  string // damage of the log that the operator has accepted
	room      []byte // see giveRoom
	listening []boundListener
	dnsAt     []dnsListener
	captures  []captureListener
	own       atomic.Pointer[[]netip.AddrPort] // addresses it listens on
	overTLS   atomic.Pointer[proxy.TLSListener]

	containers  *engineWatch // nil where no sandbox is told by its container
	attachments attachments
	operator    operator
	grants      granting

	alarms   *alarms        // that the operator is told of
	messages messages       // that nobody waits for
	clock    chan string    // what the log is to have of the machine's clock
	outage   *outage        // of the log
	kept     int64          // bytes of the log
	bounded  bool           // kept is the default
	policy   *policy.Policy // in force
	made     change         // what is in force, as it was read last
	fetches  chan fetched   // what was fetched of its bundles
}

// A Tailoring is what makes a daemon that serves one program differ from one that
// serves whoever comes. Its zero value changes nothing.
type Tailoring struct {
	Change       func(*config.Config) error // of each configuration that is read; may be nil
	Starter      bool                       // without a policy file, the starter policy counts
	Unread       bool                       // the files are not read again
	Placeholders names.Range                // of addresses that stand for names
	Tally        *egress.Tally              // counts what passes; may be nil
	OneRun       bool                       // the daemon serves one egressd run, so a policy change takes effect in the next

	AcceptDamage bool                 // begin a new log in the place of one that does not hold together
	Log          func(*audit.Options) // changes how the log is written; may be nil

	above  string  // the organisation's file, where a test has another
	handed *handed // sockets of the service manager; may be nil
}

// load reads the configuration as this daemon takes it.
func (d *Daemon) load(path string) (*config.Config, error) {
	c, err := config.LoadUnder(path, d.above)
	var none *config.NotFoundError
	if d.tailor.Starter && errors.As(err, &none) {
		c, err = config.Starting(d.above)
	}
	if err == nil && d.tailor.Change != nil {
		err = d.tailor.Change(c)
	}
	return c, err
}

// New builds a daemon that does not listen yet, for the policy file at path; "" is the one
// that config finds. It says to talk what the operator is to know. An error leaves nothing open.
func New(talk io.Writer, path string, t Tailoring) (_ *Daemon, err error) {
	d := &Daemon{Talk: talk, tailor: t, above: cmp.Or(t.above, config.OrganisationPath), trees: config.ProjectsEvery, fetches: make(chan fetched), clock: make(chan string, clockNotes), outage: newOutage(), alarms: newAlarms(talk)}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	d.own.Store(&[]netip.AddrPort{})
	d.operator.orders, d.operator.ended, d.grants.turns = make(chan order), make(chan struct{}), make(chan func(context.Context))
	if d.Config, err = d.load(path); err != nil {
		return nil, err
	}
	d.Path, d.flag = d.Config.Path, ConfigFlag(path)
	at := d.Config.OperatorAt()
	d.operator.at.Store(&at)
	if !t.Unread {
		d.seen = config.StateOf(d.Path, d.above, nil)
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
	d.made.entries = entries
	if d.resolver, err = newResolver(d.Config); err != nil {
		return nil, err
	}
	return d, d.build(path)
}

// build opens the log and puts the gate and the server together.
func (d *Daemon) build(path string) error {
	if err := d.openLog(); err != nil {
		return err
	}
	l := d.Config.File.Limits
	d.Gate = egress.New(egress.Config{
		Log: d.Log, Sandboxes: d.sandboxes, Resolver: d.resolver,
		FlowsPerSandbox: l.FlowsPerSandbox, DialTimeout: l.DialTimeout,
		Placeholders: d.placeholders(), Tally: d.tailor.Tally, Alarm: d.alarms.tell,
		FixFlags:    d.fixFlags(),
		BindAnswers: len(d.Config.File.Listen.Transparent) > 0,
		Questions:   names.Limits{PerSecond: l.DNSQueriesPerSecond, NameBytes: l.DNSNameBytes},
	})
	d.filter = &dns.Filter{Gate: d.Gate, Life: d.resolver.life, Limits: dns.FilterLimits{PerSecond: l.DNSQueriesPerSecond}}
	descriptors := confine.OpenFiles()
	if !foreign.KernelRefuses() {
		descriptors = descriptors / 5 * 3 // the socket pairs of a Screen take the rest
	}
	if p := d.Config.File.Upstream.Proxy; p != nil && p.TLS {
		descriptors = descriptors / 5 * 3 // a tunnel has a socket pair more, see upstream.Socket
	}
	d.Server = &proxy.Server{Gate: d.Gate, Sandboxes: d.sandboxes, Program: d.attachments.program, Limits: proxy.Limits{
		Connections: proxy.ConnectionsWithin(l.Connections, descriptors), HeadBytes: l.HeadBytes, HeadFields: l.HeaderFields, Head: l.HeadTimeout,
		HelloBytes: l.HelloBytes, Hello: l.HelloTimeout, Idle: l.IdleTimeout, Lifetime: l.TunnelLifetime,
	}}
	d.prepareAttachments()
	return nil
}

// fixFlags returns the flags that the printed command for a denied host needs: --save if no running
// daemon can take a temporary rule, and --config if the policy file was named.
func (d *Daemon) fixFlags() (flags string) {
	if d.tailor.OneRun || d.Config.OperatorName() == "" {
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
func (d *Daemon) openLog() error {
	dir, err := d.Config.AuditDir()
	if err != nil {
		return err
	}
	options, err := d.logOptions()
	if err != nil {
		return err
	}
	d.anchors = sink.NewAnchors(dir, export.Here(), d.Complain, d.Tell)
	options.Anchor, d.anchors.Keys = d.anchors.Send, options.Keys
	d.sinks = sink.NewSet(dir, export.Here(), d.Complain)
	options.Owed = d.sinks.Oldest
	d.Log, err = audit.Open(dir, options)
	if d.tailor.AcceptDamage && isDamage(err) {
		d.Log, err = d.acceptAndBegin(dir, options, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		d.Log, err = d.createLog(dir, options)
	}
	if err != nil {
		return d.explainLog(dir, err)
	}
	d.outage.follow(d.Talk, dir, d.Log)
	d.anchors.Send(d.Log.Newest()) // which a crash may have kept from being sent
	return nil
}

// start puts the policy in force and opens the listeners.
func (d *Daemon) start(ctx context.Context) error {
	p, err := d.Begin(ctx)
	if err != nil {
		return err
	}
	d.watchContainers(d.Config)
	for _, l := range d.listening {
		d.Serving.Go(func() {
			if err := d.serveOn(l); !errors.Is(err, proxy.ErrClosed) {
				d.isLost(l.name, err)
			}
		})
		fmt.Fprintf(d.Talk, "egressd: listening on %s (proxy)\n", addressOf(l))
	}
	d.serveCaptured()
	d.serveNames()
	d.serveAttachments()
	d.serveOperator(ctx)
	fmt.Fprintf(d.Talk, "egressd: policy %s (%s)\n", d.Path, digests(p))
	d.sayBound()
	d.guardRules(ctx)
	d.recordClock(ctx)
	d.notify(sd.SdNotifyReady)
	return nil
}

// Begin puts the policy in force, once all that it needs is there.
func (d *Daemon) Begin(ctx context.Context) (*policy.Policy, error) {
	if err := d.openBundles(ctx, d.Config); err != nil {
		return nil, err
	}
	p, err := d.compileAtStart(ctx)
	if err != nil {
		return nil, err
	}
	with, err := d.inspection(d.Config)
	if err != nil {
		return nil, err
	}
	keys, err := readCredentials(ctx, d.Config, p.Digest())
	if err != nil {
		return nil, err
	}
	canaries, err := readCanaries(d.Config)
	if err != nil {
		return nil, err
	}
	overTLS, err := d.tlsListener(d.Config, with)
	if err != nil {
		return nil, err
	}
	through, err := d.upstreamProxy(ctx, d.Config)
	if err != nil {
		return nil, err
	}
	d.useUpstream(ctx, through)
	d.Gate.SetCanaries(canaries)
	sinks, err := sinksOf(d.Config)
	if err != nil {
		return nil, err
	}
	witnesses, err := WitnessesOf(d.Config)
	if err != nil {
		return nil, err
	}
	d.made = change{entries: d.made.entries, forwarder: d.resolver.forwarder.Load(), with: with, overTLS: overTLS, canaries: canaries, sinks: sinks, witnesses: witnesses, upstream: through}
	d.With = with
	d.attachments.trust(with)
	d.Server.Inspect(with)
	d.overTLS.Store(overTLS)
	d.keys.add(keys)
	d.keys.keep(keys, d.Config, d.Complain)
	if err := d.listen(); err != nil {
		return nil, err
	}
	if err := d.recordStart(); err != nil {
		return nil, err
	}
	if err := d.Gate.SetPolicy(ctx, p, "loaded "+d.Path); err != nil {
		return nil, hint.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	d.policy = p
	d.putInForce(p, d.Config, "loaded "+d.Path)
	d.attest()
	d.adopt(d.Config)
	if err := d.sinks.Apply(sinks); err != nil {
		return nil, hint.Failed(err, "correct audit.sinks in "+d.Path)
	}
	if err := d.anchors.Apply(d.Config.File.Audit.Anchors, witnesses); err != nil {
		return nil, hint.Misused(err, "correct audit.anchors in "+d.Path)
	}
	warnings := d.Config.Warnings()
	if w := unusedRoots(d.Config, with); w != "" {
		warnings = append(warnings, w)
	}
	for _, w := range warnings {
		fmt.Fprintf(d.Talk, "egressd: warning: %s\n", printable.Text(w))
	}
	return p, d.noteProjects()
}

func (d *Daemon) recordStart() error {
	for _, torn := range d.Log.Recovered() {
		if err := d.Gate.Records.Note(record.KindRecovery, fmt.Sprintf("%+v", torn)); err != nil {
			return hint.Failed(err, "free space for the audit log")
		}
	}
	if d.accepted != "" {
		if err := d.Gate.Records.Note(record.KindRecovery, clipped(d.accepted)); err != nil {
			return hint.Failed(err, "free space for the audit log")
		}
	}
	note := "started " + version.This().String()
	if w := d.Config.Warnings(); len(w) > 0 {
		note += "; warning: " + strings.Join(w, "; warning: ")
	}
	if err := d.Gate.Records.Note(record.KindStart, clipped(note)); err != nil {
		return hint.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	return nil
}

func (d *Daemon) compile(c *config.Config) (*policy.Policy, error) {
	if d.tailor.Change == nil { // under run a program must not reach the daemon's listener; this process has none
		c.Operator = d.operator.closed
		if err := c.OpenListeners(); err != nil {
			return nil, err
		}
	}
	c.UpstreamAt = d.Gate.Route.At
	return c.CompileWith(d.host.Addrs, func() []netip.AddrPort { return *d.own.Load() })
}

// parts names the files of the policy.
func (d *Daemon) parts() string {
	text := d.Path
	if d.Config.Organisation != nil {
		text += ", " + d.Config.Organisation.Path
	}
	if len(d.Config.Rules) > 0 {
		text += " or its rego"
	}
	return text
}

// noteProjects tells the operator and the log of the projects that do not count.
func (d *Daemon) noteProjects() error {
	for _, w := range d.Config.ProjectWarnings() {
		fmt.Fprintf(d.Talk, "egressd: warning: %s\n", printable.Text(w))
		if err := d.Gate.Records.Note(record.KindPolicy, clipped("warning: "+w)); err != nil {
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
	d.endOperator()
	d.keys.close()
	for _, l := range d.listening {
		l.Close()
	}
	d.tailor.handed.close()
	d.closeNames()
	d.closeCaptured()
	d.attachments.close()
	d.containers.close()
	if d.resolver != nil {
		d.resolver.close()
	}
	if d.Gate != nil {
		d.Gate.Records.Settle()
		d.alarms.end()
	}
	if d.sinks != nil {
		d.sinks.Stop(0)
	}
	if d.Log != nil {
		d.outage.end()
		d.Log.Close()
		d.messages.writing.Wait()
		d.anchors.Stop(AnchorsDrain) // the last checkpoint was made just now
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
