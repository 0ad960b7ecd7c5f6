package proxy

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

var (
	errSOCKS4      = errors.New("SOCKS4 carries no identity; use SOCKS5")
	errHeadLate    = errors.New("the head was not complete in time")
	errHeadCut     = errors.New("the client left in the middle of its head")
	errOriginForm  = errors.New("a proxy needs the whole URL as the request target")
	errCredentials = errors.New("Proxy-Authorization is not one well-formed Basic field")
	errHostList    = errors.New("the Host field is not one host")
	errOtherHost   = errors.New("the Host field names another host than the tunnel was opened to")
)

// connectTarget is where a CONNECT wants to go. A Host field beside it is
// only looked at for being one.
func connectTarget(req *http1.Request) (policy.Destination, error) {
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

// credentials reads Proxy-Authorization (RFC 7617). None is fine, two are not.
func credentials(f http1.Fields) (user, password string, given bool, err error) {
	values := f.Values("Proxy-Authorization")
	if len(values) == 0 {
		return "", "", false, nil
	}
	scheme, encoded, _ := strings.Cut(values[0], " ")
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if len(values) > 1 || err != nil || !strings.EqualFold(scheme, "Basic") {
		return "", "", false, errCredentials
	}
	user, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return "", "", false, errCredentials
	}
	return user, password, true, nil
}

// refuseMalformed has the gate record bytes that are no acceptable request.
func refuseMalformed(gate *egress.Gate, peer sandbox.Peer, via policy.Via, raw []byte, err error) *egress.Refusal {
	class := policy.MalformedRequest
	var destination *policy.DestinationError
	var message *http1.MalformedError
	if errors.Is(err, errHostList) || errors.As(err, &destination) || errors.As(err, &message) && message.Host {
		class = policy.MalformedHost
	}
	return gate.Refuse(context.Background(), peer, via, redact(raw), class, err.Error())
}

const (
	rawLooked = 1024 // enough for the 256 bytes that are recorded
	redacted  = "[redacted]"
)

// redact cuts out of raw what a record may never hold: everything from the
// first mention of a credential on, userinfo, and the query.
func redact(raw []byte) []byte {
	raw = bytes.Clone(raw[:min(len(raw), rawLooked)])
	lower := bytes.ToLower(raw)
	for _, word := range []string{"authorization", "cookie", "token", "api-key", "apikey", "secret"} {
		if i := bytes.Index(lower, []byte(word)); i >= 0 {
			raw, lower = append(raw[:i+len(word):i+len(word)], redacted...), lower[:i]
		}
	}
	line, rest, _ := bytes.Cut(raw, []byte("\n"))
	out := redactLine(line)
	if len(rest) > 0 {
		out = append(append(out, '\n'), rest...)
	}
	return out
}

func redactLine(line []byte) []byte {
	line = bytes.Clone(line)
	if i := bytes.IndexByte(line, '?'); i >= 0 {
		end := bytes.IndexAny(line[i:], " \t\r")
		if end < 0 {
			end = len(line) - i
		}
		line = append(append(bytes.Clone(line[:i+1]), redacted...), line[i+end:]...)
	}
	at := bytes.LastIndexByte(line, '@')
	if at < 0 {
		return line
	}
	start := bytes.LastIndexAny(line[:at], " /") + 1
	return append(append(bytes.Clone(line[:start]), redacted...), line[at:]...)
}
