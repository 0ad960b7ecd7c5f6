package run

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/exits"
)

// errDaemonAnswers ends the making of a daemon for one program, since there is one
// already.
var errDaemonAnswers = errors.New("a daemon answers")

// An otherDaemon is a running egressd serve that decides and records for the program, so that the run needs no daemon.
type otherDaemon struct {
	config *config.Config
	socket string
	handed *attach.Attached
	stop   *os.File // closed where nobody wants to know any more whether the daemon is there
	lost   bool
	done   chan struct{}
}

// findDaemon looks for a daemon of this user at the sockets of listen.enter, where any sandbox may attach.
func (r *runner) findDaemon(c *config.Config) bool {
	if r.options.Alone || r.Daemon != nil || r.beside != nil {
		return false
	}
	for _, name := range c.File.Listen.Enter {
		socket := strings.TrimPrefix(name, file.UnixListener)
		conn, err := attach.Dial(socket)
		if err != nil {
			continue
		}
		conn.Close()
		if conn.UID == uint32(os.Geteuid()) { // another user's is none of this one's business
			r.beside = &otherDaemon{config: c, socket: socket}
			return true
		}
	}
	return false
}

// prepareBeside attaches the jail to the daemon that findDaemon found.
func (r *runner) prepareBeside() error {
	c := r.beside.config
	if len(r.given) > 0 {
		return hint.Misused(fmt.Errorf("--host-port: the policy is that of the egressd at %s, to which no port can be added", r.beside.socket),
			fmt.Sprintf("egressd run --alone --host-port %d -- COMMAND, or 127.0.0.1:%d under unsafe_allow", r.given[0], r.given[0]))
	}
	if r.options.adds() {
		return hint.Misused(fmt.Errorf("--allow and --preset: the egressd at %s decides by its own policy", r.beside.socket),
			"egressd run --alone with the same flags; or egressd allow HOST, for a while")
	}
	r.Daemon = &daemon.Daemon{Talk: r.talk, Config: c, Path: c.Path}
	captured, err := r.jail.Captured()
	if err != nil {
		return exits.NoSandbox(err)
	}
	network := attach.OfJail(captured.Redirected, captured.IPv6, captured.FDs)
	defer network.Close()
	r.sockets = captured.Rest
	r.ports.dialers = r.sockets.Dialers
	r.program = r.outline()
	if err := r.ports.publish(r.inside, r.talk); err != nil {
		return err
	}
	r.inside = nil
	network.Request.Notes = r.ports.notes
	conn, err := attach.Dial(r.beside.socket)
	if err != nil {
		return hint.Failed(err, "egressd run --alone -- COMMAND")
	}
	handed, err := network.Attach(conn, r.name)
	if err != nil {
		var refused *attach.RefusedError
		next := "egressd run --alone -- COMMAND"
		if errors.As(err, &refused) {
			next = cmp.Or(refused.Hint+"; or ", "") + next
		}
		return hint.Failed(err, next)
	}
	r.beside.handed = handed
	if !sameFile(handed.Answer.File, c.Path) {
		return hint.Failed(fmt.Errorf("the egressd at %s has another policy, %s", r.beside.socket, handed.Answer.File), "egressd run --alone -- COMMAND, or --config "+handed.Answer.File)
	}
	r.digest = handed.Answer.Policy
	return r.watchDaemon()
}

func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	second, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(first, second)
}

// watchDaemon says so when the daemon is gone: the program has no network then.
func (r *runner) watchDaemon() error {
	stop, closing, err := os.Pipe()
	if err != nil {
		return exits.NoSandbox(err)
	}
	b := r.beside
	b.stop, b.done = closing, make(chan struct{})
	go func() {
		defer close(b.done)
		defer stop.Close()
		if b.lost = b.handed.Lost(stop); b.lost {
			r.talk.Say("egressd: error: the egressd that has the network of this program is gone: the program has none any more\n" +
				"egressd: hint: start egressd serve, and the program again\n")
		}
	}()
	return nil
}

// leave tells the daemon that the program has ended, and returns what it came to. It is
// called once.
func (b *otherDaemon) leave() (c egress.Counts, err error) {
	b.stop.Close()
	<-b.done
	if b.lost {
		b.handed.Close()
		return c, errors.New("the egressd that had the network of the program is gone, and what the run came to is not known")
	}
	if err := b.handed.End(&c); err != nil {
		return c, fmt.Errorf("ask the egressd at %s what the run came to: %w", b.socket, err)
	}
	return c, nil
}

// close lets go of the daemon where the program was never started.
func (b *otherDaemon) close() {
	if b.stop != nil {
		b.stop.Close()
		<-b.done
		b.stop = nil
	}
	if b.handed != nil {
		b.handed.Close()
	}
}

// endBeside is stop and conclude for a program whose network another egressd had.
func (r *runner) endBeside(code int, took time.Duration) (_ int, fixes []string, _ error) {
	r.ports.stop()
	c, err := r.beside.leave()
	r.beside.stop = nil
	r.talk.Release()
	if err != nil {
		next := r.logCommand()
		if code == 0 && r.options.FailOnDeny {
			return 0, nil, hint.Failed(err, next)
		}
		hint.Write(r.talk, err, next)
	} else {
		summarize(r.talk, c, took, r.denyMessage(), r.logCommand())
		fixes = offered(c)
	}
	r.registerEnd(code, c)
	r.writeSummary(code, c, took)
	return r.exitCode(code, c), fixes, nil
}

// exitCode returns the exit code of the run, for the exit code of its program.
func (r *runner) exitCode(code int, c egress.Counts) int {
	if code == 0 && r.options.FailOnDeny && len(c.Denied) > 0 {
		code = exits.Denied
	}
	return code
}

// hideAttachSockets hides the sockets of listen.enter: a program that reached one could attach a network in the
// name of another sandbox. It hides their folders, because a restarted daemon makes new sockets.
func (r *runner) hideAttachSockets(c *config.Config) error {
	if unset := slices.Concat(c.File.Unset("listen.enter"), c.File.Unset("sandboxes[")); len(unset) > 0 {
		return hint.Misused(unset, "set the variable as for egressd serve, since its sockets are hidden from the program")
	}
	for _, folder := range c.EnterFolders() {
		if holdsOthers(folder) {
			return hint.Misused(fmt.Errorf("sockets of listen.enter lie in %s, which cannot be hidden from the program", folder),
				"give them a folder of their own, such as unix:${XDG_RUNTIME_DIR}/egressd/enter.sock")
		}
		_ = daemon.MakeFolder(folder) // what is not there cannot be hidden, and could be made later
		r.hidden = append(r.hidden, folder)
	}
	return nil
}

// holdsOthers reports whether a folder is, or holds, what programs need.
func holdsOthers(folder string) bool {
	needed := []string{"/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run", "/etc", "/usr", fmt.Sprintf("/run/user/%d", os.Getuid()), os.Getenv("HOME"), os.Getenv("XDG_RUNTIME_DIR")}
	if dir, err := os.Getwd(); err == nil {
		needed = append(needed, dir)
	}
	return slices.ContainsFunc(needed, func(path string) bool {
		return filepath.IsAbs(path) && hostpaths.Within(hostpaths.Real(path), hostpaths.Real(folder))
	})
}
