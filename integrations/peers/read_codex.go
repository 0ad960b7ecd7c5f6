package peers

import (
	"fmt"
	"slices"
	"strings"
)

// codexAside are settings of Codex that open no destination of a sandbox and close none (github.com/openai/codex,
// codex-rs/core/config.schema.json and codex-rs/config/src/config_requirements.rs, read 2026-11-28).
const codexAside = `agents allow_login_shell analytics approval_policy approvals_reviewer apps apps_mcp_product_sku audio auto_review
	background_terminal_max_timeout chatgpt_base_url check_for_update_on_startup cli_auth_credentials_store compact_prompt
	debug desktop developer_instructions disable_paste_burst experimental_compact_prompt_file
	experimental_realtime_start_instructions experimental_realtime_ws_backend_prompt experimental_realtime_ws_base_url
	experimental_realtime_ws_model experimental_realtime_ws_startup_context experimental_thread_config_endpoint
	experimental_thread_store experimental_use_unified_exec_tool experimental_instructions_file feedback file_opener
	forced_chatgpt_workspace_id forced_login_method ghost_snapshot hide_agent_reasoning history hooks
	include_apps_instructions include_collaboration_mode_instructions include_environment_context
	include_permissions_instructions instructions log_dir marketplaces mcp_oauth_callback_port mcp_oauth_callback_url
	mcp_oauth_credentials_store mcp_servers memories model model_auto_compact_token_limit
	model_auto_compact_token_limit_scope model_catalog_json model_context_window model_max_output_tokens
	model_instructions_file model_provider model_providers model_reasoning_effort model_reasoning_summary
	model_supports_reasoning_summaries model_verbosity notice notify openai_base_url oss_provider otel personality
	plan_mode_reasoning_effort plugins profile project_doc_fallback_filenames project_doc_max_bytes project_root_markers
	projects realtime review_model service_tier shell_environment_policy show_raw_agent_reasoning skills sqlite_home
	suppress_unstable_features_warning tool_output_token_limit tool_suggest tools tui web_search windows
	windows_wsl_setup_acknowledged zsh_path preferred_auth_method responses_originator_header_internal_override
	disable_response_storage network_access allowed_approval_policies allowed_approvals_reviewers allowed_sandbox_modes
	allowed_permission_profiles allowed_web_search_modes allowed_login_methods allowed_chatgpt_workspaces
	remote_sandbox_config allow_managed_hooks_only allow_appshots allow_remote_control enforce_residency rules
	guardian_policy_config`

// A codexNetwork is one table of the network's settings: of a permission profile, of the feature network_proxy, of an
// organisation's requirements, or of earlier versions. The schema has the keys of all.
type codexNetwork struct {
	enabled, mitm   *bool
	mode            word
	domains         []named
	allowed, denied []word
	hooks           []codexHook
}

type codexHook struct {
	said           string
	host           word
	methods, paths []word
	more           bool // it matches more than a host, methods and the beginning of a path
}

func (c *codexNetwork) schema() schema {
	return schema{
		"enabled": into(&c.enabled), "mode": into(&c.mode), "domains": into(&c.domains),
		"allowed_domains": into(&c.allowed), "denied_domains": into(&c.denied),
		"mitm":       {truth: &c.mitm, keys: schema{"enabled": into(&c.mitm), "hooks": {items: c.hook(false)}}.known("actions")},
		"mitm_hooks": {items: c.hook(true)},
	}.aside(`proxy_url admin_url enable_socks5 socks_url enable_socks5_udp http_port socks_port allow_upstream_proxy
		dangerously_allow_non_loopback_proxy dangerously_allow_non_loopback_admin dangerously_allow_all_unix_sockets
		unix_sockets allow_unix_sockets allow_local_binding managed_allowed_domains_only danger_full_access_denylist_only
		credential_broker prompt_on_block poll_interval_ms mitm_ca_cert_path mitm_ca_key_path`)
}

// hook reads a hook. The older form has what it matches in a table of its own.
func (c *codexNetwork) hook(older bool) items {
	return func(_, said string) (schema, func(*setting) error) {
		h := codexHook{said: said}
		var query, headers, body *setting
		s := schema{"methods": into(&h.methods), "path_prefixes": into(&h.paths), "query": into(&query), "headers": into(&headers), "body": into(&body)}
		if older {
			s = schema{"match": fields(s)}
		}
		s.known("action actions")
		s["host"] = into(&h.host)
		return s, func(n *setting) error {
			if h.host.at == nil {
				return n.errorf("%s has no host", said)
			}
			h.said = "the hook for " + h.host.text
			h.more = query != nil || headers != nil || body != nil
			c.hooks = append(c.hooks, h)
			return nil
		}
	}
}

type codexProfile struct {
	extends word
	network codexNetwork
}

// readCodex reads config.toml or requirements.toml. A deny wins. "*.x.test" matches the names below x.test, and "**.x.test"
// matches x.test as well (codex-rs/network-proxy/README.md).
func readCodex(r *reading, text []byte) error {
	top, err := parseTOML(text)
	if err != nil {
		return err
	}
	var chosen, mode string
	var access *bool
	var feature, required, older, flat codexNetwork
	profiles := map[string]*codexProfile{}
	s := schema{
		"default_permissions": into(&chosen), "sandbox_mode": into(&mode),
		"permissions":          {items: codexProfiles(profiles)},
		"experimental_network": fields(required.schema()),
		"network_proxy":        fields(joined(older.schema(), schema{"policy": fields(older.schema())})),
		"network":              fields(flat.schema()),
		"features":             {keys: schema{"network_proxy": {keys: feature.schema(), truth: &feature.enabled}}, open: true},
		"sandbox_workspace_write": fields(schema{"network_access": into(&access)}.
			aside("writable_roots exclude_tmpdir_env_var exclude_slash_tmp")),
		"profiles": {items: codexConfigProfile},
	}.aside(codexAside)
	if err := r.take(top, s); err != nil {
		return err
	}
	var found []string
	for _, key := range []string{"experimental_network", "network_proxy", "network"} {
		if top.at(key) != nil {
			found = append(found, key)
		}
	}
	if len(profiles) > 0 {
		found = append(found, "permissions")
	}
	if f := top.at("features"); f != nil && f.at("network_proxy") != nil && (len(found) == 0 || feature.restricts()) {
		found = append(found, "features.network_proxy")
	}
	if len(found) == 0 {
		return fmt.Errorf("it has no permissions.NAME.network, no features.network_proxy and no experimental_network")
	}
	if len(found) > 1 {
		return fmt.Errorf("it has the network in %s; keep one of them in a copy of the file", strings.Join(found, " and in "))
	}
	switch found[0] {
	case "permissions":
		c, err := r.codexChosen(chosen, profiles)
		if err != nil || !r.codexOn(c.enabled, "enabled of the profile's network") {
			return err
		}
		return r.codex(c)
	case "features.network_proxy":
		if mode == "read-only" {
			access = new(bool)
		}
		if mode != "danger-full-access" && !r.codexOn(access, "sandbox_workspace_write.network_access") {
			return nil
		}
		return r.codex(feature)
	case "network_proxy":
		if !r.codexOn(older.enabled, "network_proxy.enabled") {
			return nil
		}
		return r.codex(older)
	case "network":
		required = flat
	}
	if required.enabled != nil && !*required.enabled {
		r.stricterf("%s.enabled is false, so nothing is allowed", found[0])
		return nil
	}
	return r.codex(required)
}

func (c *codexNetwork) restricts() bool {
	return len(c.domains)+len(c.allowed)+len(c.denied)+len(c.hooks) > 0 || c.mode.text == "limited"
}

// codexOn reports whether the network is on. Codex has it off by default.
func (r *reading) codexOn(on *bool, what string) bool {
	switch {
	case on == nil:
		return r.widens("every host", what+" is not set, and Codex has it off then")
	case !*on:
		r.stricterf("%s is false, so nothing is allowed", what)
	}
	return *on
}

func codexProfiles(into map[string]*codexProfile) items {
	return func(name, _ string) (schema, func(*setting) error) {
		p := &codexProfile{}
		s := schema{"extends": {into: &p.extends}, "network": fields(p.network.schema())}.aside("description filesystem workspace_roots")
		if name == "filesystem" { // of requirements.toml
			s = schema{}.aside("deny_read deny_write")
		}
		return s, func(*setting) error {
			if name != "filesystem" {
				into[name] = p
			}
			return nil
		}
	}
}

// codexConfigProfile reads a profile of settings. It refuses one with settings of the network.
func codexConfigProfile(_, said string) (schema, func(*setting) error) {
	const instead = "this import reads the file's own settings; move what the profile has there, in a copy of the file"
	return schema{
		"features":                {keys: schema{"network_proxy": refused(instead)}, open: true},
		"sandbox_workspace_write": refused(instead), "default_permissions": refused(instead), "permissions": refused(instead),
	}.aside(codexAside + " sandbox_mode include_apply_patch_tool"), func(*setting) error { return nil }
}

// codexChosen is the network of the profile that is meant, with what it extends.
func (r *reading) codexChosen(chosen string, profiles map[string]*codexProfile) (c codexNetwork, err error) {
	if r.Name == "" {
		r.Name = chosen
	}
	if len(profiles) == 1 && r.Name == "" {
		r.Name = sortedKeys(profiles)[0]
	}
	p, ok := profiles[r.Name]
	if !ok {
		return c, fmt.Errorf("it has the profiles %s; choose one with --name", strings.Join(sortedKeys(profiles), ", "))
	}
	c = p.network
	seen := []string{r.Name}
	for p.extends.at != nil && !strings.HasPrefix(p.extends.text, ":") { // those of Codex itself open no host
		name := p.extends.text
		parent, ok := profiles[name]
		if !ok || slices.Contains(seen, name) {
			return c, p.extends.at.errorf("extends: there is no profile %q above this one", name)
		}
		seen = append(seen, name)
		c.inherit(parent.network)
		p = parent
	}
	return c, nil
}

// inherit takes what the profile above has and c does not say otherwise.
func (c *codexNetwork) inherit(above codexNetwork) {
	if c.enabled == nil {
		c.enabled = above.enabled
	}
	if c.mitm == nil {
		c.mitm = above.mitm
	}
	if c.mode.at == nil {
		c.mode = above.mode
	}
	for _, d := range above.domains {
		if !slices.ContainsFunc(c.domains, func(own named) bool { return own.key == d.key }) {
			c.domains = append(c.domains, d)
		}
	}
	c.allowed, c.denied = slices.Concat(c.allowed, above.allowed), slices.Concat(c.denied, above.denied)
	c.hooks = slices.Concat(c.hooks, above.hooks)
}

// readOnlyMethods are the methods of Codex's limited mode.
var readOnlyMethods = []string{"GET", "HEAD", "OPTIONS"}

func (r *reading) codex(c codexNetwork) error {
	base := clause{}
	if c.mode.at != nil {
		if err := choice(c.mode.text, "mode", c.mode.at, "full", "limited"); err != nil {
			return err
		}
	}
	if c.mode.text == "limited" {
		base.methods = readOnlyMethods
		if c.mitm != nil && !*c.mitm {
			base.ports = []span{port(80)}
			r.stricter("mode limited without mitm: plain HTTP at port 80 alone")
		}
	}
	allowed, denied := slices.Clone(c.allowed), c.denied
	for _, d := range c.domains {
		if err := choice(d.value, "domains."+d.key, d.at, "allow", "deny", "none"); err != nil {
			return err
		}
		switch d.value {
		case "allow":
			allowed = append(allowed, word{d.key, d.at})
		case "deny":
			denied = append(denied, word{d.key, d.at})
		}
	}
	allowed = slices.DeleteFunc(allowed, func(w word) bool {
		return w.text == "*" && !r.widens("*", "Codex refuses it unless an organisation allows it")
	})
	if err := r.list(r.deny, denied, codexScope, anyDepth, clause{}); err != nil {
		return err
	}
	at := len(r.clauses)
	if err := r.list(r.allow, allowed, codexScope, anyDepth, base); err != nil {
		return err
	}
	// A host with hooks passes only what a hook is about.
	open := slices.Clone(r.clauses[at:])
	r.clauses = r.clauses[:at]
	if err := r.codexHooks(c.hooks, open, base); err != nil {
		return err
	}
	r.clauses = append(r.clauses, open...)
	return nil
}

// codexHooks allows what hooks are about at hosts that are allowed anyway, and denies the rest of these hosts.
func (r *reading) codexHooks(hooks []codexHook, open []clause, base clause) error {
	var rest []scope
	for _, h := range hooks {
		s, err := codexScope(h.host.text, anyDepth)
		if err != nil {
			return h.host.at.errorf("%w", err)
		}
		rest = append(rest, s)
		r.left(h.said + ": its actions")
		held := func(set hostSet) bool {
			return slices.ContainsFunc(open, func(c clause) bool { return c.hosts.holds(set) })
		}
		if !slices.ContainsFunc(s.sets, held) {
			r.stricterf("%s opens nothing: no domain allows %s", h.said, h.host.text)
			continue
		}
		if h.more || s.part != "" || len(s.sets) != 1 || s.sets[0].kind != oneName {
			r.stricterf("%s is left out: it matches more than a host, methods and the beginning of a path", h.said)
			continue
		}
		c, ok := r.codexHook(h, base)
		if ok {
			r.allow(h.said, s, c)
		}
	}
	for i, s := range rest {
		r.deny("what no hook of "+hooks[i].host.text+" is about", s, clause{})
	}
	return nil
}

// codexHook is what a hook is about. ok is false if that is nothing.
func (r *reading) codexHook(h codexHook, base clause) (c clause, ok bool) {
	c = base
	var methods []string
	for _, m := range h.methods {
		methods = append(methods, strings.ToUpper(m.text))
	}
	if c.methods = common(base.methods, methods); c.methods == nil && len(base.methods)+len(methods) > 0 {
		r.stricterf("%s opens nothing: the mode lets none of its methods pass", h.said)
		return c, false
	}
	for _, p := range h.paths {
		if pattern := startingWith(p.text); pattern != "" {
			c.paths = append(c.paths, pattern)
		} else {
			r.stricterf("%s: the path %s is left out", h.said, p.text)
		}
	}
	if len(h.paths) > 0 && len(c.paths) == 0 {
		return c, false
	}
	if !c.conditional() {
		c.paths = []string{"/**"} // a hook is about requests
	}
	return c, true
}

// common is what is in both lists, of which an empty one has all. Nil is nothing, or all if both are empty.
func common(a, b []string) (in []string) {
	if len(a) == 0 || len(b) == 0 {
		return append(slices.Clone(a), b...)
	}
	for _, m := range a {
		if slices.Contains(b, m) {
			in = append(in, m)
		}
	}
	return in
}

func codexScope(text string, wild star) (scope, error) {
	if rest, ok := strings.CutPrefix(text, "**."); ok {
		return scopeOf("*."+rest, anyDepthAndName)
	}
	return everyOr(text, wild)
}
