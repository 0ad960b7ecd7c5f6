package docs

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testaws"
)

// modelUser stands for a coding agent: it asks its model with the key that it has.
const modelUser = `#!/bin/sh
curl -sS -m9 -H "X-Api-Key: $ANTHROPIC_API_KEY" -H 'Content-Type: application/json' -d '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}' https://api.anthropic.com/v1/messages
`

// realNPM is npm itself, in place of what stands for it on other pages.
const realNPM = "#!/bin/sh\nexec /usr/bin/npm \"$@\"\n"

// serveSecretly has the hosts of a page answer those alone that have the secrets that the page writes into files.
func serveSecretly(t *testing.T, w *world.World) {
	t.Helper()
	bearing := func(secret string, then http.HandlerFunc) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			_, password, _ := r.BasicAuth()
			_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if password != secret && token != secret && r.Header.Get("X-Api-Key") != secret {
				rw.Header().Set("WWW-Authenticate", "Basic realm=x")
				http.Error(rw, `{"message":"not the real secret"}`, http.StatusUnauthorized)
				return
			}
			then(rw, r)
		}
	}
	served := t.TempDir()
	if err := os.Mkdir(filepath.Join(served, "acme"), 0o700); err != nil {
		t.Fatal(err)
	}
	world.MakeRepository(t, filepath.Join(served, "acme", "app.git"))
	w.Origin.ServeRepositories(t, "github.com", served)
	site, _ := w.Origin.Sites.Load("github.com")
	repositories := world.Whole(site.(http.Handler))
	key := testaws.Key{ID: "AKIATHEREALKEYOFAWS0", Secret: "the-real-secret-key-of-aws"}
	const github = "ghp_the0real0token0of0GitHub"
	for host, site := range map[string]http.HandlerFunc{
		"github.com": bearing(github, repositories.ServeHTTP),
		"api.anthropic.com": bearing("sk-ant-api03-the-real-key-of-the-model", func(rw http.ResponseWriter, _ *http.Request) {
			io.WriteString(rw, "claude: the model answers\n")
		}),
		"api.github.com": bearing(github, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json; charset=utf-8")
			rw.WriteHeader(http.StatusCreated)
			io.WriteString(rw, `{"html_url":"https://github.com/acme/app/issues/1"}`)
		}),
		"registry.npmjs.org": bearing("npm_the0real0token0of0npm", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			io.WriteString(rw, `{"name":"left-pad","dist-tags":{"latest":"1.3.0"},"versions":{"1.3.0":{"name":"left-pad","version":"1.3.0"}}}`)
		}),
		"acme-build.s3.eu-west-1.amazonaws.com": func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if scope, err := key.Verify(r, body); err != nil || scope.Service != "s3" {
				http.Error(rw, fmt.Sprint(err), http.StatusForbidden)
				return
			}
			rw.Header().Set("ETag", `"x"`)
		},
	} {
		w.Origin.Sites.Store(host, site)
		t.Cleanup(func() { w.Origin.Sites.Delete(host) })
	}
}
