package peers

import (
	"slices"
	"strings"
)

// readDaytona reads the network settings of a sandbox (npm @daytonaio/sdk 0.218.0). Both lists are text with commas.
func readDaytona(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	var blocked bool
	var prefixes, domains *setting
	s := schema{"networkBlockAll": into(&blocked), "networkAllowList": into(&prefixes), "domainAllowList": into(&domains)}.aside(`
		outboundProxyUrl otelEndpointOverride name user language envVars labels public autoStopInterval autoPauseInterval
		autoArchiveInterval autoDeleteInterval ttlMinutes volumes kvm ephemeral spot linkedSandbox secrets image resources
		snapshot id organizationId target cpu gpu gpuType memory disk state desiredState createdAt updatedAt env buildInfo`)
	if err := r.take(top, s); err != nil {
		return err
	}
	ranges, err := commas(prefixes, "networkAllowList")
	if err != nil {
		return err
	}
	names, err := commas(domains, "domainAllowList")
	switch {
	case err != nil || blocked:
		return err
	case len(ranges)+len(names) == 0:
		r.open = r.widens("a sandbox without lists", "the organisation's tier says what it may reach")
		return nil
	}
	if err := r.prefixes(r.allow, ranges, clause{}); err != nil {
		return err
	}
	return r.list(r.allow, names, namesOr, anyDepth, clause{ports: webPorts})
}

// commas reads a text with commas, or a list of texts.
func commas(n *setting, path string) (words []word, err error) {
	if n == nil || n.kind != isText {
		if n != nil {
			err = n.into(&words, path)
		}
		return words, err
	}
	for part := range strings.SplitSeq(n.text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			words = append(words, word{part, n})
		}
	}
	return words, nil
}

// readModal reads arguments of modal.Sandbox.create, as JSON or out of a Python call.
func readModal(r *reading, text []byte) error {
	var blocked bool
	var prefixes, older, domains []word
	s := schema{
		"block_network": into(&blocked), "outbound_cidr_allowlist": into(&prefixes), "cidr_allowlist": into(&older), "outbound_domain_allowlist": into(&domains),
	}
	top, err := settingsIn(text, s)
	if err != nil {
		return err
	}
	if err := r.take(top, s.aside(`app name image env secrets tags network_file_systems timeout idle_timeout workdir gpu cloud region cpu memory
		inbound_cidr_allowlist volumes pty encrypted_ports h2_ports unencrypted_ports custom_domain proxy readiness_probe
		include_oidc_identity_token verbose experimental_options client environment_name pty_info`)); err != nil {
		return err
	}
	r.open = !blocked && prefixes == nil && older == nil && domains == nil
	if blocked {
		return nil
	}
	if err := r.prefixes(r.allow, slices.Concat(prefixes, older), clause{}); err != nil {
		return err
	}
	return r.list(r.allow, domains, namesOr, anyDepth, clause{ports: []span{port(443)}})
}

// readSprites reads the network policy of a Sprite, in which the most specific rule decides (npm @fly/sprites 0.1.0). It is
// enforced by name; "*" opens names, and addresses stay closed.
func readSprites(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	type rule struct {
		domain, action, include word
		at                      *setting
	}
	var rules []rule
	s := schema{"rules": {items: func(string, string) (schema, func(*setting) error) {
		var one rule
		return schema{"domain": into(&one.domain), "action": into(&one.action), "include": into(&one.include)},
			func(n *setting) error { one.at = n; rules = append(rules, one); return nil }
	}}}
	if err := r.take(top, s); err != nil {
		return err
	}
	for _, one := range rules {
		if one.include.at != nil {
			r.stricterf("include: %s is left out, since its hosts are not documented; name presets for what you need", one.include.text)
			continue
		}
		if err := choice(one.action.text, "action", one.at, "allow", "deny"); err != nil {
			return err
		}
		s, err := namesOr(one.domain.text, anyDepth)
		if err != nil {
			return one.at.errorf("domain: %w", err)
		}
		if one.domain.text == "*" && one.action.text == "deny" {
			s = just(everything)
		}
		r.sayer(one.action.text == "allow")(one.domain.text, s, clause{})
	}
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return boolFirst(!a.allow, !b.allow) })
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return a.hosts.specific(b.hosts) })
	return nil
}
