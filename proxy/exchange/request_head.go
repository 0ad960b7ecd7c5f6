package exchange

import (
	"cmp"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

var (
	ErrSOCKS4      = errors.New("SOCKS4 carries no identity; use SOCKS5")
	ErrHeadLate    = errors.New("the head was not complete in time")
	ErrHeadCut     = errors.New("the client left in the middle of its head")
	errOriginForm  = errors.New("a proxy needs the whole URL as the request target")
	errCredentials = errors.New("Proxy-Authorization is not of the scheme Basic, or holds no user name and password")
	errManyFields  = errors.New("more than one Proxy-Authorization field")
	errHostList    = errors.New("the Host field is not one host")

	errTwoCredentials = &http1.MalformedError{Problem: "a user name in the URL beside an Authorization field; send one of them", Status: 400, Host: true}
)

// ConnectTarget is where a CONNECT wants to go. A Host field beside it is
// only looked at for being one.
func ConnectTarget(req *http1.Request) (policy.Destination, error) {
	target, err := http1.ParseTarget(req.Method, req.Target)
	if err != nil {
		return policy.Destination{}, err
	}
	dst, err := policy.ParseDestination(strings.Clone(target.Authority)) // the tunnel keeps the host, not the head
	if host := req.Fields.Get("Host"); err == nil && host != "" && !isHost(host) {
		err = errHostList
	}
	return dst, err
}

// isHost reports whether a Host field's value is one host, with a port or not.
func isHost(value string) bool {
	if _, _, err := policy.ParseHost(value); err == nil {
		return true
	}
	_, err := policy.ParseDestination(value)
	return err == nil
}

// Credentials reads Proxy-Authorization (RFC 7617). None is fine, two are not.
func Credentials(f http1.Fields) (user, password string, given bool, err error) {
	values := f.Values("Proxy-Authorization")
	if len(values) == 0 {
		return "", "", false, nil
	}
	scheme, encoded, _ := strings.Cut(values[0], " ")
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if len(values) > 1 {
		return "", "", false, errManyFields
	}
	if err != nil || !strings.EqualFold(scheme, "Basic") {
		return "", "", false, errCredentials
	}
	user, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return "", "", false, errCredentials
	}
	return user, password, true, nil
}

// addressed reads the destination of a request, and the proxy user, from its own target and fields.
func (x *h1Exchange) addressed() (err error) {
	v := x.conn
	if x.Target, err = http1.ParseTarget(x.req.Method, x.req.Target); err != nil {
		return err
	}
	if x.Destination, err = x.destination(); err != nil {
		return err
	}
	if x.Target.Basic != "" {
		if x.req.Fields.Has("Authorization") {
			return errTwoCredentials
		}
		x.req.Fields = append(x.req.Fields, http1.Field{Name: "Authorization", Value: x.Target.Basic})
	}
	if v.TunnelTo == nil && v.CapturedTo == nil {
		if v.Peer.User, v.Peer.Password, v.Peer.HasCredentials, err = Credentials(x.req.Fields); err != nil {
			return err
		}
	}
	x.Destination = x.byHost()
	return nil
}

// destination is the authority of the target. A Host field beside it is replaced by it (RFC
// 9112 §3.2.2), and so cannot name another server further on. A tunnel and a captured address
// lead to one server, which is the destination whatever the request names. The name is one of its claims.
func (x *h1Exchange) destination() (policy.Destination, error) {
	v := x.conn
	host := x.req.Fields.Get("Host")
	whole := x.Target.Form == http1.Absolute
	switch {
	case v.tunnel != nil && whole:
		return policy.Destination{}, ErrProxyInside
	case v.tunnel != nil: // the policy compares it with the Host field
		x.Authority = Authority(host)
		return v.tunnel.Destination(), nil
	case v.CapturedTo != nil && !whole && host == "":
		return *v.CapturedTo, nil
	case v.CapturedTo == nil && v.TunnelTo == nil && !whole:
		return policy.Destination{}, errOriginForm
	case whole && host != "" && !isHost(host):
		return policy.Destination{}, errHostList
	}
	named, err := v.named(x.Target.Authority, whole, host)
	if err != nil {
		return policy.Destination{}, err
	}
	to := cmp.Or(v.TunnelTo, v.CapturedTo)
	switch {
	case to == nil:
		return named, nil
	case v.leadsTo(named, whole), v.goesByName(named, whole):
		return claimed(named, to), nil
	}
	x.Authority = named.String()
	return policy.Destination{Host: to.Host, Addr: to.Addr, Port: to.Port}, nil
}
