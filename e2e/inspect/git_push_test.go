package inspect

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const pushPolicy = `version: 1
allow:
  - {host: git.allowed.test, id: agent, git: {repos: [acme/app], push: ["refs/heads/agent/*"], create: ["refs/tags/v*"], delete: ["refs/heads/agent/old"], options: ["ci.*"]}}
  - {host: git.allowed.test, id: read, git: {repos: [acme/other]}}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// A gitLab is git's own server behind egressd. It would take every push.
type gitLab struct {
	d                   *world.Daemon
	ca, served, version string
}

// in runs a command line in dir in the sandbox, with git speaking the version of HTTP.
func (l *gitLab) in(dir, command string) (string, error) {
	return l.d.Shell(dir, l.ca, "export GIT_SSL_CAINFO=$LAB_CA GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@allowed.test GIT_COMMITTER_NAME=lab GIT_COMMITTER_EMAIL=lab@allowed.test GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.version GIT_CONFIG_VALUE_0="+l.version+"; "+command)
}

// at is the object of a ref of the server, or "".
func (l *gitLab) at(repo, ref string) string {
	out, _ := exec.Command("git", "-C", filepath.Join(l.served, repo), "rev-parse", "-q", "--verify", ref).Output()
	return strings.TrimSpace(string(out))
}

// TestGitPushesTheRefsOfARule runs git against git's own server.
func TestGitPushesTheRefsOfARule(t *testing.T) {
	d := world.Start(t, pushPolicy)
	l := gitLab{d: d, ca: d.AuthorityFile()}
	for _, l.version = range []string{"HTTP/1.1", "HTTP/2"} {
		dir := t.TempDir()
		l.served = filepath.Join(dir, "served")
		if err := os.MkdirAll(filepath.Join(l.served, "acme"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"app", "other"} {
			world.MakeRepository(t, filepath.Join(l.served, "acme", name+".git"))
		}
		d.World.Origin.ServeRepositories(t, "git.allowed.test", l.served)
		site, _ := d.World.Origin.Sites.Load("git.allowed.test")
		d.World.Origin.Sites.Store("git.allowed.test", world.Whole(site.(http.Handler)))
		const size = "3000000" // more than git sends without a probe
		if out, err := l.in(dir, "git clone -q https://git.allowed.test/acme/app.git app && cd app && git commit -q --allow-empty -m second && git tag v1 && head -c "+size+" /dev/urandom >big && git checkout -q -b big && git add big && git commit -q -m big && git checkout -q main"); err != nil {
			t.Fatal(err, out)
		}
		for _, row := range []pushRow{
			{says: "a branch", args: "HEAD:refs/heads/agent/x", moved: []string{"refs/heads/agent/x"}},
			{says: "nothing new", args: "HEAD:refs/heads/agent/x", prints: "up-to-date"},
			{says: "a large one", args: "big:refs/heads/agent/big", moved: []string{"refs/heads/agent/big"}},
			{says: "two", args: "--atomic HEAD:refs/heads/agent/one HEAD:refs/heads/agent/old", moved: []string{"refs/heads/agent/one", "refs/heads/agent/old"}},
			{says: "back, by force", args: "--force HEAD~1:refs/heads/agent/x", moved: []string{"refs/heads/agent/x"}},
			{says: "a tag", args: "v1", moved: []string{"refs/tags/v1"}},
			{says: "a delete", args: ":refs/heads/agent/old", moved: []string{"refs/heads/agent/old"}},
			{says: "quiet, over a small connection", args: "-q --no-thin big~1:refs/heads/agent/quiet", moved: []string{"refs/heads/agent/quiet"}},

			{says: "main", args: "HEAD:main", refused: "refs/heads/main"},
			{says: "main with much", args: "big:main", refused: "refs/heads/main"},
			{says: "main by force", args: "--force HEAD~1:refs/heads/main", prints: "up-to-date"},
			{says: "one of two", args: "big:refs/heads/agent/y HEAD:main", refused: "refs/heads/main", also: "refs/heads/agent/y"},
			{says: "another case", args: "HEAD:refs/heads/Agent/x", refused: "refs/heads/Agent/x"},
			{says: "a deeper name", args: "HEAD:refs/heads/agent/a/b", refused: "refs/heads/agent/a/b"},
			{says: "a tag that is there", args: "--force HEAD~1:refs/tags/v1", refused: "refs/tags/v1"},
			{says: "another tag", args: "HEAD:refs/tags/release", refused: "refs/tags/release"},
			{says: "a pull request", args: "HEAD:refs/pull/1/head", refused: "refs/pull/1/head"},
			{says: "a note", args: "HEAD:refs/notes/x", refused: "refs/notes/x"},
			{says: "another delete", args: ":refs/heads/agent/x", refused: "refs/heads/agent/x"},
			{says: "everything", args: "--mirror", refused: "refs/heads/main"},
		} {
			t.Run(l.version+", "+row.says, func(t *testing.T) { row.run(t, &l, filepath.Join(dir, "app")) })
		}
		t.Run(l.version+", another repository", func(t *testing.T) {
			for _, repo := range []string{"other", "none"} {
				mark := d.LogMark(t)
				out, err := l.in(filepath.Join(dir, "app"), "git push https://git.allowed.test/acme/"+repo+".git HEAD:refs/heads/agent/x")
				if err == nil || !strings.Contains(out, "403") {
					t.Errorf("%v, printed %q", err, out)
				}
				d.ExpectRequest(t, mark, world.LoggedRequest{Method: "GET", Path: "/acme/" + repo + ".git/info/refs", Class: policy.GitDenied})
			}
		})
		if l.version == "HTTP/1.1" {
			t.Run("a client that reads after it has written", func(t *testing.T) { writesFirst(t, &l) })
		}
		t.Run(l.version+", without git", func(t *testing.T) { forgesPushes(t, &l) })
	}
}

// A pushRow is a push, and what becomes of it.
type pushRow struct {
	says, args string
	moved      []string // refs that the server has changed
	refused    string   // the ref that git has to name with the reason
	also       string   // another ref that git has to name
	prints     string
}

func (row pushRow) run(t *testing.T, l *gitLab, dir string) {
	before := map[string]string{}
	for _, ref := range append(row.moved, row.refused, row.also) {
		before[ref] = l.at("acme/app.git", ref)
	}
	mark := l.d.LogMark(t)
	options, refspecs := "", ""
	for _, word := range strings.Fields(row.args) {
		if strings.HasPrefix(word, "-") {
			options += word + " "
		} else {
			refspecs += " " + word
		}
	}
	out, err := l.in(dir, "git push "+options+"https://git.allowed.test/acme/app.git"+refspecs)
	if (err == nil) != (row.refused == "") || !strings.Contains(out, row.prints) {
		t.Fatalf("%v, printed %q", err, out)
	}
	for ref, was := range before {
		if ref != "" && (l.at("acme/app.git", ref) != was) != slices.Contains(row.moved, ref) {
			t.Errorf("%s was %q and is %q", ref, was, l.at("acme/app.git", ref))
		}
	}
	if row.refused == "" {
		l.d.NothingRefused(t, mark)
	} else {
		for _, ref := range []string{row.refused, row.also} {
			if !printsRefusal(out, ref) {
				t.Errorf("git does not say why %s is refused: %s", ref, out)
			}
		}
	}
	if row.refused == "" && len(row.moved) == 0 {
		return
	}
	var refs []string
	r := l.pushRecord(t, mark)
	for _, line := range r.Git.Refs {
		words := strings.Fields(line)
		refs = append(refs, words[2])
		if was, known := before[words[2]]; known && words[0] != cmp.Or(was, strings.Repeat("0", 40)) || row.refused == "" && words[1] != cmp.Or(l.at("acme/app.git", words[2]), strings.Repeat("0", 40)) {
			t.Errorf("the record says %q; the server had %q and has %q", line, was, l.at("acme/app.git", words[2]))
		}
	}
	for _, ref := range append(row.moved, row.refused, row.also) {
		if ref != "" && !slices.Contains(refs, ref) {
			t.Errorf("the record has the refs %q without %s", refs, ref)
		}
	}
	why := l.d.RunCommand(t, nil, "why", r.Flow, "--config", l.d.Config)
	for _, ref := range refs {
		if !strings.Contains(why.Out, " "+ref+" ") && !strings.Contains(why.Out, " "+ref+",") || !strings.Contains(why.Out, "push, acme/app") {
			t.Errorf("egressd why does not name %s: %s", ref, why.Out)
		}
	}
	if (r.Decision.Action == "allow") != (row.refused == "") || r.Git.Repo != "acme/app" || r.Decision.Rule != "agent" || row.refused != "" && r.Decision.Class != string(policy.GitDenied) {
		t.Errorf("recorded %+v, %+v", r.Git, r.Decision)
	}
}

// printsRefusal reports whether git's output names the ref with egressd's reason.
func printsRefusal(out, ref string) bool {
	short := ref[strings.LastIndexByte(ref, '/')+1:]
	return ref == "" || slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
		return strings.Contains(line, "[remote rejected]") && strings.Contains(line, "blocked by egressd") && strings.Contains(line, short)
	})
}

// pushRecord returns the last record of a push with commands after the mark.
func (l *gitLab) pushRecord(t *testing.T, mark int) record.Record {
	t.Helper()
	var found record.Record
	if !world.Eventually(world.Settling, func() bool {
		records, _ := l.d.Log.Since(mark)
		for _, r := range records {
			if r.Kind == record.KindRequest && r.Git != nil && r.Git.Op == "push" && len(r.Git.Refs) > 0 {
				found = r
			}
		}
		return found.Git != nil
	}) {
		t.Fatal("no record of a push with commands")
	}
	return found
}

// forgesPushes sends what git does not.
func forgesPushes(t *testing.T, l *gitLab) {
	c := insider(t, l.d, l.version == "HTTP/2")
	const receive, upload = "application/x-git-receive-pack-request", "application/x-git-upload-pack-request"
	none, head := strings.Repeat("0", 40), l.at("acme/app.git", "refs/heads/main")
	create := func(ref string) string {
		return packet(none+" "+head+" "+ref+"\x00 report-status side-band-64k agent=lab") + "0000" + emptyPack
	}
	const app = "/acme/app.git/git-receive-pack"
	for i, row := range []struct {
		says, method, path, content, coding, body string
		ref                                       string // that is there afterwards
	}{
		{"as git does", "POST", app, receive, "", create("refs/heads/agent/f0"), "refs/heads/agent/f0"},
		{"compressed", "POST", app, receive, "gzip", gzipped(create("refs/heads/agent/f1")), "refs/heads/agent/f1"},
		{"another case", "POST", "/ACME/App/git-receive-pack", receive, "", "0000", ""},
		{"compressed, to main", "POST", app, receive, "gzip", gzipped(create("refs/heads/evil")), ""},
		{"compressed in two", "POST", app, receive, "gzip", gzipped(create("refs/heads/evil")[:40]) + gzipped(create("refs/heads/evil")[40:]), ""},
		{"compressed, and not said", "POST", app, receive, "", gzipped(create("refs/heads/evil")), ""},
		{"compressed by something else", "POST", app, receive, "deflate", create("refs/heads/evil"), ""},
		{"after a probe", "POST", app, receive, "", "0000" + create("refs/heads/evil"), ""},
		{"two lists of commands", "POST", app, receive, "", strings.TrimSuffix(create("refs/heads/agent/evil"), emptyPack) + create("refs/heads/evil"), ""},
		{"dot dot", "POST", app, receive, "", create("refs/heads/agent/../evil"), ""},
		{"a newline", "POST", app, receive, "", create("refs/heads/agent/x\nrefs/heads/evil"), ""},
		{"a signed one", "POST", app, receive, "", packet("push-cert\x00report-status") + create("refs/heads/evil"), ""},
		{"a short packet", "POST", app, receive, "", "0003" + create("refs/heads/evil"), ""},
		{"the type of a fetch", "POST", app, upload, "", create("refs/heads/agent/evil"), ""},
		{"no type", "POST", app, "", "", create("refs/heads/agent/evil"), ""},
		{"a type with a parameter", "POST", app, receive + "; charset=x", "", create("refs/heads/agent/evil"), ""},
		{"the path of a fetch", "POST", "/acme/app.git/git-upload-pack", receive, "", create("refs/heads/agent/evil"), ""},
		{"a query", "POST", app + "?service=git-receive-pack", receive, "", create("refs/heads/agent/evil"), ""},
		{"dots in the path", "POST", "/acme/app.git/../other.git/git-receive-pack", receive, "", create("refs/heads/agent/evil"), ""},
		{"an escaped slash", "POST", "/acme%2Fother.git/git-receive-pack", receive, "", create("refs/heads/agent/evil"), ""},
		{"two slashes", "POST", "/acme//app.git/git-receive-pack", receive, "", create("refs/heads/agent/evil"), ""},
		{"WebDAV", "PUT", "/acme/app.git/refs/heads/evil", "", "", head + "\n", ""},
		{"WebDAV's lock", "LOCK", "/acme/app.git/refs/heads/evil", "", "", "<x/>", ""},
		{"a push by GET", "GET", app, receive, "", "", ""},
		{"an archive", "POST", "/acme/app.git/git-upload-archive", "application/x-git-upload-archive-request", "", "0000", ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), row.method, "https://git.allowed.test/", strings.NewReader(row.body))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			request.ContentLength = -1 // chunked in HTTP/1.1
		}
		if i%3 == 1 {
			request.Header.Set("Expect", "100-continue")
		}
		path, query, _ := strings.Cut(row.path, "?")
		request.URL.Opaque, request.URL.RawQuery = path, query
		for name, value := range map[string]string{"Content-Type": row.content, "Content-Encoding": row.coding} {
			if value != "" {
				request.Header.Set(name, value)
			}
		}
		response, err := c.Do(request)
		if err != nil {
			t.Errorf("%s: %v", row.says, err)
			continue
		}
		answer, _ := io.ReadAll(response.Body)
		response.Body.Close()
		refused := response.Header.Get("X-Egressd-Id") != ""
		if refused != (i > 2) || refused && response.StatusCode == http.StatusOK && !bytes.Contains(answer, []byte("blocked by egressd")) {
			t.Errorf("%s: %s %q, over %s", row.says, response.Status, answer, response.Proto)
		}
		if row.ref != "" && l.at("acme/app.git", row.ref) != head {
			t.Errorf("%s: the server has no %s: %s %q", row.says, row.ref, response.Status, answer)
		}
		for _, ref := range []string{"refs/heads/evil", "refs/heads/agent/evil"} {
			if l.at("acme/app.git", ref)+l.at("acme/other.git", ref) != "" {
				t.Fatalf("%s: the server has %s", row.says, ref)
			}
		}
	}
}

// writesFirst sends a refused push of 12 MB as other programs than git do, which read nothing before all is written.
func writesFirst(t *testing.T, l *gitLab) {
	tunnel, status, err := l.d.OpenTunnel("git.allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer tunnel.Close()
	c := tls.Client(tunnel, &tls.Config{RootCAs: l.d.Trusts(t), ServerName: "git.allowed.test"})
	line := strings.Repeat("0", 40) + " " + l.at("acme/app.git", "refs/heads/main") + " refs/heads/evil\x00report-status"
	body := fmt.Sprintf("%04x%s0000PACK%s", len(line)+4, line, strings.Repeat("x", 12_000_000))
	head := fmt.Sprintf("POST /acme/app.git/git-receive-pack HTTP/1.1\r\nHost: git.allowed.test\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: %d\r\n\r\n", len(body))
	if _, err := io.WriteString(c, head+body); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.Contains(answer, []byte("ng refs/heads/evil blocked by egressd")) {
		t.Errorf("%v, %q", err, answer)
	}
}
