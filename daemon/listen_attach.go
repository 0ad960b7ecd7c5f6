//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
)

// An attachListener is a socket at which networks are attached.
type attachListener struct {
	boundListener
	server *attach.Server
}

func (d *Daemon) placeholders() names.Range {
	if len(d.Config.EnterNames()) == 0 && !d.tailor.Placeholders {
		return names.Range{}
	}
	r, own := names.DefaultRange(), d.Config.File.Placeholders
	if own.IPv4.IsValid() {
		r.IPv4 = own.IPv4
	}
	if own.IPv6.IsValid() {
		r.IPv6 = own.IPv6
	}
	return r
}

// listenForNetworks opens the sockets at which networks are attached.
func (d *Daemon) listenForNetworks() error {
	names := d.Config.EnterNames()
	if len(names) == 0 {
		return nil
	}
	if err := sandbox.TellsNetworksApart(); err != nil {
		return hint.Failed(fmt.Errorf("listen.enter: %w", err), "leave listen.enter and enter out of "+d.Path)
	}
	for _, name := range names {
		l, err := openSocket("unixpacket", name, strings.TrimPrefix(name, file.UnixListener), ofOwner)
		if err != nil {
			next := "free it, or change listen.enter in " + d.Path
			if errors.Is(err, fs.ErrPermission) {
				next = "an ordinary user's socket is at unix:${XDG_RUNTIME_DIR}/egressd/NAME/enter.sock: change enter in " + d.Path
			}
			return hint.Failed(fmt.Errorf("listen on %s for networks: %w", name, err), next)
		}
		server := &attach.Server{Name: name, Handle: d.attachments.serve, Refused: d.attachments.refuse, Told: d.attachments.told, Forbids: d.attachments.forbids}
		d.attachments.listeners = append(d.attachments.listeners, &attachListener{l, server})
	}
	return nil
}

func (d *Daemon) prepareAttachments() {
	a := &d.attachments
	a.gate, a.server, a.sandboxes, a.path, a.complain = d.Gate, d.Server, d.sandboxes, d.Path, d.Complain
	a.denials = sync.OnceValue(a.answerDenials)
	a.variables = func(name string) []credentials.Variable { all, _ := d.Variables(name); return all }
	c := d.Config
	a.judge = func(pid int) error { return judgeContainer(c, pid) }
}

// A unheldContainer is a container that has a setting by which it gets around egressd.
type unheldContainer struct {
	*sandbox.RefusedContainer
	instead string // what to write
}

func (e *unheldContainer) Error() string {
	return fmt.Sprintf("the container %s has %s", e.Name, e.Reason)
}

// judgeContainer holds the container of a process to the table of package boundary, as its engine describes it now.
func judgeContainer(c *config.Config, pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookPatience)
	defer cancel()
	s, err := containers.Around(ctx, c.EngineSocket(), pid)
	if err != nil || s == nil {
		return err
	}
	m := hostpaths.Machine("", c.EngineSocket(), c)
	s.On(m)
	for _, b := range boundary.Judge(containers.AsMounted(s.Container, pid, m.Doors), m) {
		return &unheldContainer{s.Refused(b.Field, b.As("--")+": "+b.Why), b.Instead}
	}
	return nil
}

// lookPatience is how long the engine may take to describe a container; the client waits no longer.
const lookPatience = 2 * time.Second

// setModes sets the modes of the sockets for attachments. If the configuration tells sandboxes by user, everybody may
// connect, since the kernel names the user. Otherwise only egressd's user may, and the group of a set-group-ID
// folder.
func (a *attachments) setModes(c *config.Config) error {
	for _, l := range a.listeners {
		mode := ofOwner
		switch {
		case c.AsksWhoEnters(l.name):
			mode = ofEveryone
		case givesGroup(config.FolderOfSocket(l.name)):
			mode = ofGroup
		}
		if err := l.file.chmod(mode); err != nil {
			return hint.Failed(err, "let egressd own "+l.file.held.Name())
		}
	}
	return nil
}

func givesGroup(folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && info.Mode()&fs.ModeSetgid != 0
}

// serveAttachments begins to accept networks.
func (d *Daemon) serveAttachments() {
	for _, l := range d.attachments.listeners {
		unix, ok := l.Listener.(*net.UnixListener)
		if !ok {
			continue
		}
		d.Serving.Go(func() {
			if err := l.server.Serve(unix); !errors.Is(err, net.ErrClosed) {
				d.admin.isLost(l.name, err)
			}
		})
		fmt.Fprintf(d.Talk, "egressd: listening on %s (enter)\n", l.name)
	}
}

// close closes the sockets and what came in by them.
func (a *attachments) close() {
	for _, l := range a.listeners {
		l.server.Close()
		l.Close()
	}
}

// stop ends all attachments. They accept no more connections, and open ones may go on until ctx is done. wait blocks
// until they have ended.
func (a *attachments) stop(ctx context.Context) (wait func()) {
	a.drain.Store(&ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.close()
	}()
	return func() { <-ended }
}

func (a *attachments) forbids(v sandbox.Attacher) (next string, why error) {
	return nobodyAttaches, a.sandboxes.MayAttach(v)
}

// nobodyAttaches is what somebody types next who may not attach a network.
const nobodyAttaches = "list it under sandboxes with enter, uid or docker, and attach it by that socket or as that user; --name counts for root on the host alone"

// told records that a client of the machine has refused a container. The socket and the user tell which sandbox it would have
// been.
func (a *attachments) told(v sandbox.Attacher, c *sandbox.RefusedContainer) (id string, err error) {
	who, err := a.sandboxes.IdentifyAttacher(v)
	if err != nil {
		who = policy.Sandbox{}
	}
	return recordRefused(a.gate, who, c, fmt.Sprintf("uid %d says so at %s", v.UID, v.Listener))
}

// refuse records an attempt to attach a network: the message is malformed, or its sender is no sandbox.
func (a *attachments) refuse(v sandbox.Attacher, raw []byte, why error) {
	peer, class := sandbox.Peer{Listener: v.Listener, UID: v.UID, HasUID: true}, policy.MalformedRequest
	if errors.Is(why, sandbox.ErrUnknown) {
		class = policy.UnknownSandbox
	}
	a.gate.Refuse(peer, policy.ViaEnter, raw, class, why.Error())
}
