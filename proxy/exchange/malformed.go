package exchange

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/sandbox"
)

// hintFor says what to do instead of what err is about, or nothing.
func hintFor(err error) string {
	var scheme *http1.SchemeError
	switch {
	case errors.As(err, &scheme) && scheme.Scheme == "https":
		return "For https, open a tunnel with CONNECT: set HTTPS_PROXY to the http:// URL of this proxy."
	case errors.As(err, &scheme):
		return "This proxy takes URLs of http alone. For other protocols, open a tunnel with CONNECT or SOCKS5."
	case errors.Is(err, errOriginForm):
		return "Send the whole URL as the request target, or open a tunnel with CONNECT or SOCKS5."
	}
	return ""
}

// MalformedReply renders what could not be parsed, with the status that its
// problem has.
func MalformedReply(r *egress.Refusal, err error) []byte {
	if errors.Is(err, ErrSOCKS4) {
		return []byte{0, 0x5b, 0, 0, 0, 0, 0, 0}
	}
	hinting := *r
	hinting.Hint = hintFor(err)
	return answer.ReplyTo(&hinting, answer.ToMalformed(r, err), answer.Recipient{}).HTTP1()
}

// RefuseMalformed has the gate record bytes that are no acceptable request.
func RefuseMalformed(gate *egress.Gate, peer sandbox.Peer, via policy.Via, raw []byte, err error) *egress.Refusal {
	class, why := policy.MalformedRequest, err.Error()
	var destination *policy.DestinationError
	var message *http1.MalformedError
	if errors.Is(err, errCredentials) {
		class = policy.UnknownSandbox // its answer, 407, asks for Basic
	}
	isMessage := errors.As(err, &message)
	if errors.Is(err, errHostList) || errors.As(err, &destination) || isMessage && message.Host {
		class = policy.MalformedHost
	}
	switch {
	case destination != nil:
		why = destination.Problem // its text may hold userinfo
	case message != nil:
		why = message.Problem
	}
	return gate.Refuse(peer, via, redact(raw), class, why)
}

const (
	rawLooked = 1024 // enough for the 256 bytes that are recorded
	redacted  = "[redacted]"
)

// redact removes from raw what a record may never hold: userinfo, queries, fragments, and the values of most
// fields. It keeps the values of fields that name the destination or frame the message.
func redact(raw []byte) []byte {
	raw = raw[:min(len(raw), rawLooked)]
	if len(raw) > 0 && raw[0] == 5 {
		return redactSOCKS(raw)
	}
	var out []byte
	for line := range bytes.Lines(raw) {
		if out == nil {
			out = redactLine(line)
			continue
		}
		out = append(out, redactField(line)...)
	}
	return out
}

// redactLine keeps of a request line what stands before any query, and of an
// authority what stands behind the last "@".
func redactLine(line []byte) []byte {
	text, end := cutEnd(line)
	out := make([]byte, 0, len(line)+len(redacted))
	if at := bytes.LastIndexByte(text, '@'); at >= 0 {
		start := bytes.Index(text[:at], []byte("//"))
		if start >= 0 {
			start += len("//")
		} else {
			start = bytes.IndexByte(text[:at], ' ') + 1
		}
		out = append(append(out, text[:start]...), redacted...)
		text = text[at:]
	}
	if i := bytes.IndexAny(text, "?#"); i >= 0 {
		text = append(bytes.Clone(text[:i]), redacted...)
	}
	return append(append(out, text...), end...)
}

// telling are the fields whose values a record may hold.
var telling = []string{"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade"}

func redactField(line []byte) []byte {
	text, end := cutEnd(line)
	if len(text) == 0 {
		return line
	}
	name, value, ok := bytes.Cut(text, []byte(":"))
	shown := slices.Contains(telling, strings.ToLower(string(bytes.TrimSpace(name))))
	switch {
	case ok && shown && !bytes.ContainsAny(value, "@?#"):
		return line
	case ok && text[0] != ' ' && text[0] != '\t':
		return slices.Concat(name, []byte(":"+redacted), end)
	default: // a folded line, or no field at all
		return slices.Concat([]byte(redacted), end)
	}
}

func cutEnd(line []byte) (text, end []byte) {
	text = bytes.TrimRight(line, "\r\n")
	return text, line[len(text):]
}

// redactSOCKS keeps a request as it was, but for userinfo in its name.
func redactSOCKS(raw []byte) []byte {
	const nameAt = 5
	at := bytes.LastIndexByte(raw, '@')
	if at < nameAt {
		return raw
	}
	return slices.Concat(raw[:nameAt], []byte(redacted), raw[at:])
}

// AsRefusal returns err as what a gate or flow always returns.
func AsRefusal(err error) *egress.Refusal {
	if refusal, ok := errors.AsType[*egress.Refusal](err); ok {
		return refusal
	}
	return &egress.Refusal{Decision: policy.Decision{Class: policy.PolicyError, Reason: "internal error"}}
}
