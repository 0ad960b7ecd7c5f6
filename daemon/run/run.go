// Package run is the engine of egressd run. It makes a jail with egressd's listeners in it, starts the program
// there, and serves it as a daemon with one sandbox and a log of its own; beside a running egressd serve it
// attaches the jail to that daemon instead. It prints what a person has to know to the writer that it is given.
package run

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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/daemon/confine"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/daemon/runs"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/talk"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/capture"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/egressd/egressd/sandbox/jail"
)

// A runner is one program and the daemon that is there for it.
type runner struct {
	*daemon.Daemon
	options     Options
	argv        []string
	talk        *talk.Held
	name        string
	runs        string     // folder of all runs
	temporary   string     // the folder of a run that cannot write to the usual one, or empty
	moved       bool       // runs is in temporary
	folder      string     // of this run
	running     *os.File   // the lock of that folder, where it holds no log
	entry       source.Run // that egressd log --runs lists
	jail        *jail.Jail
	sockets     *capture.Sockets
	program     jail.Program // as outline has it
	tried       []jail.WayOut
	unready     error // why the program cannot be started, once the sandbox stands
	ready       bool  // the last two say what came of it
	names       *dns.Server
	tally       egress.Tally
	denied      chan denial // places that the tally counts for the first time
	hidden      []string
	policyEnd   func() bool // of a policy in the working tree, see checkPolicyInTree; or nil
	ports       ports
	inside      []publishedPort
	auto        bool             // publish what programs listen on, see publishAuto
	given       []uint16         // ports of the host
	allowed     []policy.Pattern // Options.Allow
	apart       *jail.Apart
	repository  *repository      // of the working directory, with --fs
	keys        *sshKeys         // for Options.SSHKeys, or nil
	cut         []string         // names of variables that the program does not get
	proxies     []string         // names of proxy variables among cut
	denials     *inspect.Denials // what denied TLS is answered with, or nil
	digest      string
	index       runs.Index
	hostSockets func() []string // of the machine, which are hidden; prepare begins to look
	privileges  func() error    // gives them up; once
	signals     func() *signals // that are caught; prepare begins to catch them
	beside      *otherDaemon    // the daemon that has the network; nil: this process is one
	serving     sync.WaitGroup

	terminal *os.File             // where the policy's questions are asked, see openTerminal; or nil
	asking   atomic.Bool          // the program is stopped while a person is asked
	prompt   sync.Mutex           // held while a person is asked; nothing else is written then
	records  *source.RecordReader // what the daemon beside this run records from now on; nil if this user cannot read its log
	summary  *os.File             // for Options.Summary, or nil

	answersProxy bool // the policy has its proxy at proxyPort
}

// jailListener is what the jail's sockets are called: whoever comes by them is
// its sandbox.
const jailListener = "run"

// Options say how [Run] runs a program.
type Options struct {
	Config      string   // path of the policy file; empty for the usual one
	Allow       []string // patterns that the run allows beside the policy file
	Presets     []string // presets that the run has beside those of the policy file
	Name        string   // of the sandbox; empty for the name of the working directory
	Publish     []string // ports of the sandbox, as [HOSTPORT:]PORT, that are reached on the host's loopback
	HostPorts   []string // ports of the host's loopback that the sandbox reaches on its own
	HostSockets []string // host sockets that the program may use
	SSHKeys     []string // fingerprints or comments of keys of the user's ssh agent that the program may sign with
	Hide        []string // files and folders that the program must not see
	Apart       bool     // the program gets a file system of its own, but for the working directory
	Share       []string // files and folders that such a program may change, too
	Nested      bool     // the program may make mount namespaces
	Alone       bool     // use no egressd serve, even if one answers
	Learn       bool     // let pass what no rule speaks of
	Redirect    bool     // capture by NAT even if the kernel has tproxy
	FailOnDeny  bool     // return [exits.Denied] if the program succeeds and something was denied
	NoCA        bool     // answer no denial inside TLS
	Quiet       bool     // write only errors to stderr
	Wait        bool     // keep the sandbox until all that the program has left behind has ended, too
	Summary     string   // path of a file for what the run came to, as JSON; empty for none
}

// An Ended is how a run ended.
type Ended struct {
	Code   int            // exit code; 128+N if signal N ended the program
	Signal syscall.Signal // that ended the program, or 0
	Fixes  []string       // commands that allow what was denied, see offered
}

// Run runs a program in a jail, and returns how the program has ended. With an error it returns no
// exit code; [exits.AsSandbox] gives the error one. The program has the standard streams of this process; egressd
// writes its own messages to stderr before the program starts and after it ends.
//
// In order: prepare makes the jail ([jail.New]) and the daemon of this run beside it; furnish, beside the daemon's start,
// takes the jail's sockets; serve serves them; completeJail has the ways out tried and the jail closed; exec starts the
// program and waits; conclude says what was denied.
func Run(ctx context.Context, stderr io.Writer, argv []string, o Options) (end Ended, err error) {
	if len(argv) == 0 {
		return end, hint.Misused(errors.New("run needs a program"), "egressd run -- COMMAND")
	}
	if err := refuseStreams(); err != nil {
		return end, err
	}
	inside, auto, err := parsePublished(o.Publish)
	if err != nil {
		return end, err
	}
	given, err := parseHostPorts(o.HostPorts, inside)
	if err != nil {
		return end, err
	}
	apart, git, err := o.fileSystem()
	if err != nil {
		return end, err
	}
	allowed, err := o.allowed()
	if err != nil {
		return end, err
	}
	for _, path := range o.HostSockets {
		if _, err := os.Stat(path); err != nil {
			return end, hint.Misused(fmt.Errorf("--host-socket: %w", err), "start what listens there first; egressd doctor lists the sockets that lead out")
		}
		if err := refuseLinks("--host-socket", path); err != nil {
			return end, err
		}
	}
	keys, err := o.openKeys()
	if err != nil {
		return end, err
	}
	r := &runner{options: o, argv: argv, keys: keys, allowed: allowed, talk: &talk.Held{To: stderr, Quiet: o.Quiet}, inside: inside, auto: auto, given: given, apart: apart, repository: git}
	r.privileges = sync.OnceValue(func() error { return confine.Privileges(r.talk) })
	r.hostSockets = sync.OnceValue(func() []string { return hostpaths.HostSockets(r.options.HostSockets) })
	r.signals = sync.OnceValue(catchSignals)
	defer func() { go r.signals().release() }() // which waits for the last of them to arrive
	r.noteDenials()
	if err := r.openSummary(); err != nil {
		return end, err
	}
	if err := r.prepare(ctx); err != nil {
		return end, err
	}
	defer r.close()
	r.openTerminal()
	signals := r.signals()                                  // of which none ends this process from now on
	began, terminals := time.Now(), terminalsInForeground() // which the program may take
	taken := autoPorts(r.sockets.Programs.Listeners())      // egressd's own, in the jail
	var asked *os.File                                      // for publishAuto
	if r.auto {
		asked = r.ownTerminal()
		defer asked.Close() // nil is fine
	}
	if err := r.exec(); err != nil {
		r.jail.Close()
		if r.beside == nil {
			r.stop("the program could not be started")
		}
		return end, err
	}
	r.talk.Hold()
	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	if r.beside == nil {
		r.serving.Go(func() { r.Follow(following) })
		r.serving.Go(func() { r.tidy(following) })
		r.serving.Go(func() { r.Send(following, r.runs) })
		r.index.Early.Go(func() { _ = r.index.Vouch(r.Log.Origin()) }) // where that fails it is tried again, and said
	}
	var asking sync.WaitGroup
	if r.beside == nil && r.Config.File.ApproveWithin != "" {
		asking.Go(func() { r.ApproveWithin(following) })
	}
	switch {
	case r.beside != nil:
		asking.Go(func() { r.tellQuestions(following) })
		if !r.options.Quiet {
			asking.Go(func() { r.followDenials(following) })
		}
	case r.terminal != nil:
		asking.Go(func() { r.askAll(following) })
	}
	if !r.options.Quiet {
		asking.Go(func() { r.tellDenials(following) })
	}
	if r.auto {
		asking.Go(func() { r.publishAuto(following, taken, asked) })
	}
	status, err := r.wait(signals)
	takeTerminals(terminals)
	if err == nil {
		if status.Signal() == syscall.SIGKILL && r.jail.LostReaper() {
			r.Complain(errors.New("something ended the first process of the sandbox, and the kernel killed the program with it"))
		}
		r.endLeft(signals)
		end.Code = status.ExitStatus()
		if status.Signaled() {
			end.Code, end.Signal = exits.Signal+int(status.Signal()), status.Signal()
		}
	}
	unfollow()
	asking.Wait()
	switch {
	case err == nil && r.beside != nil:
		end.Code, end.Fixes, err = r.endBeside(end.Code, time.Since(began))
		return end, err
	case r.beside == nil:
		r.stop("the program ended")
	}
	r.talk.Release()
	if err != nil {
		return end, hint.Failed(fmt.Errorf("wait for the program: %w", err), "egressd run -- "+argv[0])
	}
	end.Code, end.Fixes = r.conclude(end.Code, time.Since(began))
	return end, nil
}

// prepare makes the sandbox, and beside it all that waits for it outside.
func (r *runner) prepare(ctx context.Context) (err error) {
	own4, own6 := names.Own()
	// First: what is started later would have less to give up.
	if r.jail, err = jail.New(jail.Options{IPv4: own4, IPv6: own6, Redirect: r.options.Redirect, HostPorts: r.listened(), Dialers: len(r.inside) > 0 || r.auto, Devices: hostpaths.Reals(r.options.HostSockets), Serve: r.serveFolder}); err != nil {
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
	r.serving.Go(func() { r.hostSockets(); r.signals() })
	r.Daemon, err = daemon.New(r.talk, r.options.Config, daemon.Tailoring{Change: r.change, Unread: true, Log: r.signRun, Placeholders: true, Tally: &r.tally, OneRun: true, NoFile: r.options.adds()})
	var none *config.NotFoundError
	switch {
	case errors.Is(err, errDaemonAnswers):
		return r.prepareBeside()
	case errors.As(err, &none):
		return hint.Misused(none, "egressd init; or without a file: egressd run --allow HOST -- COMMAND")
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
	r.warnOfRefused(ctx, p)
	go r.privileges() // while the jail is made ready
	if err := stands(); err != nil {
		return err
	}
	r.serve()
	r.answerDenials()
	return nil
}

// furnish sets up the jail while Begin loads the policy. If the policy inspects nothing, it also prepares the
// program in the jail.
func (r *runner) furnish(mayInspect bool) (err error) {
	r.program = r.outline()
	if !mayInspect {
		r.trustDenials(&r.program)
		r.jail.Begin(r.program)
	}
	if err := r.jail.Stand(); err != nil {
		return exits.NoSandbox(err)
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
	r.index.Hold()
	r.serving.Go(func() { r.Log.Origin() })
}

// completeJail completes the jail and returns the attempts to get out of it. The policy is in force by now, so completeJail
// knows which authority the program must trust.
func (r *runner) completeJail() ([]jail.WayOut, error) {
	if r.ready {
		return r.tried, r.unready
	}
	p := r.program
	switch ca := r.authority(); {
	case ca == nil && r.beside == nil:
		r.trustDenials(&p)
		r.answerDenials()
	case ca != nil:
		path, system, err := certs.SystemRoots()
		if err != nil {
			return nil, hint.Failed(err, "install the package ca-certificates")
		}
		p.Covered[path] = authority.Bundle(system, ca)
		coverJavaStores(&p, ca)
		p.Env = environ.With(p.Env, environ.ForTrust(path))
		p.Env = environ.With(p.Env, r.placeholders())
	}
	tried, err := r.jail.Prepare(p)
	if err != nil {
		return nil, exits.NotStarted(err)
	}
	return tried, nil
}

// change makes a policy file that of one program: it has one sandbox, no
// listener, and a log of its own.
func (r *runner) change(c *config.Config) error {
	name, err := sandboxName(c, r.options.Name)
	if err != nil {
		return err
	}
	r.name = name
	folder, err := r.runsFolder(c)
	if err != nil {
		return err
	}
	r.runs = folder
	if err := r.hideFiles(c, folder); err != nil {
		return err
	}
	if err := r.checkPolicyInTree(c); err != nil {
		return err
	}
	if err := r.keys.listen(folder); err != nil {
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
		c.File.Sandboxes = []file.SandboxRules{{Name: name}}
	}
	r.answersProxy = listensLocally(c.File.Listen.Proxy)
	c.File.Listen.Proxy, c.File.Listen.DNS, c.File.Listen.Transparent, c.File.Listen.Enter = nil, nil, nil, nil
	c.Learn = r.options.Learn
	r.add(c)
	own := c.AdminAt()
	c.AdminListeners = func() []netip.AddrPort { return append(config.AdminListenersNow(), own...) }
	if err := allowHostPorts(c.File, name, r.given); err != nil {
		return err
	}
	for i := range c.File.Sandboxes {
		s := &c.File.Sandboxes[i]
		s.Listen, s.Enter, s.UIDs, s.Sources, s.Certificate = "", "", nil, nil, ""
	}
	c.Who = []sandbox.Entry{{Name: name, Listener: jailListener}}
	if r.folder == "" {
		r.index.Run = runs.NewID(time.Now())
		r.folder = filepath.Join(folder, r.index.Run)
	}
	c.File.Audit.Dir = r.folder
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
	r.names = &dns.Server{Gate: r.Gate, Placeholders: true, Program: func(network string, from, to netip.AddrPort) *policy.Process {
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
func (r *runner) outline() jail.Program {
	p := jail.Program{Argv: r.argv, Env: environ.Without(r.withoutProxies(os.Environ()), r.cut), Apart: r.apart, Hidden: r.hidden, HostSockets: r.hostSockets(), Services: hostpaths.NamedSockets(), Fixed: slices.Concat(r.fixed(r.Config), hostpaths.PolicyFolders(), hostpaths.OwnProgram())}
	p.Covered = map[string][]byte{}
	coverHosts(p.Covered)
	coverSSH(p.Covered)
	p.Nested = r.mayNest(slices.Concat(r.hidden, p.Fixed))
	p.Env = environ.Without(p.Env, inherited)
	if !r.jail.AllUsers() {
		p.Env = environ.With(p.Env, []environ.Variable{{Name: "FAKEROOTDONTTRYCHOWN", Value: "1"}}) // fakeroot expects EPERM of chown(2), and the kernel says EINVAL
	}
	if r.apart != nil {
		p.Env = environ.Without(p.Env, hostServices)
		if r.repository.partly != "" {
			p.Env = environ.With(p.Env, []environ.Variable{{Name: "GIT_DISCOVERY_ACROSS_FILESYSTEM", Value: "1"}}) // the working directory is a mount
		}
	} else if agent := os.Getenv(sshAgent); agent != "" && slices.Contains(p.HostSockets, filepath.Clean(agent)) {
		p.Env = environ.Without(p.Env, []string{sshAgent}) // so that ssh does not complain of it
	}
	if r.keys != nil {
		p.AgentSocket, p.Agent = r.keys.socket, r.keys.agent
		p.Env = environ.With(p.Env, []environ.Variable{{Name: sshAgent, Value: r.keys.agent}})
	}
	return p
}

// inherited are variables by which programs find sockets that a parent leaves open for them, which are closed in the jail.
var inherited = []string{nodeChannel, "NODE_CHANNEL_SERIALIZATION_MODE", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WAYLAND_SOCKET"}

const nodeChannel = "NODE_CHANNEL_FD"

// exec prints what is in force, and starts the program.
func (r *runner) exec() error {
	if r.beside == nil {
		r.keepIndex()
	}
	tried, err := r.completeJail()
	if err != nil {
		return err
	}
	if err := errors.Join(exits.Escaped(tried), r.privileges()); err != nil {
		return err
	}
	how := "all traffic captured"
	if r.apart != nil {
		how += ", files apart"
	}
	if r.sockets.Redirected {
		how += " by NAT: datagrams are refused without a record"
	}
	if !r.jail.OwnProcesses() {
		how += ", processes not apart: see egressd doctor"
	}
	if r.beside != nil {
		how += ", decided by the egressd at " + r.beside.socket
	}
	how += r.missingUsers()
	path := r.Path
	if r.Config.NoFile {
		path = "of --allow and --preset alone"
	}
	fmt.Fprintf(r.talk, "egressd: sandbox %s (%s), policy %s (%.8s…), %d escape checks passed\n", r.name, how, path, strings.TrimPrefix(r.digest, "sha256:"), len(tried))
	r.serveProxy()
	if err := errors.Join(r.ports.publish(r.inside, r.talk), r.ports.give(r.sockets.HostPorts, r.talk)); err != nil {
		return err
	}
	r.sayProxies()
	r.sayNesting(r.program.Nested)
	r.sayRepository()
	r.sayUsers()
	r.sayAgents()
	r.serveKeys()
	r.sayPolicyInTree()
	if os.Getenv(nodeChannel) != "" {
		fmt.Fprintln(r.talk, "egressd: warning: the channel between this program and the Node.js that starts it is closed: process.send is not there")
	}
	r.register()
	if r.options.Learn {
		fmt.Fprintln(r.talk, "egressd: warning: --learn allows every public host that no rule mentions")
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
