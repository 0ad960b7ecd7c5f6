package credentials

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
)

// Docker is the kind whose secret goes to a token service, and requests get a token for what their path names.
const Docker = "docker"

// A TokenService hands out the tokens of a registry.
type TokenService struct {
	Realm   string // an https URL
	Service string // by which it knows the registry
}

// TokenServices are those of well-known registries, by host.
func TokenServices() map[string]TokenService {
	return map[string]TokenService{
		"registry-1.docker.io": {"https://auth.docker.io/token", "registry.docker.io"},
		"ghcr.io":              {"https://ghcr.io/token", "ghcr.io"},
		"quay.io":              {"https://quay.io/v2/auth", "quay.io"},
		"registry.gitlab.com":  {"https://gitlab.com/jwt/auth", "container_registry"},
	}
}

// A DockerSpec is what the policy says of a registry.
type DockerSpec struct {
	User    string
	Service TokenService // the zero value: the registry takes Basic itself
}

// keptTokens are those that a credential has got, by scope.
type keptTokens struct {
	mu sync.Mutex
	by map[string]keptToken
}

type keptToken struct {
	secret *secret.Secret
	until  time.Time
}

const (
	tokensKept  = 256
	tokenMargin = 10 * time.Second // before its end a token is no longer used
)

func (t *keptTokens) find(scope string) *secret.Secret {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.by[scope]; time.Until(one.until) > tokenMargin {
		return one.secret
	}
	return nil
}

func (t *keptTokens) keep(scope string, one keptToken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil || len(t.by) >= tokensKept {
		t.by = map[string]keptToken{}
	}
	t.by[scope] = one
}

// registryPath reads what a path of the distribution specification names. The name is that of one repository.
var registryPath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/v2/([a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)/(?:(manifests|blobs|tags|referrers)/([A-Za-z0-9][A-Za-z0-9._:+-]*)|blobs/uploads/([A-Za-z0-9._=-]*))$`)
})

// scopeOf returns the scope of a token for a request, by its path alone. The parameter "from", which mounts a blob of another
// repository, adds nothing to it. ok is false for a path that names no repository.
func scopeOf(method, path string) (scope string, ok bool) {
	if path == "/v2/" || path == "/v2" {
		return "", true
	}
	parts := registryPath().FindStringSubmatch(path)
	if parts == nil {
		return "", false
	}
	upload := parts[2] == "" || parts[2] == "blobs" && parts[3] == "uploads"
	action := "pull,push"
	switch method {
	case http.MethodGet, http.MethodHead:
		if !upload {
			action = "pull"
		}
	case http.MethodDelete:
		if !upload {
			action = "delete"
		}
	}
	return "repository:" + parts[1] + ":" + action, true
}

// applyDocker adds a token to a request, and refuses every other credential.
func (c *Credential) applyDocker(key *Key, r *Request, a *Answer) {
	all := c.find(r)
	for i := range all {
		one := &all[i]
		fits, _ := c.fits(r, one, key.core(r.Sandbox, c.Name))
		switch {
		case len(all) > 1:
			a.Refused = "the request has two credentials, in " + all[0].name + " and " + all[1].name + "; send one"
		case fits:
		case c.letsForeign(r.Target.Path):
			a.Note, a.Kind = "the request had a credential of the sandbox's own in "+one.name, "foreign"
		default:
			a.Refused = "the request has a credential in " + one.name + "; send none, since egressd adds that of " + c.Name
		}
	}
	if a.Refused != "" || a.Kind != "" || r.Rule == "" {
		return
	}
	scope, ok := scopeOf(r.Method, r.Target.Path)
	if !ok {
		a.Refused = "the path names no repository, so egressd asks for no token"
		return
	}
	password := c.now.Load()
	if password == nil || c.isOver() {
		a.Refused, a.Unavailable = c.unavailable(), true
		return
	}
	a.Kind, a.Added = c.label(), password
	template := "Basic " + c.Docker.User + ":{}"
	if c.Docker.Service.Realm != "" {
		if a.Added = c.tokens.find(scope); a.Added == nil {
			a.Fetch = func(ctx context.Context, holder string) error {
				return c.fetch(ctx, scope, password, holder, r.Sandbox)
			}
			return
		}
		template = "Bearer {}"
	}
	value := filled(a.Added, template)
	a.Fields = append(append(http1.Fields(nil), a.Fields...).Delete("Authorization"), http1.Field{Name: "Authorization", Value: value})
}

// fetch gets a token for a scope. The error holds no secret.
func (c *Credential) fetch(ctx context.Context, scope string, password *secret.Secret, holder, sandbox string) error {
	got, err := c.Servers.ByRegistry(ctx, tokens.Pull{
		Realm: c.Docker.Service.Realm, Service: c.Docker.Service.Service, Scope: scope, User: c.Docker.User, Secret: password.Fill("{}"),
		Holder: holder, Sandbox: sandbox,
	})
	if err != nil {
		return fmt.Errorf("the credential %s: %w", c.Name, err)
	}
	one, err := secret.New(secret.Options{Header: "Authorization", Text: []byte(got.Text)})
	if err != nil {
		return fmt.Errorf("the credential %s: what the token service gave is no token", c.Name)
	}
	if time.Until(got.Until) <= tokenMargin {
		got.Until = time.Now().Add(2 * tokenMargin) // else it could never be used
	}
	c.tokens.keep(scope, keptToken{one, got.Until})
	return nil
}

func dockerKind() Kind {
	return Kind{
		Name: Docker, Says: "a registry of containers: egressd asks its token service, and no program logs in", Movable: true,
		Places: []Place{{Host: "registry-1.docker.io", Header: "Authorization", Forms: Bearer | BasicPassword}},
		Mints:  []Mint{{Host: "hub.docker.com", Paths: []string{"/v2/users/login", "/v2/users/2fa-login", "/v2/auth/**", "/v2/access-tokens/**"}}},
	}
}

// MintsOf are the endpoints that hand out tokens of the service.
func (t TokenService) MintsOf() []Mint {
	host, path, ok := strings.Cut(strings.TrimPrefix(t.Realm, "https://"), "/")
	if !ok {
		return nil
	}
	return []Mint{{Host: host, Paths: []string{"/" + path}}}
}
