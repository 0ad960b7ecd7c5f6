package runcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/daemon/confine"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/egressd/egressd/sandbox/exits"
)

// A runner is one program and the daemon that is there for it.
type runner struct {
	*daemon.Daemon
	options
	argv       []string
	talk       *cli.HeldTalk
	name       string
	folder     string // of this run
	jail       *sandbox.Jail
	sockets    *sandbox.Sockets
	program    sandbox.Program // as outline has it
	tried      []sandbox.Attempt
	unready    error // why the program cannot be started, once the sandbox stands
	ready      bool  // the last two say what came of it
	names      *dns.Server
	tally      egress.Tally
	hidden     []string
	ports      ports
	inside     []publishedPort
	given      []uint16 // ports of the host
	apart      *sandbox.Apart
	cut        []string // names of variables that the program does not get
	digest     string
	index      runIndex
	waysOut    func() []string // of the machine, which are hidden; prepare begins to look
	privileges func() error    // gives them up; once
	signals    func() *signals // that are caught; prepare begins to catch them
	beside     *otherDaemon    // the daemon that has the network; nil: this process is one
	serving    sync.WaitGroup
}

// jailListener is what the jail's sockets are called: whoever comes by them is
// its sandbox.
const jailListener = "run"

func (o *options) run(ctx context.Context, stderr io.Writer, argv []string) error {
	if len(argv) == 0 {
		return hint.Misused(errors.New("run needs a program"), "egressd run -- COMMAND")
	}
	if o.policy != "" {
		o.config = o.policy
	}
	if ctx == nil {
		ctx = context.Background()
	}
	inside, err := parsePublished(o.publish)
	if err != nil {
		return err
	}
	given, err := parseHostPorts(o.hostPorts, inside)
	if err != nil {
		return err
	}
	apart, err := o.fileSystem()
	if err != nil {
		return err
	}
	r := &runner{options: *o, argv: argv, talk: &cli.HeldTalk{To: stderr, Quiet: o.quiet}, inside: inside, given: given, apart: apart}
	r.privileges = sync.OnceValue(func() error { return confine.Privileges(r.talk) })
	r.waysOut = sync.OnceValue(func() []string { return hostpaths.HostSockets(r.doors) })
	r.signals = sync.OnceValue(catchSignals)
	defer func() { go r.signals().release() }() // which waits for the last of them to arrive
	if err := r.prepare(ctx); err != nil {
		return err
	}
	defer r.close()
	signals := r.signals()                                  // of which none ends this process from now on
	began, terminals := time.Now(), terminalsInForeground() // which the program may take
	if err := r.exec(); err != nil {
		r.jail.Close()
		if r.beside == nil {
			r.stop("the program could not be started")
		}
		return err
	}
	r.talk.Hold()
	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	if r.beside == nil {
		r.serving.Go(func() { r.FollowBundles(following) })
		r.serving.Go(func() { r.tidy(following) })
		r.index.early.Go(func() { _ = r.index.vouch(r.Log.Origin()) }) // where that fails it is tried again, and said
	}
	code, err := r.wait(signals)
	takeTerminals(terminals)
	unfollow()
	switch {
	case err == nil && r.beside != nil:
		return r.endBeside(code, time.Since(began))
	case r.beside == nil:
		r.stop("the program ended")
	}
	r.talk.Release()
	if err != nil {
		return hint.Failed(fmt.Errorf("wait for the program: %w", err), "egressd run -- "+argv[0])
	}
	return r.conclude(code, time.Since(began))
}

// prepare makes the sandbox, and beside it all that waits for it outside.
func (r *runner) prepare(ctx context.Context) (err error) {
	synthetic := egress.DefaultSynthetic()
	own4, own6 := synthetic.Own()
	// First: what is started later would have less to give up.
	if r.jail, err = sandbox.NewJail(sandbox.JailOptions{IPv4: own4, IPv6: own6, Redirect: r.redirect, HostPorts: r.given, Dialers: len(r.inside) > 0, Devices: hostpaths.Reals(r.doors)}); err != nil {
		return exits.NoSandbox(err)
	}
	defer func() {
		if err != nil {
			r.jail.Close()
			r.close()
		}
	}()
	if err := confine.Guard(); err != nil {
		return err
	}
	r.serving.Go(func() { r.waysOut(); r.signals() })
	r.Daemon, err = daemon.New(r.talk, r.config(), daemon.Tailoring{Change: r.change, Unread: true, Log: r.signRun, Synthetic: synthetic, Tally: &r.tally})
	if errors.Is(err, errDaemonAnswers) {
		return r.prepareBeside()
	}
	if err != nil {
		return err
	}
	mayInspect := r.Config.MayInspect() // which nobody else reads once it is put into force
	// Not before: what is to be hidden has to be there.
	stands := sync.OnceValue(func() error { return r.furnish(mayInspect) })
	go stands()
	p, err := r.Begin(ctx)
	if err != nil {
		r.jail.Signal(syscall.SIGKILL) // so that furnish does not wait for it
		_ = stands()
		return err
	}
	r.digest = p.Digest()
	go r.privileges() // while the jail is made ready
	if err := stands(); err != nil {
		return err
	}
	r.serve()
	return nil
}

// furnish does what needs the jail to stand, and knows nothing of the policy but its
// files, while that is put into force. Most often that is all there is to do before the
// program starts.
func (r *runner) furnish(mayInspect bool) (err error) {
	r.program = r.outline()
	if err := r.jail.Stand(); err != nil {
		return exits.NoSandbox(err)
	}
	if !mayInspect {
		r.jail.Begin(r.program)
	}
	if r.sockets, err = r.jail.Sockets(); err != nil {
		return exits.NoSandbox(err)
	}
	if !mayInspect {
		r.ready = true
		r.keepIndex() // nothing that takes long is to come
		if r.tried, r.unready = r.jail.Prepare(r.program); r.unready != nil {
			r.unready = exits.NotStarted(r.unready)
		}
	}
	return nil
}

// keepIndex opens the index of runs, and makes the key that it vouches for, beside the
// jail's work.
func (r *runner) keepIndex() {
	r.index.hold()
	r.serving.Go(func() { r.Log.Origin() })
}

// prepared has the jail be as the program will find it, and returns the ways out that
// were tried there. What it has to trust is known by now.
func (r *runner) prepared() ([]sandbox.Attempt, error) {
	if r.ready {
		return r.tried, r.unready
	}
	p := r.program
	if ca := r.authority(); ca != nil {
		path, system, err := certs.SystemRoots()
		if err != nil {
			return nil, hint.Failed(err, "install the package ca-certificates")
		}
		p.Covered = map[string][]byte{path: authority.Bundle(system, ca)}
		p.Env = environ.With(p.Env, environ.ForTrust(path))
	}
	tried, err := r.jail.Prepare(p)
	if err != nil {
		return nil, exits.NotStarted(err)
	}
	return tried, nil
}

func (r *runner) config() string { return r.options.config }

// change makes a policy file that of one program: it has one sandbox, no
// listener, and a log of its own.
func (r *runner) change(c *config.Config) error {
	name, err := sandboxName(c, r.options.name)
	if err != nil {
		return err
	}
	r.name = name
	runs, err := c.RunsDir()
	if err != nil {
		return err
	}
	if err := r.hideFiles(c, runs); err != nil {
		return err
	}
	beside := r.findDaemon(c)
	if err := r.checkCommands(c, beside); err != nil {
		return err
	}
	if beside {
		return errDaemonAnswers
	}
	if len(c.File.Sandboxes) == 0 {
		c.File.Sandboxes = []policy.SandboxRules{{Name: name}}
	}
	c.File.Listen.Proxy, c.File.Listen.DNS, c.File.Listen.Transparent, c.File.Listen.Enter = nil, nil, nil, nil
	c.Learn = r.learn
	own := c.OperatorAt()
	c.Operator = func() []netip.AddrPort { return append(config.OperatorsNow(), own...) }
	if err := allowHostPorts(c.File, name, r.given); err != nil {
		return err
	}
	for i := range c.File.Sandboxes {
		s := &c.File.Sandboxes[i]
		s.Listen, s.Enter, s.UIDs, s.Sources, s.Certificate = "", "", nil, nil, ""
	}
	c.Who = []sandbox.Entry{{Name: name, Listener: jailListener}}
	if r.folder == "" {
		r.index.run = newRunID(time.Now())
		r.folder = filepath.Join(runs, r.index.run)
	}
	c.File.Audit.Dir, c.File.Audit.Sinks = r.folder, nil // a run's own log stays here
	return r.anchorIndex(c)
}

// serve serves the jail's sockets until they are closed.
func (r *runner) serve() {
	how := proxy.Original(proxy.OriginalLocal)
	if r.sockets.Redirected {
		how = proxy.OriginalNAT
	}
	programs := r.sockets.Programs
	r.ports.gate, r.ports.programs, r.ports.dialers = r.Gate, programs, r.sockets.Dialers
	r.Server.Program = func(_ string, from, to netip.AddrPort) *policy.Process { return programs.Connected(from, to) }
	for _, l := range r.sockets.TCP {
		r.serving.Go(func() { r.complainOf(r.Server.ServeTransparent(l, jailListener, how)) })
	}
	r.names = &dns.Server{Gate: r.Gate, Program: func(network string, from, to netip.AddrPort) *policy.Process {
		if network == "tcp" {
			return programs.Connected(from, to)
		}
		return programs.Sent(from)
	}}
	for _, c := range r.sockets.DNS {
		r.serving.Go(func() { r.complainOf(r.names.ServeUDP(c, jailListener)) })
	}
	for _, l := range r.sockets.DNSStreams {
		r.serving.Go(func() { r.complainOf(r.names.ServeTCP(l, jailListener)) })
	}
	for _, d := range r.sockets.UDP {
		r.serving.Go(func() { daemon.RefuseDatagrams(r.Gate, jailListener, programs, d) })
	}
}

func (r *runner) complainOf(err error) {
	if err != nil && !errors.Is(err, proxy.ErrClosed) && !errors.Is(err, dns.ErrServerClosed) {
		r.Complain(err)
	}
}

// outline is the program as far as it is known before the policy is in force.
func (r *runner) outline() sandbox.Program {
	p := sandbox.Program{Argv: r.argv, Env: environ.Without(os.Environ(), r.cut), Apart: r.apart, Hidden: r.hidden, Doors: r.waysOut(), Fixed: slices.Concat(fixed(r.Config), hostpaths.PolicyFolders(), hostpaths.OwnProgram())}
	p.Nested = r.mayNest(slices.Concat(r.hidden, p.Fixed))
	if r.apart != nil {
		p.Env = environ.Without(p.Env, hostServices)
	} else if agent := os.Getenv(sshAgent); agent != "" && slices.Contains(p.Doors, filepath.Clean(agent)) {
		p.Env = environ.Without(p.Env, []string{sshAgent}) // so that ssh does not complain of it
	}
	return p
}

// exec tells who looks on what is in force, and starts the program.
func (r *runner) exec() error {
	if r.beside == nil {
		r.keepIndex()
	}
	tried, err := r.prepared()
	if err != nil {
		return err
	}
	if err := errors.Join(exits.Escaped(tried), r.privileges()); err != nil {
		return err
	}
	how := "transparent"
	if r.apart != nil {
		how += " · files apart"
	}
	if r.sockets.Redirected {
		how += " (NAT: datagrams are refused without a record)"
	}
	if r.beside != nil {
		how += " · by the egressd at " + r.beside.socket
	}
	fmt.Fprintf(r.talk, "egressd: sandbox %s · %s · policy %s (%.8s…) · self-test %d/%d\n", r.name, how, r.Path, strings.TrimPrefix(r.digest, "sha256:"), len(tried), len(tried))
	if err := errors.Join(r.ports.publish(r.inside, r.talk), r.ports.give(r.sockets.HostPorts, r.talk)); err != nil {
		return err
	}
	if r.learn {
		fmt.Fprintln(r.talk, "egressd: warning: learning: what no rule speaks of is let pass")
	}
	if err := r.jail.Exec(); err != nil {
		return exits.NotStarted(err)
	}
	return nil
}

// authority is what the program has to trust, or nil.
func (r *runner) authority() []byte {
	switch {
	case r.beside != nil && r.beside.handed.Answer.CA != "":
		return []byte(r.beside.handed.Answer.CA)
	case r.With != nil:
		return r.With.Authority.PEM()
	}
	return nil
}
