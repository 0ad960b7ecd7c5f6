//go:build linux

package attach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
	"golang.org/x/sys/unix"
)

// A Mode is how an attached network leads to the daemon.
type Mode string

const (
	Transparent Mode = "transparent" // every connection and datagram is captured
	Redirected  Mode = "nat"         // as Transparent, by NAT, where refused datagrams leave no record
	ByProxy     Mode = "proxy"       // a proxy on loopback; a program that ignores it has no network
)

// Kinds of requests.
const (
	KindEnter  = "enter"  // the client is in the network, until the client ends
	KindAttach = "attach" // another process is in the network, until that process ends
	KindRun    = "run"    // a jail of the client, until the client says so or is gone

	KindRefused = "refused" // there is no network: the client has refused a container
)

const (
	version      = 1
	requestBytes = 4096 // longest request
	notesMost    = 32
	noteBytes    = 256
)

// A Request describes a network. The descriptors of its message are the network's sockets, in the order of
// [Request.plans]. Requests of other kinds than KindEnter end with a pidfd of a process in the network.
type Request struct {
	Version int    `json:"v"`
	Kind    string `json:"kind"`
	Mode    Mode   `json:"mode"`
	IPv6    bool   `json:"ipv6,omitempty"`
	Names   bool   `json:"names,omitempty"` // whether a proxy comes with a name server

	// Trusts says, of KindAttach, that programs of the process will trust the authority of the answer. Other clients do.
	Trusts bool `json:"trusts,omitempty"`

	// Sandbox is the name that the client asks for. The daemon believes clients of the host only.
	Sandbox string `json:"sandbox,omitempty"`
	// Notes are recorded when the network is attached. Only clients of the host may send notes.
	Notes []string `json:"notes,omitempty"`

	// Container is, of KindRefused, what the client has refused. Only clients in the daemon's own network may say so.
	Container *sandbox.RefusedContainer `json:"container,omitempty"`
}

// parseRequest parses a request. It refuses unknown members.
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
	case o.Kind == KindRefused:
		if o.Container == nil || o.Mode != "" || o.IPv6 || o.Names || o.Trusts || len(o.Notes) > 0 {
			return errors.New("a refused container with what it does not have")
		}
		return o.Container.Check()
	case o.Container != nil:
		return errors.New("a network with a refused container")
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

// kinds returns the kinds of the request's sockets, in their order.
func (o *Request) kinds() (all []jailinit.SocketKind) {
	for _, p := range o.plans() {
		all = append(all, p.Kind)
	}
	return all
}

// plans describes the request's sockets, in their order.
func (o *Request) plans() []jailinit.Socket {
	if o.Kind == KindRefused {
		return nil
	}
	if o.Mode == ByProxy {
		return proxySockets(o.Names)
	}
	return jailinit.CaptureSockets(o.IPv6, o.Mode == Transparent)
}

// descriptors returns how many descriptors come with the request.
func (o *Request) descriptors() int {
	n := len(o.plans())
	if o.Kind == KindAttach || o.Kind == KindRun {
		n++
	}
	return n
}

// proxySockets describes the sockets of a network that cannot be captured.
func proxySockets(names bool) []jailinit.Socket {
	all := []jailinit.Socket{{Kind: jailinit.Proxy, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: ProxyPort, Local: true}}
	if names {
		all = append(all,
			jailinit.Socket{Kind: jailinit.DNS4, Family: unix.AF_INET, Sort: unix.SOCK_DGRAM, Port: jailinit.DNSPort, Local: true},
			jailinit.Socket{Kind: jailinit.DNSStream4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: jailinit.DNSPort, Local: true})
	}
	return all
}

// An Answer is the daemon's answer to a request.
type Answer struct {
	Version int    `json:"v"`
	Sandbox string `json:"sandbox,omitempty"`
	Policy  string `json:"policy,omitempty"` // digest of the one in force
	File    string `json:"file,omitempty"`   // of the policy; for those of the host alone
	CA      string `json:"ca,omitempty"`     // PEM of the authority that is to be trusted, where there is inspection

	// Variables are what programs need in their environment: placeholders of credentials, which are no secrets.
	Variables map[string]string `json:"variables,omitempty"`

	// DenyMessage is what the operator tells whom something is denied.
	DenyMessage string `json:"deny_message,omitempty"`

	// ID is that of the record, of [KindRefused].
	ID string `json:"id,omitempty"`

	Problem string `json:"problem,omitempty"` // why not; empty: the network is attached
	Hint    string `json:"hint,omitempty"`    // what to type next
}

// answerBytes bounds an answer.
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
