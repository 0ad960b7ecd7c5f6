package peers

import (
	"strconv"
	"strings"
)

// A srtNetwork is the network of srt's settings, which Claude Code has too. In it a deny wins
// (@anthropic-ai/sandbox-runtime 0.0.78, dist/sandbox/sandbox-config.js and domain-pattern.js).
type srtNetwork struct {
	allowed, denied, addresses []word
}

func (s *srtNetwork) schema() schema {
	return schema{
		"allowedDomains": into(&s.allowed), "deniedDomains": into(&s.denied), "deniedResolvedAddresses": into(&s.addresses),
		"filterRequest": refused("what a function decides cannot be read; take it out of a copy of the file and add denies for what it refuses"),
	}.aside(`strictAllowlist deniedDomainReasons allowUnixSockets allowAllUnixSockets allowLocalBinding allowMachLookup
		httpProxyPort socksProxyPort mitmProxy tlsTerminate parentProxy allowManagedDomainsOnly`)
}

func readSRT(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	var network srtNetwork
	s := schema{"network": fields(network.schema())}.aside(`filesystem credentials ignoreViolations enableWeakerNestedSandbox
		enableWeakerNetworkIsolation allowAppleEvents ripgrep mandatoryDenySearchDepth allowPty seccomp bwrapPath socatPath
		javaAgentJarPath windows git allowBrowserProcess`)
	if err := r.take(top, s); err != nil {
		return err
	}
	for _, w := range network.allowed {
		if host, _, _ := cutPort(w.text); host == "*" {
			return w.at.errorf("%q is refused by srt in allowedDomains; name the hosts", w.text)
		}
	}
	if err := r.denies(network); err != nil {
		return err
	}
	return r.hostPorts(r.allow, network.allowed, anyDepth)
}

func (r *reading) denies(network srtNetwork) error {
	if err := r.prefixes(r.deny, network.addresses, clause{}); err != nil {
		return err
	}
	return r.hostPorts(r.deny, network.denied, anyDepth)
}

// A sayer adds an allow, a deny or an ask. said is the line as the peer has it.
type sayer func(said string, s scope, like clause)

// hostPorts adds clauses for patterns of hosts, with a port behind a colon or without. An IPv6 address
// stands in brackets.
func (r *reading) hostPorts(say sayer, words []word, wild star) error {
	for _, w := range words {
		host, ports, ok := cutPort(w.text)
		if !ok {
			return w.at.errorf("%q is no host, with a port or without", w.text)
		}
		s, err := everyOr(host, wild)
		if err != nil {
			return w.at.errorf("%q is no host, with a port or without: %w", w.text, err)
		}
		say(w.text, s, clause{ports: ports})
	}
	return nil
}

// list adds a clause for each word, which read reads.
func (r *reading) list(say sayer, words []word, read func(string, star) (scope, error), wild star, like clause) error {
	for _, w := range words {
		s, err := read(w.text, wild)
		if err != nil {
			return w.at.errorf("%w", err)
		}
		say(w.text, s, like)
	}
	return nil
}

func (r *reading) prefixes(say sayer, words []word, like clause) error {
	for _, w := range words {
		p, ok := prefixOf(w.text)
		if !ok {
			return w.at.errorf("%q is no address and no prefix", w.text)
		}
		say(w.text, just(within(p)), like)
	}
	return nil
}

// sayer is allow or deny.
func (r *reading) sayer(allow bool) sayer {
	if allow {
		return r.allow
	}
	return r.deny
}

// everyOr reads "*" as everything.
func everyOr(text string, wild star) (scope, error) {
	if text == "*" {
		return just(everything), nil
	}
	return hostScope(text, wild)
}

// cutPort cuts the port off a host. ok is false for text that is no host, or a port that is none.
func cutPort(text string) (host string, ports []span, ok bool) {
	host = text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		n, err := strconv.ParseUint(text[i+1:], 10, 16)
		if err != nil || n == 0 {
			return "", nil, false
		}
		host, ports = text[:i], []span{port(uint16(n))}
	}
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		p, isAddress := prefixOf(inner)
		return host, ports, isAddress && p.Addr().Is6() && p.IsSingleIP()
	}
	return host, ports, host != "" && !strings.ContainsAny(host, ":/ ")
}
