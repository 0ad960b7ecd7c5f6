package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/cmd/egressd/internal/confine"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/internal/tokens"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/records/sink"
	"github.com/egressd/egressd/sandbox"
	"github.com/fsnotify/fsnotify"
)

// A daemon is everything that serve wires together.
type daemon struct {
	talk   io.Writer
	tailor tailoring
	path   string            // of the policy file
	above  string            // of the organisation's file
	seen   [sha256.Size]byte // its state when it was last read, good or bad
	config *config.Config
	files  *fsnotify.Watcher // of the folders of the policy, or nil
	trees  time.Duration     // how often working trees are looked at

	host      *hostaddr.Watcher
	log       *audit.Log
	sinks     *sink.Set // nil where the log is not open
	anchors   *sink.Anchors
	sandboxes *sandbox.Directory
	resolver  *resolver
	gate      *egress.Gate
	server    *proxy.Server
	filter    *dns.Filter
	with      *proxy.Inspection // that is in use, or nil
	keys      keyring
	accepted  string // damage of the log that the operator has accepted
	room      []byte // see inspection
	serving   sync.WaitGroup
	listening []boundListener
	nameDoors []nameDoor
	captures  []captureDoor
	own       atomic.Pointer[[]netip.AddrPort] // addresses it listens on
	overTLS   atomic.Pointer[proxy.TLSListener]

	networkDoors []*networkDoor
	containers   *containers // nil where no sandbox is told by its container
	stays        stays

	alarms   tokens.Bucket  // that the operator is told of
	policy   *policy.Policy // in force
	arrivals chan arrival   // what was fetched of its bundles
}

// A tailoring is what makes a daemon that serves one program differ from one that
// serves whoever comes. Its zero value changes nothing.
type tailoring struct {
	above     string                     // the organisation's file, where a test has another
	change    func(*config.Config) error // of each configuration that is read; may be nil
	unread    bool                       // the files are not read again
	synthetic egress.SyntheticRange
	tally     *egress.Tally

	handed *handed // sockets of the service manager; may be nil

	acceptDamage bool                 // begin a new log in the place of one that does not hold together
	log          func(*audit.Options) // changes how the log is written; may be nil
}

// load reads the configuration as this daemon takes it.
func (d *daemon) load(path string) (*config.Config, error) {
	c, err := config.LoadUnder(path, d.above)
	if err == nil && d.tailor.change != nil {
		err = d.tailor.change(c)
	}
	return c, err
}

// newDaemon builds a daemon that does not listen yet. An error leaves nothing
// open.
func newDaemon(talk io.Writer, path string, t tailoring) (_ *daemon, err error) {
	d := &daemon{talk: talk, tailor: t, above: cmp.Or(t.above, config.OrganisationPath), trees: config.ProjectsEvery, arrivals: make(chan arrival)}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	d.own.Store(&[]netip.AddrPort{})
	d.alarms.Rate, d.alarms.Most = 1, 10
	if d.config, err = d.load(path); err != nil {
		return nil, err
	}
	d.path = d.config.Path
	if !t.unread {
		d.seen = config.StateOf(d.path, d.above, nil)
	}
	if d.host, err = hostaddr.Watch(); err != nil {
		return nil, cli.Failed(err, "egressd serve, where netlink sockets are allowed")
	}
	entries, err := d.config.Entries()
	if err != nil {
		return nil, err
	}
	if d.sandboxes, err = sandbox.NewDirectory(entries); err != nil {
		return nil, cli.Misused(err, "correct sandboxes in "+d.path)
	}
	if d.resolver, err = newResolver(d.config); err != nil {
		return nil, err
	}
	return d, d.build()
}

// build opens the log and puts the gate and the server together.
func (d *daemon) build() error {
	if err := d.openLog(); err != nil {
		return err
	}
	l := d.config.File.Limits
	d.gate = egress.New(egress.Config{
		Log: d.log, Sandboxes: d.sandboxes, Resolver: d.resolver,
		FlowsPerSandbox: l.FlowsPerSandbox, DialTimeout: l.DialTimeout,
		Synthetic: d.synthetic(), Tally: d.tailor.tally, Alarm: d.alarm,
		Answers:   len(d.config.File.Listen.Transparent) > 0,
		Questions: egress.QuestionLimits{PerSecond: l.DNSQueriesPerSecond, NameBytes: l.DNSNameBytes},
	})
	d.filter = &dns.Filter{Gate: d.gate, Life: d.resolver.life}
	d.server = &proxy.Server{Gate: d.gate, Sandboxes: d.sandboxes, Program: d.stays.program, Limits: proxy.Limits{
		Connections: proxy.ConnectionsWithin(l.Connections, confine.OpenFiles()), HeadBytes: l.HeadBytes, HeadFields: l.HeaderFields, Head: l.HeadTimeout,
		HelloBytes: l.HelloBytes, Hello: l.HelloTimeout, Idle: l.IdleTimeout, Lifetime: l.TunnelLifetime,
	}}
	return nil
}

// openLog opens the log, or makes it where there is none.
func (d *daemon) openLog() error {
	dir, err := d.config.AuditDir()
	if err != nil {
		return err
	}
	options, err := d.logOptions()
	if err != nil {
		return err
	}
	d.anchors = sink.NewAnchors(dir, logs.Origin(), d.complain, d.tell)
	options.Anchor, d.anchors.Keys = d.anchors.Send, options.Keys
	d.sinks = sink.NewSet(dir, logs.Origin(), d.complain)
	options.Owed = d.sinks.Oldest
	d.log, err = audit.Open(dir, options)
	if d.tailor.acceptDamage && isDamage(err) {
		d.log, err = d.acceptAndBegin(dir, options, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		d.log, err = d.createLog(dir, options)
	}
	if err != nil {
		return d.explainLog(dir, err)
	}
	d.anchors.Send(d.log.Newest()) // which a crash may have kept from being sent
	return nil
}

// start puts the policy in force and opens the listeners.
func (d *daemon) start(ctx context.Context) error {
	p, err := d.begin(ctx)
	if err != nil {
		return err
	}
	d.watchContainers(d.config)
	for _, l := range d.listening {
		d.serving.Go(func() {
			if err := d.serveOn(l); !errors.Is(err, proxy.ErrClosed) {
				fmt.Fprintf(d.talk, "egressd: error: %s is not served: %v\n", l.name, err)
			}
		})
		fmt.Fprintf(d.talk, "egressd: listening on %s (proxy)\n", addressOf(l))
	}
	d.serveCaptured()
	d.serveNames()
	d.serveDoors()
	fmt.Fprintf(d.talk, "egressd: policy %s (%s)\n", d.path, digests(p))
	d.guardRules(ctx)
	d.notify(sd.SdNotifyReady)
	return nil
}

// begin puts the policy in force, once all that it needs is there.
func (d *daemon) begin(ctx context.Context) (*policy.Policy, error) {
	if err := d.openBundles(ctx, d.config); err != nil {
		return nil, err
	}
	p, err := d.compileAtStart(ctx)
	if err != nil {
		return nil, err
	}
	with, err := d.inspection(d.config)
	if err != nil {
		return nil, err
	}
	keys, err := readCredentials(ctx, d.config, p.Digest())
	if err != nil {
		return nil, err
	}
	canaries, err := readCanaries(d.config)
	if err != nil {
		return nil, err
	}
	overTLS, err := d.tlsListener(d.config, with)
	if err != nil {
		return nil, err
	}
	d.gate.SetCanaries(canaries)
	sinks, err := sinksOf(d.config)
	if err != nil {
		return nil, err
	}
	witnesses, err := witnessesOf(d.config)
	if err != nil {
		return nil, err
	}
	d.with = with
	d.stays.trust(with)
	d.server.Inspect(with)
	d.overTLS.Store(overTLS)
	d.keys.add(keys)
	d.keys.keep(keys, d.config, d.complain)
	if err := d.listen(); err != nil {
		return nil, err
	}
	if err := d.recordStart(); err != nil {
		return nil, err
	}
	if err := d.gate.SetPolicy(ctx, p, "loaded "+d.path); err != nil {
		return nil, cli.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	d.policy = p
	d.attest()
	d.adopt(d.config)
	if err := d.sinks.Apply(sinks); err != nil {
		return nil, cli.Failed(err, "correct audit.sinks in "+d.path)
	}
	if err := d.anchors.Apply(d.config.File.Audit.Anchors, witnesses); err != nil {
		return nil, cli.Misused(err, "correct audit.anchors in "+d.path)
	}
	for _, w := range d.config.Warnings() {
		fmt.Fprintf(d.talk, "egressd: warning: %s\n", cli.Printable(w))
	}
	return p, d.noteProjects()
}

func (d *daemon) recordStart() error {
	for _, torn := range d.log.Recovered() {
		if err := d.gate.Note(egress.KindRecovery, fmt.Sprintf("%+v", torn)); err != nil {
			return cli.Failed(err, "free space for the audit log")
		}
	}
	if d.accepted != "" {
		if err := d.gate.Note(egress.KindRecovery, clipped(d.accepted)); err != nil {
			return cli.Failed(err, "free space for the audit log")
		}
	}
	note := "started " + cli.ThisBuild().String()
	if w := d.config.Warnings(); len(w) > 0 {
		note += "; warning: " + strings.Join(w, "; warning: ")
	}
	if err := d.gate.Note(egress.KindStart, clipped(note)); err != nil {
		return cli.Failed(fmt.Errorf("record the start: %w", err), "free space for the audit log")
	}
	return nil
}

func (d *daemon) compile(c *config.Config) (*policy.Policy, error) {
	return c.CompileWith(d.host.Addrs, func() []netip.AddrPort { return *d.own.Load() })
}

// parts names the files of the policy.
func (d *daemon) parts() string {
	text := d.path
	if d.config.Organisation != nil {
		text += ", " + d.config.Organisation.Path
	}
	if len(d.config.Rules) > 0 {
		text += " or its rego"
	}
	return text
}

// noteProjects tells the operator and the log of the projects that do not count.
func (d *daemon) noteProjects() error {
	for _, w := range d.config.ProjectWarnings() {
		fmt.Fprintf(d.talk, "egressd: warning: %s\n", cli.Printable(w))
		if err := d.gate.Note(egress.KindPolicy, clipped("warning: "+w)); err != nil {
			return cli.Failed(fmt.Errorf("record the policy: %w", err), "free space for the audit log")
		}
	}
	return nil
}

// clipped is a note of a length, in bytes, that a record has room for.
func clipped(note string) string { return note[:min(len(note), 1000)] }

// complain tells the operator of what went wrong beside the work.
func (d *daemon) complain(err error) { fmt.Fprintf(d.talk, "egressd: error: %v\n", err) }

// tell tells the operator of what is well again.
func (d *daemon) tell(text string) { fmt.Fprintf(d.talk, "egressd: %s\n", text) }

// close releases what newDaemon and start have opened.
func (d *daemon) close() {
	d.keys.close()
	for _, l := range d.listening {
		l.Close()
	}
	d.tailor.handed.close()
	d.closeNames()
	d.closeCaptured()
	d.closeDoors()
	d.containers.close()
	if d.gate != nil {
		d.gate.Settle()
	}
	if d.sinks != nil {
		d.sinks.Stop(0)
	}
	if d.log != nil {
		d.log.Close()
		d.anchors.Stop(anchorsDrain) // the last checkpoint was made just now
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
