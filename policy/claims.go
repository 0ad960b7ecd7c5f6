package policy

import (
	"fmt"
)

// agree refuses an otherwise allowed request whose claims contradict each
// other: the name asked for, the server name of the ClientHello, the server
// that the request names and the protocol on the wire have to agree.
// looks says that some layer decides by the requests inside a tunnel.
func agree(d Decision, r *Request, looks bool) Decision {
	if r.HTTP != nil {
		if d = agreeHTTP(d, r); d.Verdict == Deny {
			return d
		}
	}
	switch r.Protocol {
	case ProtocolTLS:
		return agreeTLS(d, r, looks)
	case ProtocolOpaque:
		return agreeOpaque(d, r, looks)
	}
	return d
}

func agreeHTTP(d Decision, r *Request) Decision {
	switch request := r.HTTP; {
	case echoes(request.Method):
		return refuseClaim(d, MethodDenied, fmt.Sprintf("%s sends a request's secrets back", request.Method))
	case request.Authority != "" && request.Authority != r.Destination.String():
		return refuseClaim(d, NameMismatch, fmt.Sprintf("the request names another server than %s", r.Destination))
	case request.Upgrade && !d.Upgrade:
		refused := noWebSocket(r, d.Rule, d.Layer)
		refused.Policy, refused.Log = d.Policy, d.Log
		return refused
	}
	return d
}

func agreeTLS(d Decision, r *Request, looks bool) Decision {
	hello := r.TLS
	switch {
	case hello == nil || hello.Malformed:
		return refuseClaim(d, NotTLS, "what looks like TLS holds no well-formed ClientHello")
	case hello.ECH && !d.ECH && !looks && !hello.Inspected:
		return refuseClaim(d, ECHRefused, "the ClientHello may hide another server name (ECH), and no rule says ech: allow")
	case hello.ServerName == "" && hello.NoName == "":
		if r.Destination.Addr.IsValid() {
			return d
		}
		return refuseClaim(d, NoServerName, "the ClientHello names no server")
	case hello.ServerName != r.Destination.Host:
		return refuseClaim(d, NameMismatch, fmt.Sprintf("the ClientHello names another server than %s", r.Destination.Host))
	}
	return d
}

func agreeOpaque(d Decision, r *Request, looks bool) Decision {
	web := r.Destination.Port == 443 || r.Destination.Port == 80
	switch {
	case looks:
		return refuseClaim(d, NotTLS, fmt.Sprintf("what is sent to %s is neither TLS nor HTTP, and the rules look at requests", r.Destination))
	case web && !d.AnyProtocol:
		return refuseClaim(d, NotTLS, fmt.Sprintf("what is sent to %s is neither TLS nor HTTP, and no rule says tls: any", r.Destination))
	}
	return d
}

// echoes reports whether a method makes the server repeat what it was sent.
func echoes(method string) bool { return method == "TRACE" || method == "TRACK" }

func refuseClaim(d Decision, class Class, reason string) Decision {
	return Decision{Class: class, Rule: "baseline", Layer: Builtin, Reason: reason, Policy: d.Policy, Log: d.Log}
}
