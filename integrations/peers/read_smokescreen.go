package peers

import (
	"fmt"
	"strings"
)

// readSmokescreen reads an ACL of smokescreen, for the service that Options.Name names. Domains of the service
// count before global_deny_list, and "*." stands for any depth (github.com/stripe/smokescreen, pkg/smokescreen/acl/v1).
func readSmokescreen(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	var version word
	var services []*smokescreenService
	fallback := &smokescreenService{name: "default"}
	var allowed, denied []word
	s := schema{
		"version": into(&version), "global_allow_list": into(&allowed), "global_deny_list": into(&denied), "default": fields(fallback.schema()),
		"services": {items: func(string, string) (schema, func(*setting) error) {
			s := &smokescreenService{}
			return s.schema(), func(n *setting) error { s.at = n; services = append(services, s); return nil }
		}},
	}
	if err := r.take(top, s); err != nil {
		return err
	}
	if version.at != nil {
		if err := choice(version.text, "version", version.at, "v1"); err != nil {
			return err
		}
	}
	fallback.at = top.at("default")
	service, err := chosenService(r.Name, services, fallback)
	if err != nil {
		return err
	}
	if err := choice(service.action, "action", service.at, "open", "report", "enforce"); err != nil {
		return err
	}
	r.open = service.action != "enforce"
	for _, list := range []struct {
		say   sayer
		words []word
	}{{r.allow, service.allowed}, {r.deny, denied}, {r.allow, allowed}} {
		if err := r.list(list.say, list.words, smokescreenScope, anyDepth, clause{}); err != nil {
			return err
		}
	}
	return nil
}

func smokescreenScope(text string, wild star) (scope, error) {
	if strings.Contains(strings.TrimPrefix(text, "*."), "*") {
		return scope{}, fmt.Errorf("%q is refused by smokescreen: a star stands for the first labels alone", text)
	}
	return hostScope(text, wild)
}

type smokescreenService struct {
	name, action string
	allowed      []word
	at           *setting
}

func (s *smokescreenService) schema() schema {
	return schema{"name": into(&s.name), "action": into(&s.action), "allowed_domains": into(&s.allowed)}.
		aside("project mitm_domains allowed_external_proxies")
}

// chosenService is the service of a name; without a name the only one, or the default where there is none.
func chosenService(name string, services []*smokescreenService, fallback *smokescreenService) (*smokescreenService, error) {
	var names []string
	for _, s := range services {
		if s.name == name || name == "" && len(services) == 1 {
			return s, nil
		}
		names = append(names, s.name)
	}
	if fallback.at != nil && (name == fallback.name || name == "" && len(services) == 0) {
		return fallback, nil
	}
	if fallback.at != nil {
		names = append(names, fallback.name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("it has no service")
	}
	return nil, fmt.Errorf("it has the services %s; choose one with --name", strings.Join(names, ", "))
}
