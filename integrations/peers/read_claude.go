package peers

import (
	"fmt"
	"strconv"
	"strings"
)

// asideOfSRT are keys of the network of srt that open no destination and close none.
var asideOfSRT = []string{
	"allowUnixSockets", "allowAllUnixSockets", "allowLocalBinding", "allowMachLookup", "allowManagedDomainsOnly",
	"httpProxyPort", "socksProxyPort", "deniedDomainReasons", "strictAllowlist", "mitmProxy", "tlsTerminate", "parentProxy",
}

func readSRT(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	var network object
	if err := top.take("network", &network); err != nil {
		return err
	}
	if err := readSRTNetwork(r, network, nil, nil); err != nil {
		return err
	}
	r.left(top.keys("")...)
	return nil
}

func readClaude(r *reading, text []byte) error {
	var sandbox, network, permissions object
	var allow, deny []string
	if _, err := settings(text, parseJSON, map[string]any{"sandbox": &sandbox, "permissions": &permissions}); err != nil {
		return err
	}
	if err := permissions.takeAll(map[string]any{"allow": &allow, "deny": &deny}); err != nil {
		return fmt.Errorf("permissions.%w", err)
	}
	if err := sandbox.take("network", &network); err != nil {
		return err
	}
	if err := readSRTNetwork(r, network, fetched(allow), fetched(deny)); err != nil {
		return err
	}
	r.left(sandbox.keys("sandbox.")...)
	return nil
}

// fetched are the hosts of WebFetch(domain:HOST) among rules: Claude Code adds them
// to the lists of its sandbox.
func fetched(rules []string) (hosts []string) {
	for _, rule := range rules {
		if rest, ok := strings.CutPrefix(rule, "WebFetch(domain:"); ok {
			hosts = append(hosts, strings.TrimSuffix(rest, ")"))
		}
	}
	return hosts
}

// readSRTNetwork reads the lists of hosts, in which a deny wins.
func readSRTNetwork(r *reading, network object, allowed, denied []string) error {
	var moreAllowed, moreDenied, addresses []string
	if err := network.takeAll(map[string]any{"allowedDomains": &moreAllowed, "deniedDomains": &moreDenied, "deniedResolvedAddresses": &addresses}); err != nil {
		return err
	}
	aside, err := network.only("network.", asideOfSRT...)
	if err != nil {
		return err
	}
	r.left(aside...)
	if err := r.prefixes(false, addresses, clause{}); err != nil {
		return fmt.Errorf("deniedResolvedAddresses: %w", err)
	}
	if err := r.hostPorts(false, append(denied, moreDenied...), anyDepth); err != nil {
		return err
	}
	return r.hostPorts(true, append(allowed, moreAllowed...), anyDepth)
}

// hostPorts adds clauses for patterns of hosts, with a port behind a colon or without. An IPv6 address
// stands in brackets.
func (r *reading) hostPorts(allow bool, texts []string, wild star) error {
	for _, text := range texts {
		host, ports, ok := cutPort(text)
		if !ok {
			return fmt.Errorf("%q is no host, with a port or without", text)
		}
		s, err := everyOr(host, wild)
		if err != nil {
			return fmt.Errorf("%q is no host, with a port or without", text)
		}
		r.say(allow, text, s, clause{ports: ports})
	}
	return nil
}

// list adds an allow or a deny for each of texts, which read reads.
func (r *reading) list(allow bool, texts []string, read func(string, star) (scope, error), wild star, like clause) error {
	for _, text := range texts {
		s, err := read(text, wild)
		if err != nil {
			return err
		}
		r.say(allow, text, s, like)
	}
	return nil
}

// say adds an allow or a deny.
func (r *reading) say(allow bool, said string, s scope, like clause) {
	if allow {
		r.allow(said, s, like)
	} else {
		r.deny(said, s, like)
	}
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

func (r *reading) prefixes(allow bool, texts []string, like clause) error {
	for _, text := range texts {
		p, ok := prefixOf(text)
		if !ok {
			return fmt.Errorf("%q is no address and no prefix", text)
		}
		r.say(allow, text, just(within(p)), like)
	}
	return nil
}
