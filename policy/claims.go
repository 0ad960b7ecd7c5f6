package policy

import "fmt"

// agree refuses an otherwise allowed request whose claims contradict each
// other: the name asked for, the server name of the ClientHello and the
// protocol on the wire have to tell one story.
func agree(d Decision, r *Request) Decision {
	if r.HTTP != nil && echoes(r.HTTP.Method) {
		return refuseClaim(d, MethodDenied, fmt.Sprintf("%s sends a request's secrets back", r.HTTP.Method))
	}
	switch r.Protocol {
	case ProtocolTLS:
		return agreeTLS(d, r)
	case ProtocolOpaque:
		web := r.Destination.Port == 443 || r.Destination.Port == 80
		if web && !d.AnyProtocol {
			return refuseClaim(d, NotTLS, fmt.Sprintf("what is sent to %s is neither TLS nor HTTP, and no rule says tls: any", r.Destination))
		}
	}
	return d
}

func agreeTLS(d Decision, r *Request) Decision {
	hello := r.TLS
	switch {
	case hello == nil:
		return refuseClaim(d, NotTLS, "what looks like TLS holds no well-formed ClientHello")
	case hello.ECH && !d.ECH:
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

// echoes reports whether a method makes the server repeat what it was sent.
func echoes(method string) bool { return method == "TRACE" || method == "TRACK" }

func refuseClaim(d Decision, class Class, reason string) Decision {
	return Decision{Class: class, Rule: "baseline", Layer: Builtin, Reason: reason, Policy: d.Policy}
}
