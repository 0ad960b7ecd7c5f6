package peers

import (
	"encoding/json"
	"fmt"
	"strings"
)

// readSmokescreen reads an ACL of smokescreen, for the service that Options.Name names. Domains of the service
// count before global_deny_list, and "*." stands for any depth.
func readSmokescreen(r *reading, text []byte) error {
	var version string
	var services []smokescreenService
	var fallback *smokescreenService
	var allowed, denied []string
	if err := onlySettings(text, parseYAML, map[string]any{"version": &version, "services": &services, "default": &fallback, "global_allow_list": &allowed, "global_deny_list": &denied}); err != nil {
		return err
	}
	s, err := chosenService(r.Name, services, fallback)
	if err != nil {
		return err
	}
	for _, list := range []struct {
		allow bool
		texts []string
	}{{true, s.AllowedDomains}, {false, denied}, {true, allowed}} {
		if err := r.list(list.allow, list.texts, hostScope, anyDepth, clause{}); err != nil {
			return err
		}
	}
	switch s.Action {
	case "open", "report":
		r.open = true
	case "enforce":
	default:
		return fmt.Errorf("action %q of %s is none of open, report, enforce", s.Action, s.Name)
	}
	if len(s.MITM)+len(s.Proxies) > 0 {
		r.left(s.Name + ": mitm_domains, allowed_external_proxies")
	}
	return nil
}

type smokescreenService struct {
	Name, Project, Action string
	AllowedDomains        []string          `json:"allowed_domains"`
	Proxies               []string          `json:"allowed_external_proxies"`
	MITM                  []json.RawMessage `json:"mitm_domains"`
}

func (s *smokescreenService) UnmarshalJSON(text []byte) error {
	return onlySettings(text, parseMember, map[string]any{
		"name": &s.Name, "project": &s.Project, "action": &s.Action,
		"allowed_domains": &s.AllowedDomains, "allowed_external_proxies": &s.Proxies, "mitm_domains": &s.MITM,
	})
}

// chosenService is the service of a name; without a name the only one, or the default where there is none.
func chosenService(name string, services []smokescreenService, fallback *smokescreenService) (*smokescreenService, error) {
	var names []string
	for i := range services {
		if services[i].Name == name || name == "" && len(services) == 1 {
			return &services[i], nil
		}
		names = append(names, services[i].Name)
	}
	if fallback != nil && (name == "default" || name == "" && len(services) == 0) {
		return fallback, nil
	}
	if fallback != nil {
		names = append(names, "default")
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("it has no service")
	}
	return nil, fmt.Errorf("it has the services %s; choose one with --name", strings.Join(names, ", "))
}
