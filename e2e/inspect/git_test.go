package inspect

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

const gitPolicy = `version: 1
allow: [{host: git.allowed.test, git: {repos: [acme/app, "acme/lib-*"]}, id: fetch}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// TestGitFetchesListedRepositories runs git against git's own server, which would take a push to any repository.
func TestGitFetchesListedRepositories(t *testing.T) {
	d := world.Start(t, gitPolicy)
	dir := t.TempDir()
	served := filepath.Join(dir, "served", "acme")
	if err := os.MkdirAll(served, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "other", "lib-x", "lib-x.wiki"} {
		world.MakeRepository(t, filepath.Join(served, name+".git"))
	}
	d.World.Origin.ServeRepositories(t, "git.allowed.test", filepath.Dir(served))
	ca := d.AuthorityFile()
	const host, denied = "https://git.allowed.test/", policy.GitDenied
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		to := filepath.Join(dir, strings.ReplaceAll(version, "/", ""))
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			says, command, wants string
			works                bool
			asked                world.LoggedRequest
		}{
			{"clone", "git clone -q " + host + "acme/app.git app && cat app/file", "from the lab", true, world.LoggedRequest{Method: "POST", Path: "/acme/app.git/git-upload-pack", Status: 200}},
			{"fetch by the first protocol", "cd app && git -c protocol.version=0 fetch -v origin", "up to date", true, world.LoggedRequest{Method: "GET", Path: "/acme/app.git/info/refs", Status: 200}},
			{"shallow clone", "git clone -q --depth 1 " + host + "acme/app.git shallow && cat shallow/file", "from the lab", true, world.LoggedRequest{Method: "POST", Path: "/acme/app.git/git-upload-pack", Status: 200}},
			{"ls-remote by a star", "git ls-remote " + host + "acme/lib-x.git HEAD", "HEAD", true, world.LoggedRequest{Method: "POST", Path: "/acme/lib-x.git/git-upload-pack", Status: 200}},
			{"another repository", "git ls-remote " + host + "acme/other.git", "403", false, world.LoggedRequest{Method: "GET", Path: "/acme/other.git/info/refs", Class: denied}},
			{"a wiki", "git ls-remote " + host + "acme/lib-x.wiki.git", "403", false, world.LoggedRequest{Method: "GET", Path: "/acme/lib-x.wiki.git/info/refs", Class: denied}},
			{"push", "cd app && git -c user.name=lab -c user.email=lab@allowed.test commit -q --allow-empty -m more && git push origin HEAD:refs/heads/more", "403", false, world.LoggedRequest{Method: "GET", Path: "/acme/app.git/info/refs", Class: denied}},
			{"push of a tag", "cd app && git tag -f v1 && git push --force origin v1", "403", false, world.LoggedRequest{Method: "GET", Path: "/acme/app.git/info/refs", Class: denied}},
			{"delete", "cd app && git push origin :more", "403", false, world.LoggedRequest{Method: "GET", Path: "/acme/app.git/info/refs", Class: denied}},
		} {
			t.Run(version+", "+row.says, func(t *testing.T) {
				mark := d.LogMark(t)
				out, err := d.Shell(to, ca, "export GIT_SSL_CAINFO=$LAB_CA GIT_TERMINAL_PROMPT=0 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.version GIT_CONFIG_VALUE_0="+version+"; "+row.command)
				if (err == nil) != row.works || !strings.Contains(out, row.wants) {
					t.Errorf("%v, printed %q, want %q", err, out, row.wants)
				}
				d.ExpectRequest(t, mark, row.asked)
			})
		}
		t.Run(version+", without git", func(t *testing.T) { forgesGit(t, d, version == "HTTP/2") })
	}
}

// forgesGit sends what git does not: requests that another server may take for a push, or for one to another repository.
func forgesGit(t *testing.T, d *world.Daemon, h2 bool) {
	c := insider(t, d, h2)
	const upload, receive = "application/x-git-upload-pack-request", "application/x-git-receive-pack-request"
	for _, row := range []struct {
		method, path, content string
		passes                bool
	}{
		{"GET", "/ACME/App.git/info/refs?service=git-upload-pack", "", true}, // the lab's server does not have it
		{"GET", "/acme/app.git/info/refs?service=git-upload-pack&service=git-receive-pack", "", false},
		{"GET", "/acme/app.git/info/refs?service=git-receive-pack", "", false},
		{"GET", "/acme/app.git/info/refs", "", false},
		{"GET", "/acme/app.git/HEAD", "", false},
		{"GET", "/acme/app.git/../other.git/info/refs?service=git-upload-pack", "", false},
		{"GET", "/acme/app.git.git/info/refs?service=git-upload-pack", "", false},
		{"GET", "/acme%2Fother.git/info/refs?service=git-upload-pack", "", false},
		{"POST", "/acme/app.git/git-receive-pack", receive, false},
		{"POST", "/acme/app.git/git-receive-pack", upload, false},
		{"POST", "/acme/app.git/git-upload-pack", receive, false},
		{"POST", "/acme/app.git/git-upload-archive", upload, false},
		{"POST", "/acme/app.git/info/lfs/objects/batch", "application/vnd.git-lfs+json", false},
	} {
		request, err := http.NewRequestWithContext(t.Context(), row.method, "https://git.allowed.test/", strings.NewReader("0000"))
		if err != nil {
			t.Fatal(err)
		}
		if row.method == "GET" {
			request.Body, request.ContentLength = nil, 0
		}
		path, query, _ := strings.Cut(row.path, "?")
		request.URL.Opaque, request.URL.RawQuery = path, query
		if row.content != "" {
			request.Header.Set("Content-Type", row.content)
		}
		response, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		refused := response.Header.Get("X-Egressd-Id") != ""
		if refused == row.passes || refused && response.StatusCode != http.StatusForbidden || (response.ProtoMajor == 2) != h2 {
			t.Errorf("%s %s %s: %s, over %s", row.method, row.path, row.content, response.Status, response.Proto)
		}
	}
}
