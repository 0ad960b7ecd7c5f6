package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const largePolicy = `version: 1
allow: [{host: git.allowed.test, id: agent, git: {repos: [acme/app], push: ["refs/heads/agent/*"], lfs: true}}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// An lfsServer keeps the large files of all repositories (git-lfs, docs/api). It would take every upload.
type lfsServer struct {
	git http.Handler

	mu      sync.Mutex // guards what follows
	objects map[string][]byte
	batches int
}

func (s *lfsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	repo, rest, large := strings.Cut(r.URL.Path, "/info/lfs/")
	if !large {
		s.git.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	body, _ := io.ReadAll(r.Body)
	oid := strings.TrimPrefix(rest, "objects/")
	switch {
	case rest == "objects/batch":
		s.batches++
		s.batch(w, "https://"+r.Host+repo+"/info/lfs/objects/", body)
	case rest == "locks/verify":
		io.WriteString(w, `{"ours":[],"theirs":[]}`)
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

func (s *lfsServer) batch(w io.Writer, at string, body []byte) {
	type object struct {
		OID     string                       `json:"oid"`
		Size    int64                        `json:"size"`
		Actions map[string]map[string]string `json:"actions,omitempty"`
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
		if _, have := s.objects[o.OID]; !have || batch.Operation == "download" {
			o.Actions = map[string]map[string]string{batch.Operation: {"href": at + o.OID}}
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

// TestLargeFilesOfARepository runs git-lfs.
func TestLargeFilesOfARepository(t *testing.T) {
	d := world.Start(t, largePolicy)
	dir := t.TempDir()
	l := gitLab{d: d, ca: d.AuthorityFile(), served: filepath.Join(dir, "served"), version: "HTTP/1.1"}
	if err := os.MkdirAll(filepath.Join(l.served, "acme"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "other"} {
		world.MakeRepository(t, filepath.Join(l.served, "acme", name+".git"))
	}
	serveRepositories(t, d.World.Origin, "git.allowed.test", l.served)
	site, _ := d.World.Origin.Sites.Load("git.allowed.test")
	s := &lfsServer{git: whole(site.(http.Handler)), objects: map[string][]byte{}}
	d.World.Origin.Sites.Store("git.allowed.test", s)
	if out, err := l.in(dir, "git clone -q https://git.allowed.test/acme/app.git app && cd app && git lfs install --local && git lfs track '*.bin' && head -c 300000 /dev/urandom >a.bin && git add . && git commit -q -m large"); err != nil {
		t.Fatal(err, out)
	}
	mark := d.LogMark(t)
	out, err := l.in(filepath.Join(dir, "app"), "git push origin HEAD:main")
	if objects, batches := s.stored(); err == nil || !strings.Contains(out, "uploads of large files for refs/heads/main") || objects+batches > 0 {
		t.Errorf("to main: %v, %d objects after %d batches, printed %s", err, objects, batches, out)
	}
	largeRecord(t, d, mark, "lfs-upload", "deny")
	mark = d.LogMark(t)
	out, err = l.in(filepath.Join(dir, "app"), "git push origin HEAD:agent/x")
	if objects, _ := s.stored(); err != nil || objects != 1 || l.at("acme/app.git", "refs/heads/agent/x") == "" {
		t.Errorf("to an allowed branch: %v, %d objects, printed %s", err, objects, out)
	}
	largeRecord(t, d, mark, "lfs-upload", "allow")
	mark = d.LogMark(t)
	out, err = l.in(dir, "git -c filter.lfs.process='git-lfs filter-process' -c filter.lfs.smudge='git-lfs smudge -- %f' -c filter.lfs.required=true clone -q -b agent/x https://git.allowed.test/acme/app.git again && cmp app/a.bin again/a.bin")
	if err != nil {
		t.Errorf("a clone: %v, printed %s", err, out)
	}
	largeRecord(t, d, mark, "lfs-download", "allow")
	_, before := s.stored()
	out, err = l.in(filepath.Join(dir, "app"), "git -c lfs.url=https://git.allowed.test/acme/other.git/info/lfs lfs push origin --object-id $(git lfs ls-files -l | cut -d' ' -f1)")
	if _, after := s.stored(); err == nil || after != before {
		t.Errorf("to another repository: %v, %d batches more, printed %s", err, after-before, out)
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
