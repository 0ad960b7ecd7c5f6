package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox/capture"
)

// ErrAttached is for a network that a daemon has already.
var ErrAttached = errors.New("this network has been handed in already")

// Networks are made ready by the addresses of a sandbox, as in [JailOptions].
type Addresses struct{ IPv4, IPv6 netip.Addr }

// A Network network is one whose sockets can be handed in. The caller closes it.
type Network struct {
	Request Request
	fds     []int
}

// OfJail returns the network of a jail, whose descriptors are the sockets in the order of
// [jailinit.CaptureSockets], and the jail's process.
func OfJail(redirected, ipv6 bool, fds []int) *Network {
	o := Request{Kind: KindRun, Mode: Transparent, IPv6: ipv6}
	if redirected {
		o.Mode = Redirected
	}
	return &Network{o, fds}
}

// Prepare makes the network of this thread one that can be handed in. It refuses one
// that has any way out, with an [*OpenNetworkError], and one that has been handed
// in. Where the thread may not administer it, the result is [ByProxy]. What it has changed
// leads nowhere as long as the network is not handed in.
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

// prepareProxy opens what programs find by variables. The loopback has to be up, as
// whoever makes a network without others leaves it.
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

// prepareCapture has all that is sent anywhere arrive at sockets. What somebody did
// before, whose daemon is gone, is done again.
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

// taken reports whether somebody waits for what is captured.
func isAttached() bool {
	p := jailinit.Socket{Kind: jailinit.TCP4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: capture.CapturePort, Inside: true}
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

// Attach offers the network at the door that was knocked at, and keeps none of its
// sockets: from then on they are where it was handed in, or nowhere.
func (r *Network) Attach(k *Client, name string) (*Attached, error) {
	defer r.Close()
	r.Request.Sandbox = name
	return k.attach(r.Request, r.fds)
}

// Close closes the sockets that were not handed in.
func (r *Network) Close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}
