package attach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
)

// A Mode is how a network that is handed in leads to the daemon.
type Mode string

const (
	Transparent Mode = "transparent" // all that is sent anywhere is captured
	Redirected  Mode = "nat"         // as Transparent, by NAT: datagrams are refused without a trace
	ByProxy     Mode = "proxy"       // a proxy on loopback: who ignores it has no network
)

// Kinds of offers.
const (
	KindEnter  = "enter"  // of the network that the visitor is in, until it ends
	KindAttach = "attach" // of another's, until that one ends
	KindRun    = "run"    // of a jail of its own, until the visitor says so, or goes
)

const (
	version      = 1
	requestBytes = 4096 // more than an offer may have
	notesMost    = 32
	noteBytes    = 256
)

// An Request is what somebody who hands a network in says of it. The descriptors that
// come with it are the sockets, in the order of its kinds, and, but for KindEnter, one that
// stands for the process that is in the network (pidfd_open(2)).
type Request struct {
	Version int    `json:"v"`
	Kind    string `json:"kind"`
	Mode    Mode   `json:"mode"`
	IPv6    bool   `json:"ipv6,omitempty"`
	Names   bool   `json:"names,omitempty"` // whether a proxy comes with a name server

	// Sandbox is who it is for. Only those of the host are believed.
	Sandbox string `json:"sandbox,omitempty"`
	// Notes are to be recorded at its start. Only those of the host may have any.
	Notes []string `json:"notes,omitempty"`
}

// parseRequest reads an offer, strictly: what is not known is an error.
func parseRequest(text []byte) (*Request, error) {
	if len(text) > requestBytes {
		return nil, fmt.Errorf("a message of more than %d bytes", requestBytes)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	o := new(Request)
	if err := d.Decode(o); err != nil {
		return nil, fmt.Errorf("a message that cannot be read: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("a message with something behind it")
	}
	return o, o.check()
}

func (o *Request) check() error {
	switch {
	case o.Version != version:
		return fmt.Errorf("version %d, where %d is spoken", o.Version, version)
	case !slices.Contains([]string{KindEnter, KindAttach, KindRun}, o.Kind):
		return fmt.Errorf("the kind %.16q", o.Kind)
	case !slices.Contains([]Mode{Transparent, Redirected, ByProxy}, o.Mode):
		return fmt.Errorf("the mode %.16q", o.Mode)
	case o.Mode == ByProxy && (o.IPv6 || o.Kind != KindEnter), o.Mode != ByProxy && o.Names:
		return fmt.Errorf("the mode %s with what it does not have", o.Mode)
	case o.Sandbox != "" && !sandbox.PlainName(o.Sandbox):
		return errors.New("what is no name of a sandbox")
	case len(o.Notes) > notesMost || slices.ContainsFunc(o.Notes, func(n string) bool { return len(n) > noteBytes }):
		return errors.New("too many notes, or too long ones")
	}
	return nil
}

// kinds are the sockets that come with the offer, in their order.
func (o *Request) kinds() (all []jailinit.SocketKind) {
	for _, p := range o.plans() {
		all = append(all, p.Kind)
	}
	return all
}

// plans say what the sockets are.
func (o *Request) plans() []jailinit.Socket {
	if o.Mode == ByProxy {
		return proxySockets(o.Names)
	}
	return jailinit.CaptureSockets(o.IPv6, o.Mode == Transparent)
}

// descriptors is how many come with the offer.
func (o *Request) descriptors() int {
	n := len(o.plans())
	if o.Kind != KindEnter {
		n++
	}
	return n
}

// ProxyPort is where the proxy of a network is that cannot be captured, on its
// loopback.
const ProxyPort = 3128

// proxySockets are for a network that cannot be captured.
func proxySockets(names bool) []jailinit.Socket {
	all := []jailinit.Socket{{Kind: jailinit.Proxy, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: ProxyPort, Inside: true}}
	if names {
		all = append(all,
			jailinit.Socket{Kind: jailinit.DNS4, Family: unix.AF_INET, Sort: unix.SOCK_DGRAM, Port: jailinit.DNSPort, Inside: true},
			jailinit.Socket{Kind: jailinit.DNSStream4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: jailinit.DNSPort, Inside: true})
	}
	return all
}

// An Answer is what a daemon says to an offer.
type Answer struct {
	Version int    `json:"v"`
	Sandbox string `json:"sandbox,omitempty"`
	Policy  string `json:"policy,omitempty"` // digest of the one in force
	File    string `json:"file,omitempty"`   // of the policy; for those of the host alone
	CA      string `json:"ca,omitempty"`     // PEM of the authority that is to be trusted, where there is inspection

	Problem string `json:"problem,omitempty"` // why not; empty: the offer was taken
	Hint    string `json:"hint,omitempty"`    // what to type next
}

// answerBytes is more than an answer may have.
const answerBytes = 64 << 10

func parseAnswer(text []byte) (*Answer, error) {
	a := new(Answer)
	if err := json.Unmarshal(text, a); err != nil {
		return nil, fmt.Errorf("an answer that cannot be read: %w", err)
	}
	if a.Version != version {
		return nil, fmt.Errorf("an answer of version %d, where %d is spoken", a.Version, version)
	}
	return a, nil
}
