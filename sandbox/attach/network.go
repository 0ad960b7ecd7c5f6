//go:build linux

package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox/capture"
)

// ErrAttached is for a network that a daemon serves already.
var ErrAttached = errors.New("this network is attached already")

// Addresses are those of the sandbox itself, as in the plan of a jail.
type Addresses struct{ IPv4, IPv6 netip.Addr }

// A Network has sockets that can be sent to a daemon. The caller closes it.
type Network struct {
	Request Request
	fds     []int
}

// OfJail returns the network of a jail. The descriptors are the jail's sockets in the order of
// [jailinit.CaptureSockets], and a pidfd of the jail's process.
func OfJail(redirected, ipv6 bool, fds []int) *Network {
	o := Request{Kind: KindRun, Mode: Transparent, IPv6: ipv6}
	if redirected {
		o.Mode = Redirected
	}
	return &Network{o, fds}
}

// Prepare makes sockets for the network of this thread, so that a daemon can serve it. Without CAP_NET_ADMIN
// the mode is [ByProxy]. Prepare fails with an [*OpenNetworkError] if the network has another way out, and with
// [ErrAttached] if a daemon serves it already. Until a daemon serves the sockets, captured connections lead
// nowhere.
func Prepare(own Addresses) (*Network, error) {
	if err := closedNetwork(); err != nil {
		return nil, err
	}
	if !mayAdminister() {
		return prepareProxy()
	}
	return prepareCapture(own)
}

// mayAdminister reports whether this thread has CAP_NET_ADMIN over its network.
func mayAdminister() bool {
	return jailinit.LoopbackUp() == nil
}

// prepareProxy opens a proxy on the loopback for a network that cannot be captured. The loopback has to be up
// already.
func prepareProxy() (*Network, error) {
	for _, names := range []bool{true, false} {
		o := Request{Kind: KindEnter, Mode: ByProxy, Names: names}
		fds, err := openSockets(o.plans())
		switch {
		case err == nil:
			return &Network{o, fds}, nil
		case names && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EADDRINUSE)):
			continue // a port below 1024 is not for everybody, and somebody may have it
		case errors.Is(err, unix.EADDRINUSE):
			return nil, fmt.Errorf("port %d of 127.0.0.1 is in use: %w", ProxyPort, ErrAttached)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return nil, errors.New("the loopback interface is down, and there is no CAP_NET_ADMIN to set it up")
		}
		return nil, err
	}
	panic("unreachable")
}

// prepareCapture loads rules that capture every connection and datagram, and opens the sockets for them. Rules
// of an earlier attachment are replaced.
func prepareCapture(own Addresses) (*Network, error) {
	if isAttached() {
		return nil, ErrAttached
	}
	plan := jailinit.Plan{IPv4: own.IPv4.AsSlice(), IPv6: own.IPv6.AsSlice(), Again: true}
	ipv6, err := jailinit.MakeNetwork(plan)
	if err != nil {
		return nil, err
	}
	redirected := false
	if err := jailinit.Capture(plan, ipv6, &redirected); err != nil {
		return nil, &jailinit.SetupError{Step: "packet filter", Err: err}
	}
	o := Request{Kind: KindEnter, Mode: Transparent, IPv6: ipv6}
	if redirected {
		o.Mode = Redirected
	}
	fds, err := openSockets(o.plans())
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %w", ErrAttached, err)
	}
	if err != nil {
		return nil, err
	}
	return &Network{o, fds}, nil
}

// isAttached reports whether a process listens for captured connections already.
func isAttached() bool {
	p := jailinit.Socket{Kind: jailinit.TCP4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: capture.CapturePort, Local: true}
	fd, err := p.Open()
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EADDRINUSE)
}

func openSockets(plans []jailinit.Socket) (fds []int, err error) {
	for _, p := range plans {
		fd, err := p.Open()
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, &jailinit.SetupError{Step: "socket " + string(p.Kind), Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Attach sends the network to the daemon and closes the sockets here.
func (r *Network) Attach(k *Client, name string) (*Attached, error) {
	defer r.Close()
	r.Request.Sandbox = name
	return k.attach(r.Request, r.fds)
}

// Close closes the sockets.
func (r *Network) Close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}
