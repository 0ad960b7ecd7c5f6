package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const (
	largeToken  = "glpat-REALsecretREALsecret"
	largePolicy = `version: 1
allow:
  - {host: git.allowed.test, id: agent, git: {repos: [acme/app], push: ["refs/heads/agent/*"], lfs: true}}
  - {host: git.allowed.test, id: read, git: {repos: [acme/read], lfs: true}}
  - {host: store.allowed.test, id: store, lfs: {server: git.allowed.test, repos: [acme/app, acme/read]}}
credentials:
  - {for: gitlab, hosts: [git.allowed.test], from: {file: real.token}}
  - {for: aws, hosts: [store.allowed.test], from: {file: key.json}, regions: [eu-west-1], services: [s3], buckets: [acme-build]}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`
)

// An lfsServer keeps the large files of all repositories (git-lfs, docs/api). It would take every upload.
type lfsServer struct {
	git http.Handler
	tb  testing.TB

	mu      sync.Mutex // guards what follows
	objects map[string][]byte
	batches int
	asked   []string // methods, hosts and what stands behind /info/lfs/
	store   string   // the host that keeps the objects
	expires int      // seconds
}

func (s *lfsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	repo, rest, large := strings.Cut(r.URL.Path, "/info/lfs/")
	if _, token, _ := r.BasicAuth(); token != largeToken && r.Host == "git.allowed.test" {
		w.Header().Set("WWW-Authenticate", "Basic realm=git")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if !large {
		s.git.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.Host+" "+rest)
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	body, _ := io.ReadAll(r.Body)
	oid := strings.TrimPrefix(rest, "objects/")
	switch {
	case rest == "objects/batch":
		s.batches++
		s.batch(w, r, repo, body)
	case rest == "locks/verify":
		io.WriteString(w, `{"ours":[],"theirs":[]}`)
	case rest == "locks" && r.Method == "POST":
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"lock":{"id":"17","path":"a.bin","locked_at":"2026-11-29T00:00:00Z","owner":{"name":"lab"}}}`)
	case rest == "locks":
		io.WriteString(w, `{"locks":[{"id":"17","path":"a.bin","locked_at":"2026-11-29T00:00:00Z","owner":{"name":"lab"}}]}`)
	case rest == "locks/17/unlock":
		io.WriteString(w, `{"lock":{"id":"17","path":"a.bin","locked_at":"2026-11-29T00:00:00Z"}}`)
	case rest == "verify":
		if got := r.Header.Get("Authorization"); r.Host != "git.allowed.test" && got != "RemoteAuth of-the-server" {
			s.tb.Errorf("a report of an upload has the authorization %q", got)
		}
	case r.Host == "store.allowed.test" && r.Header.Get("Authorization") != "":
		s.tb.Errorf("the store was sent %q", r.Header.Get("Authorization"))
	case r.Method == "PUT":
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) == oid {
			s.objects[oid] = body
		}
	case r.Method == "GET":
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Write(s.objects[oid])
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// batch answers as GitLab and Gitea do where the store is the server itself: they tell the client to send the field
// Authorization that came with the batch. With another store, it answers as GitHub does.
func (s *lfsServer) batch(w io.Writer, r *http.Request, repo string, body []byte) {
	type action struct {
		Href    string            `json:"href"`
		Header  map[string]string `json:"header,omitempty"`
		Expires int               `json:"expires_in,omitempty"`
	}
	type object struct {
		OID     string            `json:"oid"`
		Size    int64             `json:"size"`
		Actions map[string]action `json:"actions,omitempty"`
	}
	var batch struct {
		Operation string   `json:"operation,omitempty"`
		Transfer  string   `json:"transfer"`
		Objects   []object `json:"objects"`
	}
	if json.Unmarshal(body, &batch) != nil {
		return
	}
	for i := range batch.Objects {
		o := &batch.Objects[i]
		if _, have := s.objects[o.OID]; have && batch.Operation != "download" {
			continue
		}
		moves := action{Href: "https://" + s.store + repo + "/info/lfs/objects/" + o.OID, Expires: s.expires}
		report := action{Href: "https://" + s.store + repo + "/info/lfs/verify", Header: map[string]string{"Authorization": "RemoteAuth of-the-server"}}
		if s.store == r.Host {
			moves.Header = map[string]string{"Authorization": r.Header.Get("Authorization"), "Transfer-Encoding": "chunked"}
			report.Header = map[string]string{"Authorization": r.Header.Get("Authorization")}
		} else {
			moves.Href += "?X-Amz-Expires=60&X-Amz-Signature=%2Fx"
		}
		o.Actions = map[string]action{batch.Operation: moves}
		if batch.Operation == "upload" {
			o.Actions["verify"] = report
		}
	}
	batch.Operation, batch.Transfer = "", "basic"
	json.NewEncoder(w).Encode(batch)
}

func (s *lfsServer) stored() (objects, batches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects), s.batches
}

// took returns what was asked for since the last call.
func (s *lfsServer) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

// keepAt has the objects lie at a host, and forgets those that are there.
func (s *lfsServer) keepAt(host string, expires int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.expires, s.objects, s.batches, s.asked = host, expires, map[string][]byte{}, 0, nil
}

// TestLargeFilesOfARepository runs git-lfs with objects at the server itself, at another host, and at one that no rule names.
func TestLargeFilesOfARepository(t *testing.T) {
	d := world.NewDaemon(t, largePolicy)
	d.PutFile(t, "real.token", largeToken+"\n")
	d.PutFile(t, "key.json", `{"Version": 1, "AccessKeyId": "AKIAREALREALREALREAL", "SecretAccessKey": "REALsecretREALsecretREALsecret"}`) // whose host is the store
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	dir := t.TempDir()
	l := gitLab{d: d, ca: d.AuthorityFile(), served: filepath.Join(dir, "served"), version: "HTTP/1.1"}
	if err := os.MkdirAll(filepath.Join(l.served, "acme"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "other", "read"} {
		world.MakeRepository(t, filepath.Join(l.served, "acme", name+".git"))
	}
	d.World.Origin.ServeRepositories(t, "git.allowed.test", l.served)
	site, _ := d.World.Origin.Sites.Load("git.allowed.test")
	s := &lfsServer{git: world.Whole(site.(http.Handler)), tb: t}
	for _, host := range []string{"git.allowed.test", "store.allowed.test", "foreign.allowed.test"} {
		d.World.Origin.Sites.Store(host, s)
		t.Cleanup(func() { d.World.Origin.Sites.Delete(host) })
	}
	if out, err := l.in(dir, "git clone -q https://git.allowed.test/acme/app.git app && cd app && git lfs install --local && git config lfs.locksverify true && git lfs track '*.bin' && head -c 300000 /dev/urandom >a.bin && git add . && git commit -q -m large"); err != nil {
		t.Fatal(err, out)
	}
	app := filepath.Join(dir, "app")
	const another = "head -c 300000 /dev/urandom >a.bin && git commit -q -a -m another" // which the server does not have
	for i, store := range []string{"git.allowed.test", "store.allowed.test"} {
		for _, l.version = range []string{"HTTP/1.1", "HTTP/2"} {
			branch := fmt.Sprintf("agent/x%d%s", i, l.version[5:6])
			t.Run(store+", "+l.version, func(t *testing.T) {
				s.keepAt(store, 60)
				if out, err := l.in(app, another); err != nil {
					t.Fatal(err, out)
				}
				mark := d.LogMark(t)
				out, err := l.in(app, "git push origin HEAD:main")
				if objects, batches := s.stored(); err == nil || !strings.Contains(out, "uploads of large files for refs/heads/main") || objects+batches > 0 {
					t.Errorf("to main: %v, %d objects after %d batches, printed %s", err, objects, batches, out)
				}
				largeRecord(t, d, mark, "lfs-upload", "deny")
				mark = d.LogMark(t)
				out, err = l.in(app, "git push origin HEAD:"+branch)
				asked := s.took()
				if objects, _ := s.stored(); err != nil || objects == 0 || l.at("acme/app.git", "refs/heads/"+branch) == "" || !slices.Contains(asked, "POST "+store+" verify") || !slices.Contains(asked, "POST git.allowed.test locks/verify") {
					t.Errorf("to an allowed branch: %v, %d objects, asked for %q, printed %s", err, objects, asked, out)
				}
				largeRecord(t, d, mark, "lfs-upload", "allow")
				mark = d.LogMark(t)
				out, err = l.in(dir, "rm -rf again; git -c filter.lfs.process='git-lfs filter-process' -c filter.lfs.smudge='git-lfs smudge -- %f' -c filter.lfs.required=true clone -q -b "+branch+" https://git.allowed.test/acme/app.git again && cmp app/a.bin again/a.bin")
				if err != nil {
					t.Errorf("a clone: %v, printed %s", err, out)
				}
				largeRecord(t, d, mark, "lfs-download", "allow")
				out, err = l.in(app, "git checkout -q -B "+branch+" && git branch -q --set-upstream-to origin/"+branch+" && git lfs lock a.bin && git lfs locks && git lfs unlock a.bin; s=$?; git checkout -q main; exit $s")
				if err != nil || strings.Contains(out, "rror") {
					t.Errorf("locks: %v, printed %s", err, out)
				}
				out, err = l.in(app, "git lfs lock a.bin")
				if err == nil || !strings.Contains(out, "locks of large files for refs/heads/main") {
					t.Errorf("a lock of main: %v, printed %s", err, out)
				}
			})
		}
	}
	t.Run("another repository", func(t *testing.T) {
		s.keepAt("store.allowed.test", 60)
		for repo, says := range map[string]string{"other": "large files of this repository", "read": "uploads of large files"} {
			out, err := l.in(app, "git -c lfs.url=https://git.allowed.test/acme/"+repo+".git/info/lfs lfs push origin --object-id $(git lfs ls-files -l | cut -d' ' -f1)")
			if objects, batches := s.stored(); err == nil || objects+batches > 0 || !strings.Contains(out, says) {
				t.Errorf("%s: %v, %d objects after %d batches, printed %s", repo, err, objects, batches, out)
			}
		}
	})
	t.Run("a store that no rule names", func(t *testing.T) {
		s.keepAt("foreign.allowed.test", 60)
		out, err := l.in(app, another+"; git -c lfs.transfer.maxretries=1 push origin HEAD:agent/foreign")
		if objects, _ := s.stored(); err == nil || objects > 0 || l.at("acme/app.git", "refs/heads/agent/foreign") != "" {
			t.Errorf("%v, %d objects, printed %s", err, objects, out)
		}
	})
	t.Run("without git-lfs", func(t *testing.T) { forgesLarge(t, d, s) })
}

// forgesLarge asks for an upload as git-lfs does, and sends something else than the answer says.
func forgesLarge(t *testing.T, d *world.Daemon, s *lfsServer) {
	const oid = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of "test"
	c := insider(t, d, false)
	ask := func(method, url, body string, fields ...string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/vnd.git-lfs+json")
		for i := 0; i+1 < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		if len(fields)%2 == 1 {
			r.ContentLength = -1
		}
		a, err := c.Do(r)
		if err != nil {
			return 0
		}
		io.Copy(io.Discard, a.Body)
		a.Body.Close()
		return a.StatusCode
	}
	batch := func(repo, operation string) {
		t.Helper()
		if status := ask("POST", "https://git.allowed.test/acme/"+repo+".git/info/lfs/objects/batch", `{"operation":"`+operation+`","ref":{"name":"refs/heads/agent/x"},"transfers":["basic"],"objects":[{"oid":"`+oid+`","size":4}]}`); status != http.StatusOK {
			t.Fatalf("a batch is answered %d", status)
		}
	}
	const href = "https://store.allowed.test/acme/app.git/info/lfs/objects/" + oid + "?X-Amz-Expires=60&X-Amz-Signature=%2Fx"
	s.keepAt("store.allowed.test", 60)
	if status := ask("PUT", href, "test"); status != http.StatusForbidden {
		t.Errorf("before the batch: %d", status)
	}
	batch("app", "upload")
	s.took()
	for says, row := range map[string]struct{ method, url, body string }{
		"another query":      {"PUT", strings.Replace(href, "=60", "=61", 1), "test"},
		"an escape undone":   {"PUT", strings.Replace(href, "%2F", "/", 1), "test"},
		"no query":           {"PUT", strings.Split(href, "?")[0], "test"},
		"a longer query":     {"PUT", href + "&x=secret", "test"},
		"another path":       {"PUT", strings.Replace(href, "9f86", "9f87", 1), "test"},
		"another size":       {"PUT", href, "tests"},
		"another method":     {"POST", href, "test"},
		"reading it":         {"GET", href, ""},
		"another host":       {"PUT", strings.Replace(href, "store.", "git.", 1), "test"},
		"a host of nobody":   {"PUT", strings.Replace(href, "store.", "foreign.", 1), "test"},
		"another port":       {"PUT", strings.Replace(href, ".test/", ".test:8443/", 1), "test"},
		"more than a report": {"POST", "https://store.allowed.test/acme/app.git/info/lfs/verify", strings.Repeat("x", 1025)},
	} {
		if status := ask(row.method, row.url, row.body); status != http.StatusForbidden && status != 0 {
			t.Errorf("%s: %d", says, status)
		}
	}
	if status := ask("PUT", href, "tests and more", "chunked"); status == http.StatusOK {
		t.Errorf("in chunks, and longer: %d", status)
	}
	if asked := s.took(); len(asked) > 1 { // the last may have begun
		t.Errorf("the server was asked for %q", asked)
	}
	if status := ask("PUT", href, "test"); status != http.StatusOK {
		t.Errorf("as it was handed out: %d", status)
	}
	if objects, _ := s.stored(); objects != 1 {
		t.Errorf("%d objects are there", objects)
	}
	s.keepAt("store.allowed.test", 1)
	batch("app", "upload")
	if !world.Eventually(world.Settling, func() bool { return ask("PUT", href, "test") == http.StatusForbidden }) {
		t.Error("the URL holds although it has ended")
	}
	s.keepAt("store.allowed.test", 60)
	batch("app", "upload")
	d.Edit(t, largePolicy+"deny: [other.allowed.test]\n")
	if !world.Eventually(world.Settling, func() bool { return ask("PUT", href, "test") == http.StatusForbidden }) {
		t.Error("the URL holds under another policy")
	}
}

// largeRecord finds the record of a batch after the mark.
func largeRecord(t *testing.T, d *world.Daemon, mark int, operation, action string) {
	t.Helper()
	if !world.Eventually(world.Settling, func() bool {
		records, _ := d.Log.Since(mark)
		for _, r := range records {
			if r.Kind == record.KindRequest && strings.HasSuffix(r.HTTP.Path, "/objects/batch") && r.Git != nil && r.Git.Op == operation && r.Git.Repo == "acme/app" && r.Decision.Action == action {
				return true
			}
		}
		return false
	}) {
		t.Errorf("no record of %s, %s", operation, action)
	}
}
