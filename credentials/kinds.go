package credentials

import (
	"slices"
	"strings"
)

// A Kind is a row of the shipped table: what one service's tools send, and where it hands out new secrets.
type Kind struct {
	Name      string
	Says      string // one line for people
	Places    []Place
	Movable   bool // the policy file may name other hosts, of an own installation
	Variables []Variable
	Prefixes  []string
	Bodies    []string // see [Spec]
	Tenants   []string // see [Spec]
	Mints     []Mint
}

// A Mint is an endpoint that hands out new secrets. Nobody knows these secrets beforehand, so they cannot be
// struck out of a response.
type Mint struct {
	Host    string   // "" for each host of the credential
	Methods []string // none for all
	Paths   []string // in the form of the policy file
}

// KindsDate says when the table was last compared with what the tools send.
const KindsDate = "2026-11-28"

// Kinds returns the table, in the order of names.
func Kinds() []Kind {
	all := []Kind{
		github(), gitlab(), npm(), pypi(), anthropic(), claudeCode(), openAI(), codex(), gemini(), gcloud(), amazon(), dockerKind(),
	}
	slices.SortFunc(all, func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// KindNamed returns a row of the table, or nil.
func KindNamed(name string) *Kind {
	all := Kinds()
	if i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// KindNames are the names of all kinds, in order.
func KindNames() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// PlacesAt returns the places of the kind, moved from its first host to other hosts.
func (k *Kind) PlacesAt(hosts []string) (all []Place) {
	for _, host := range hosts {
		first := k.Places[0].Host
		for _, p := range k.Places {
			if p.Host == first {
				p.Host = host
				all = append(all, p)
			}
		}
	}
	return all
}

const anyBasic = BasicUser | BasicPassword

func github() Kind {
	const add, web = "token {}", "Basic x-access-token:{}"
	forms := Bearer | Token | anyBasic
	return Kind{
		Name: "github", Says: "GitHub: gh, git over HTTPS, the REST and GraphQL interfaces",
		Places: []Place{
			{Host: "api.github.com", Header: "Authorization", Forms: forms, Add: add},
			{Host: "uploads.github.com", Header: "Authorization", Forms: forms, Add: add},
			{Host: "github.com", Header: "Authorization", Forms: forms, Add: web},
			{Host: "raw.githubusercontent.com", Header: "Authorization", Forms: forms, Add: add},
		},
		Variables: []Variable{{"GH_TOKEN", "{}"}, {"GITHUB_TOKEN", "{}"}},
		Prefixes:  []string{"github_pat_", "ghp_", "gho_", "ghu_", "ghs_"},
		Mints: []Mint{
			{Host: "api.github.com", Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{
				"/app/**", "/app-manifests/**", "/applications/**", "/authorizations", "/authorizations/**",
				"/repos/*/*/actions/runners/**", "/orgs/*/actions/runners/**", "/enterprises/*/actions/runners/**",
				"/repositories/*/actions/runners/**", "/organizations/*/actions/runners/**",
				"/orgs/*/personal-access-token-requests/**", "/user/codespaces/secrets/**",
			}},
			{Host: "api.github.com", Paths: []string{"/copilot_internal/**"}},
			{Host: "github.com", Paths: []string{"/login/**", "/session", "/sessions/**", "/settings/**"}},
		},
	}
}

func gitlab() Kind {
	const host = "gitlab.com"
	return Kind{
		Name: "gitlab", Says: "GitLab: glab, git over HTTPS, the REST and GraphQL interfaces", Movable: true,
		Places: []Place{
			{Host: host, Under: "/api/", Header: "PRIVATE-TOKEN", Forms: Bare, Add: "{}"},
			{Host: host, Header: "Authorization", Forms: Bearer | BasicPassword, Add: "Basic oauth2:{}"}, // GitLab looks at the password alone
		},
		Variables: []Variable{{"GITLAB_TOKEN", "{}"}},
		Prefixes:  []string{"glpat-"},
		Bodies:    gitlabBodies,
		Mints: []Mint{
			{Paths: []string{"/oauth/**", "/users/sign_in", "/-/user_settings/**", "/jwt/**", "/api/v4/**/conan/*/users/authenticate"}},
			{Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{
				"/api/v4/personal_access_tokens", "/api/v4/personal_access_tokens/**", "/api/v4/user/personal_access_tokens", "/api/v4/user/runners",
				"/api/v4/users/*/personal_access_tokens", "/api/v4/users/*/impersonation_tokens",
				"/api/v4/*/*/access_tokens", "/api/v4/*/*/access_tokens/**", "/api/v4/*/*/deploy_tokens", "/api/v4/projects/*/triggers",
				"/api/v4/runners", "/api/v4/runners/**", "/api/v4/*/*/runners/reset_registration_token", "/api/v4/projects/*/remote_mirrors",
				"/api/v4/applications", "/api/v4/applications/**", "/api/v4/*/*/service_accounts/**", "/api/v4/projects/*/cluster_agents/*/tokens",
			}},
		},
	}
}

func npm() Kind {
	return Kind{
		Name: "npm", Says: "an npm registry: npm, pnpm, yarn", Movable: true,
		Places: []Place{
			{Host: "registry.npmjs.org", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
		},
		Variables: []Variable{{"NPM_TOKEN", "{}"}, {"NODE_AUTH_TOKEN", "{}"}},
		Prefixes:  []string{"npm_"},
		Mints: []Mint{
			{Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{"/-/npm/v1/tokens", "/-/npm/v1/tokens/**", "/-/npm/v1/oidc/**", "/-/npm/v1/user"}},
			{Paths: []string{"/-/user/**", "/-/v1/login", "/-/v1/done"}},
		},
	}
}

func pypi() Kind {
	return Kind{
		Name: "pypi", Says: "a Python package index: twine and uv for uploads, pip and uv for an own index", Movable: true,
		Places: []Place{
			{Host: "upload.pypi.org", Header: "Authorization", Forms: BasicPassword, Add: "Basic __token__:{}"},
		},
		Variables: []Variable{{"UV_PUBLISH_TOKEN", "{}"}, {"TWINE_USERNAME", "__token__"}, {"TWINE_PASSWORD", "{}"}},
		Prefixes:  []string{"pypi-"},
		Mints: []Mint{
			{Host: "pypi.org", Paths: []string{"/_/oidc/**", "/account/**", "/manage/**"}},
		},
	}
}

func anthropic() Kind {
	return Kind{
		Name: "anthropic", Says: "the Anthropic API with an API key",
		Places: []Place{
			{Host: "api.anthropic.com", Header: "X-Api-Key", Forms: Bare, Add: "{}"},
		},
		Variables: []Variable{{"ANTHROPIC_API_KEY", "{}"}},
		Prefixes:  []string{"sk-ant-api03-", "sk-ant-"},
		Tenants:   []string{"anthropic-workspace-id"},
		Mints:     anthropicMints(),
	}
}

func claudeCode() Kind {
	return Kind{
		Name: "claude-code", Says: "Claude Code with a subscription (tested with 2.1.332)",
		Places: []Place{
			{Host: "api.anthropic.com", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
		},
		Variables: []Variable{{"CLAUDE_CODE_OAUTH_TOKEN", "{}"}},
		Prefixes:  []string{"sk-ant-oat01-", "sk-ant-"},
		Tenants:   []string{"anthropic-workspace-id"},
		Mints:     anthropicMints(),
	}
}

func anthropicMints() []Mint {
	login := []string{"/v1/oauth/**", "/oauth/**", "/api/oauth/claude_cli/**"}
	return []Mint{
		{Host: "api.anthropic.com", Paths: []string{"/api/oauth/claude_cli/**", "/v1/oauth/**"}},
		{Host: "api.anthropic.com", Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{"/v1/organizations/**"}},
		{Host: "platform.claude.com", Paths: login},
		{Host: "console.anthropic.com", Paths: login},
	}
}

func openAI() Kind {
	return Kind{
		Name: "openai", Says: "the OpenAI API with an API key",
		Places: []Place{
			{Host: "api.openai.com", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
		},
		Variables: []Variable{{"OPENAI_API_KEY", "{}"}, {"CODEX_API_KEY", "{}"}},
		Prefixes:  []string{"sk-proj-", "sk-svcacct-", "sk-"},
		Tenants:   []string{"OpenAI-Organization", "OpenAI-Project"},
		Mints:     openAIMints(),
	}
}

func codex() Kind {
	return Kind{
		Name: "codex", Says: "Codex with a ChatGPT subscription (tested with 0.171)",
		Places: []Place{
			{Host: "chatgpt.com", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
			{Host: "api.openai.com", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
		},
		Prefixes: []string{"eyJ"},
		Tenants:  []string{"OpenAI-Organization", "OpenAI-Project"},
		Mints:    openAIMints(),
	}
}

func openAIMints() []Mint {
	return []Mint{
		{Host: "api.openai.com", Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{
			"/v1/organization/**", "/v1/realtime/client_secrets", "/v1/realtime/sessions", "/v1/realtime/transcription_sessions", "/v1/chatkit/sessions",
		}},
		{Host: "auth.openai.com", Paths: []string{"/oauth/**", "/api/accounts/**"}},
		{Host: "chatgpt.com", Paths: []string{"/api/auth/**"}},
	}
}

func gemini() Kind {
	const host = "generativelanguage.googleapis.com"
	return Kind{
		Name: "gemini", Says: "the Gemini API with an API key",
		Places: []Place{
			{Host: host, Header: "x-goog-api-key", Forms: Bare, Add: "{}"},
			{Host: host, Query: "key", Forms: Bare},
		},
		Variables: []Variable{{"GEMINI_API_KEY", "{}"}},
		Prefixes:  []string{"AIza"},
		Tenants:   []string{"x-goog-user-project"},
		Mints:     []Mint{{Paths: []string{"/*/authTokens", "/*/auth_tokens"}}},
	}
}

func gcloud() Kind {
	return Kind{
		Name: "gcloud", Says: "Google Cloud: gcloud by its variable, whose tokens last an hour",
		Places: []Place{
			{Host: ".googleapis.com", Header: "Authorization", Forms: Bearer, Add: "Bearer {}"},
		},
		Variables: []Variable{{"CLOUDSDK_AUTH_ACCESS_TOKEN", "{}"}},
		Prefixes:  []string{"ya29."},
		Mints: []Mint{
			{Host: "sts.googleapis.com", Paths: []string{"/**"}},
			{Host: "iamcredentials.googleapis.com", Paths: []string{"/**"}},
			{Host: "oauth2.googleapis.com", Paths: []string{"/token", "/device/**"}},
			{Host: "accounts.google.com", Paths: []string{"/o/oauth2/**"}},
			{Host: "iam.googleapis.com", Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{"/*/projects/*/serviceAccounts/**", "/batch"}},
			{Host: "www.googleapis.com", Paths: []string{"/oauth2/**"}},
			{Host: "storage.googleapis.com", Methods: []string{"POST", "PUT", "PATCH"}, Paths: []string{"/storage/*/projects/*/hmacKeys", "/batch"}},
			{Host: "apikeys.googleapis.com", Paths: []string{"/**"}},
		},
	}
}

func amazon() Kind {
	k := Kind{
		Name: AWS, Says: "AWS: aws-cli and the SDKs; egressd signs requests anew", Movable: true,
		Variables: []Variable{{"AWS_ACCESS_KEY_ID", "{}"}, {"AWS_SECRET_ACCESS_KEY", "{secret}"}, {"AWS_SESSION_TOKEN", "{token}"}},
		Prefixes:  []string{"AKIA", "ASIA"},
	}
	for _, suffix := range awsSuffixes {
		k.Places = append(k.Places, Place{Host: suffix, Header: "Authorization", Forms: Signature})
	}
	return k
}
