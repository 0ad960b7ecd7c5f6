package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A network that has a way out besides egressd is none that it can hold a program
// in.
type OpenNetworkError struct{ Ways []string }

func (e *OpenNetworkError) Error() string {
	return "this is no boundary: the network has " + strings.Join(e.Ways, ", ") + ", by which a program gets out past egressd"
}

// ErrHandedIn is for a network that a daemon has already.
var ErrHandedIn = errors.New("this network has been handed in already")

// Networks are made ready by the addresses of a sandbox, as in [JailOptions].
type Addresses struct{ IPv4, IPv6 netip.Addr }

// A Readied network is one whose sockets can be handed in. The caller closes it.
type Readied struct {
	Offer Offer
	fds   []int
}

// Ready makes the network of this thread one that can be handed in. It refuses one
// that has any way out, with an [*OpenNetworkError], and one that has been handed
// in. Where the thread may not administer it, the result is [ByProxy]. What it has changed
// leads nowhere as long as the network is not handed in.
func Ready(own Addresses) (*Readied, error) {
	if err := closedNetwork(); err != nil {
		return nil, err
	}
	if !mayAdminister() {
		return readyProxy()
	}
	return readyCapture(own)
}

// closedNetwork refuses a network with anything that could lead out of it.
func closedNetwork() error {
	list, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(list)
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	var ways []string
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		if l := linkIn(&m); !l.leadsNowhere() {
			ways = append(ways, "the interface "+l.name)
		}
	}
	if len(ways) > 0 {
		return &OpenNetworkError{ways}
	}
	return nil
}

// A link is what is known of an interface.
type link struct {
	name, kind string // kind is empty for one that no module has made
	sort       uint16 // ARPHRD_…
	flags      uint32
}

// linkIn reads a message of RTM_NEWLINK. What cannot be read is an interface that leads
// somewhere.
func linkIn(m *syscall.NetlinkMessage) (l link) {
	l.sort, l.flags = binary.NativeEndian.Uint16(m.Data[2:]), binary.NativeEndian.Uint32(m.Data[8:])
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return link{name: "that cannot be read", flags: unix.IFF_UP}
	}
	for _, a := range attributes {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_LINKINFO:
			l.kind = kindIn(a.Value)
		}
	}
	return l
}

// kindIn reads the kind of an interface, which is the first thing in IFLA_LINKINFO.
func kindIn(info []byte) string {
	if len(info) < unix.SizeofRtAttr || binary.NativeEndian.Uint16(info[2:]) != unix.IFLA_INFO_KIND {
		return "unknown"
	}
	size := int(binary.NativeEndian.Uint16(info))
	return unix.ByteSliceToString(info[unix.SizeofRtAttr:min(max(size, unix.SizeofRtAttr), len(info))])
}

// leadsNowhere reports whether an interface is the loopback, or one of those that the
// kernel itself gives to each network, which are down and lead to nobody.
func (l *link) leadsNowhere() bool {
	switch l.kind {
	case "":
		return l.sort == unix.ARPHRD_LOOPBACK && l.flags&unix.IFF_LOOPBACK != 0
	case "ipip", "gre", "gretap", "erspan", "sit", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti", "vti6":
		return l.flags&unix.IFF_UP == 0
	}
	return false
}

// mayAdminister reports whether this thread has CAP_NET_ADMIN over its network.
func mayAdminister() bool {
	return jailinit.LoopbackUp() == nil
}

// readyProxy opens what programs find by variables. The loopback has to be up, as
// whoever makes a network without others leaves it.
func readyProxy() (*Readied, error) {
	for _, names := range []bool{true, false} {
		o := Offer{Kind: OfferEnter, Mode: ByProxy, Names: names}
		fds, err := openSockets(o.plans())
		switch {
		case err == nil:
			return &Readied{o, fds}, nil
		case names && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EADDRINUSE)):
			continue // a port below 1024 is not for everybody, and somebody may have it
		case errors.Is(err, unix.EADDRINUSE):
			return nil, fmt.Errorf("port %d of 127.0.0.1 is in use: %w", ProxyPort, ErrHandedIn)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return nil, errors.New("the loopback interface is down, and there is no CAP_NET_ADMIN to set it up")
		}
		return nil, err
	}
	panic("unreachable")
}

// readyCapture has all that is sent anywhere arrive at sockets. What somebody did
// before, whose daemon is gone, is done again.
func readyCapture(own Addresses) (*Readied, error) {
	if taken() {
		return nil, ErrHandedIn
	}
	plan := jailinit.Plan{IPv4: own.IPv4.AsSlice(), IPv6: own.IPv6.AsSlice(), Again: true}
	ipv6, err := jailinit.MakeNetwork(plan)
	if err != nil {
		return nil, err
	}
	redirected := false
	if err := jailinit.Capture(plan, ipv6, &redirected); err != nil {
		return nil, &SetupError{Step: "packet filter", Err: err}
	}
	o := Offer{Kind: OfferEnter, Mode: Transparent, IPv6: ipv6}
	if redirected {
		o.Mode = Redirected
	}
	fds, err := openSockets(o.plans())
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %w", ErrHandedIn, err)
	}
	if err != nil {
		return nil, err
	}
	return &Readied{o, fds}, nil
}

// taken reports whether somebody waits for what is captured.
func taken() bool {
	p := jailinit.Socket{Kind: jailinit.TCP4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: CapturePort, Inside: true}
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
			return nil, &SetupError{Step: "socket " + string(p.Kind), Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// HandIn offers the network at the door that was knocked at, and keeps none of its
// sockets: from then on they are where it was handed in, or nowhere.
func (r *Readied) HandIn(k *Knocked, name string) (*Handed, error) {
	defer r.Close()
	r.Offer.Sandbox = name
	return k.Offer(r.Offer, r.fds)
}

// Close closes the sockets that were not handed in.
func (r *Readied) Close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}

// Become gives up what this thread could leave its network by, as far as it may, and
// becomes the program. It returns only where it could not: with an [*ExecError] where
// that is the program's fault. left says what could not be given up.
func Become(argv, env []string, left func(string)) error {
	path, err := jailinit.Find(Program{Argv: argv, Env: env})
	if err != nil {
		return err
	}
	if err := jailinit.CloseDoors(); err != nil {
		return &SetupError{Step: "close what leads out", Err: err}
	}
	if err := giveUpCapabilities(); err != nil {
		return &SetupError{Step: "capabilities", Err: err}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &SetupError{Step: "no new privileges", Err: err}
	}
	if err := jailinit.FilterCalls(true); err != nil { // whatever made the sandbox keeps its files
		left("the filter of system calls: " + err.Error())
	}
	err = unix.Exec(path, argv, env)
	return &ExecError{Name: path, Problem: err.Error(), Missing: errors.Is(err, unix.ENOENT)}
}

// networkCapabilities are those by which a program changes its network, or leaves
// it.
var networkCapabilities = [...]uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_MODULE, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_RAWIO, unix.CAP_SETPCAP}

// giveUpCapabilities gives up those that lead out of the network. The rest, by which a container's
// root installs packages or starts servers, is what the container was given.
func giveUpCapabilities() error {
	for _, c := range networkCapabilities {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return err
	}
	for _, c := range networkCapabilities {
		bit := uint32(1) << (c % 32)
		set := &have[c/32]
		set.Effective &^= bit
		set.Permitted &^= bit
		set.Inheritable &^= bit
	}
	if err := unix.Capset(&head, &have[0]); err != nil {
		return err
	}
	for _, c := range networkCapabilities {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, c, 0, 0) // it went with the inheritable one
	}
	return nil
}

// Resolvers are the name servers of this mount namespace that are not its own
// loopback.
func Resolvers() (elsewhere []string) {
	text, err := os.ReadFile(jailinit.ResolvConf)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "nameserver" && f[1] != "127.0.0.1" {
			elsewhere = append(elsewhere, f[1])
		}
	}
	return elsewhere
}
