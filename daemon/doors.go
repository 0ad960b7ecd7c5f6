package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
)

// A networkDoor is a socket at which networks are handed in.
type networkDoor struct {
	boundListener
	door *attach.Server
}

// placeholders returns the range of placeholder addresses.
func (d *Daemon) placeholders() names.Range {
	if len(d.Config.EnterNames()) > 0 {
		return names.DefaultRange()
	}
	return d.tailor.Placeholders
}

// listenForNetworks opens the sockets at which networks are handed in.
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
			return hint.Failed(fmt.Errorf("listen on %s for networks: %w", name, err), "free it, or change listen.enter in "+d.Path)
		}
		door := &attach.Server{Name: name, Handle: d.enter, Refused: d.refuseVisitor, Forbids: d.entersAtAll}
		d.networkDoors = append(d.networkDoors, &networkDoor{l, door})
	}
	return nil
}

// ofOwner is the mode of a socket at which networks are handed in, unless who does so
// is known by its user, or the folder says otherwise.
const ofOwner = fs.FileMode(0o600)

// admitVisitors sets the modes of the sockets for attachments. If the configuration tells sandboxes by user, everybody may
// connect, since the kernel names the user. Otherwise only egressd's user may, and the group of a set-group-ID
// folder.
func (d *Daemon) admitVisitors(c *config.Config) error {
	for _, l := range d.networkDoors {
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

// serveDoors takes networks in from now on.
func (d *Daemon) serveDoors() {
	for _, l := range d.networkDoors {
		unix, ok := l.Listener.(*net.UnixListener)
		if !ok {
			continue
		}
		d.Serving.Go(func() {
			if err := l.door.Serve(unix); !errors.Is(err, net.ErrClosed) {
				d.isLost(l.name, err)
			}
		})
		fmt.Fprintf(d.Talk, "egressd: listening on %s (enter)\n", l.name)
	}
}

func (d *Daemon) closeDoors() {
	for _, l := range d.networkDoors {
		l.door.Close()
		l.Close()
	}
}

// endStays ends all attachments. They accept no more connections, and open ones may go on until ctx is done. wait blocks
// until they have ended.
func (d *Daemon) endStays(ctx context.Context) (wait func()) {
	d.stays.drain.Store(&ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.closeDoors()
	}()
	return func() { <-ended }
}

// entersAtAll says why a visitor is no sandbox.
func (d *Daemon) entersAtAll(v sandbox.Attacher) (next string, why error) {
	return nobodyEnters, d.sandboxes.MayAttach(v)
}

// nobodyEnters is what somebody types next who may not hand anything in.
const nobodyEnters = "list it under sandboxes with enter, uid or docker, and hand it in by that socket or as that user; --name counts for root on the host alone"

// refuseVisitor records what was no offer, or one that somebody may not make.
func (d *Daemon) refuseVisitor(v sandbox.Attacher, raw []byte, why error) {
	peer, class := sandbox.Peer{Listener: v.Listener, UID: v.UID, HasUID: true}, policy.MalformedRequest
	if errors.Is(why, sandbox.ErrUnknown) {
		class = policy.UnknownSandbox
	}
	d.Gate.Refuse(peer, policy.ViaEnter, raw, class, why.Error())
}
