package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
)

// An LFSAction is a request that the answer to a batch of Git LFS has told a sandbox to send: to move one object, or to say that
// it was moved. Where it stands beside a request, the request has the method and the URL of the answer.
type LFSAction struct {
	Server string // that answered, as [Destination.String] writes it
	Own    bool   // the request goes to that server, too
	Repo   string // of the batch, in lower case and without ".git"
	Name   string // "upload", "verify" or "download"
	Size   int64  // of the object
}

// maxVerify is how many bytes a request of the action verify may have: an object ID and a size in JSON.
const maxVerify = 1024

// MaxBytesUp is how many bytes the body of the request may have.
func (a *LFSAction) MaxBytesUp() int64 {
	switch a.Name {
	case "upload":
		return a.Size
	case "verify":
		return maxVerify
	}
	return 0
}

// differs names the part of a request that the answer to the batch had otherwise, or returns "". egressd cuts a body of unknown
// length after the bytes that it may have.
func (a *LFSAction) differs(h *HTTPRequest) string {
	switch {
	case h.overridesMethod() || h.Upgrade:
		return "a request of large files with another method or protocol"
	case h.BodySize > a.MaxBytesUp(), a.Name == "upload" && h.BodySize >= 0 && h.BodySize < a.Size:
		return "an upload of another size than that of the object"
	}
	return ""
}

// An LFSRule is met by the requests that answers of one server's Git LFS have told the same sandbox to send, for some of its
// repositories, and by nothing else: many servers keep the objects at another host.
type LFSRule struct {
	Server string   // as [Destination.String] writes it
	Repos  []string // as in [GitRule]
}

// ParseLFSServer returns text as it stands in [LFSRule].Server: a host, with its port if that is not 443.
func ParseLFSServer(text string) (string, error) {
	d, err := ParseDestination(text)
	if err != nil {
		d, err = ParseDestination(text + ":443")
	}
	if err != nil {
		return "", fmt.Errorf("%q is not the host of a git server; write it like github.com", text)
	}
	return d.String(), nil
}

func (l *LFSRule) requirement() *requirement {
	says := func(h *HTTPRequest) (fit, gitRefusal) {
		a := h.LFS
		switch {
		case a == nil || a.Server != l.Server:
			return no, gitRefusal{what: "a request that no answer of " + l.Server + " about large files names"}
		case !matchesRepo(l.Repos, a.Repo):
			return no, gitRefusal{what: "large files of this repository"}
		case a.differs(h) != "":
			return no, gitRefusal{what: a.differs(h)}
		}
		return yes, gitRefusal{}
	}
	return &requirement{
		words: "large files of " + strings.Join(l.Repos, " or ") + ", as " + l.Server + " names them",
		needs: NeedsMethod | NeedsPath | NeedsQuery | NeedsHeaders,
		match: func(h *HTTPRequest) fit { f, _ := says(h); return f },
		near: func(h *HTTPRequest) bool {
			return h.LFS != nil && h.LFS.Server == l.Server && matchesRepo(l.Repos, h.LFS.Repo)
		},
		says: func(h *HTTPRequest) gitRefusal { _, refused := says(h); return refused },
	}
}

// An lfsRequest is a request of the API of Git LFS at a repository, by the paths that git-lfs takes without configuration, or
// one that an answer of that API names.
type lfsRequest struct {
	repo   string
	upload bool   // it changes what the server has, or is part of that
	batch  bool   // it asks where the objects lie
	lock   bool   // it makes or removes a lock
	object bool   // it moves an object, or says that one was moved
	says   string // the operation, for records
}

// lfsRequestOf returns what h asks an LFS server for. A host that keeps the objects is an LFS server only
// for the requests that an answer has named.
func lfsRequestOf(h *HTTPRequest) (r lfsRequest, ok bool) {
	if a := h.LFS; a != nil {
		return lfsRequest{repo: a.Repo, upload: a.Name != "download", object: true, says: map[bool]string{true: "lfs-download", false: "lfs-upload"}[a.Name == "download"]}, true
	}
	path, rest, found := strings.Cut(h.Path, "/info/lfs/")
	if !found {
		if path, rest, found = strings.Cut(h.Path, "/gitlab-lfs/"); !found || !strings.HasPrefix(rest, "objects/") {
			return r, false
		}
	}
	part, object := strings.CutPrefix(rest, "objects/")
	switch {
	case rest == "locks" && h.Method == "GET":
		r.says = "lfs-download"
	case h.Query != "":
		return r, false
	case h.Method == "POST" && rest == "objects/batch":
		r.batch, r.says = true, "lfs"
	case h.Method == "POST" && rest == "locks/verify":
		r.upload, r.says = true, "lfs-upload"
	case h.Method == "POST" && (rest == "locks" || isUnlock(rest)):
		r.upload, r.lock, r.says = true, true, "lfs-upload"
	case h.Method == "POST" && rest == "verify", object && lfsObject(part) && h.Method == "PUT":
		r.object, r.upload, r.says = true, true, "lfs-upload"
	case object && lfsObject(part) && h.Method == "GET":
		r.object, r.says = true, "lfs-download"
	default:
		return r, false
	}
	r.repo, ok = gitRepo(path)
	if r.batch && ok {
		if b := h.lfsBatch(); b.operation == "upload" || b.operation == "download" {
			r.says += "-" + b.operation
		}
	}
	return r, ok
}

// isUnlock reports whether the rest of a path is that of a request that removes a lock.
func isUnlock(rest string) bool {
	id, ok := strings.CutSuffix(rest, "/unlock")
	id, lock := strings.CutPrefix(id, "locks/")
	return ok && lock && plainGitPart(id)
}

// lfsObject reports whether text is an object ID of LFS, with its size behind it on some servers.
func lfsObject(text string) bool {
	id, size, sized := strings.Cut(text, "/")
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" && (!sized || size != "" && len(size) < 16 && strings.Trim(size, "0123456789") == "")
}

// judgeLFS compares a request of LFS with the rule.
func (g *GitRule) judgeLFS(h *HTTPRequest, r lfsRequest) (fit, gitRefusal) {
	switch {
	case !g.names(r.repo):
		return no, gitRefusal{what: "large files of this repository"}
	case !g.LFS:
		return no, gitRefusal{what: "large files (LFS)"}
	case r.upload && len(g.Push)+len(g.Create) == 0:
		return no, gitRefusal{what: "uploads of large files"}
	case r.object && (h.LFS == nil || !h.LFS.Own):
		return no, gitRefusal{what: "a request that no answer of this server about large files names"}
	case r.object && h.LFS.differs(h) != "":
		return no, gitRefusal{what: h.LFS.differs(h)}
	case !r.batch && !r.lock:
		return yes, gitRefusal{}
	case h.Unread():
		return unread, gitRefusal{what: "a request of large files that was not read"}
	}
	switch b := h.lfsBatch(); {
	case b.problem != "":
		return no, gitRefusal{what: "this request of large files (" + b.problem + ")"}
	case r.batch && b.operation == "download":
		return yes, gitRefusal{}
	case r.batch && b.operation != "upload":
		return no, gitRefusal{what: "this operation on large files"}
	case matchRef(g.Push, b.ref) || matchRef(g.Create, b.ref):
		return yes, gitRefusal{}
	case r.lock:
		return no, gitRefusal{what: "locks of large files for " + plainRef(b.ref), ref: b.ref}
	default:
		return no, gitRefusal{what: "uploads of large files for " + plainRef(b.ref), ref: b.ref}
	}
}

// An lfsBatch holds what the body of a batch or of a lock request says. If nobody can read the body, it holds the reason.
type lfsBatch struct{ operation, ref, problem string }

func (h *HTTPRequest) lfsBatch() (b lfsBatch) {
	content, problem := h.JSONContent()
	if problem != "" {
		return lfsBatch{problem: problem}
	}
	watched := [][]string{{"operation"}, {"ref"}, {"ref", "name"}}
	err := strictjson.Walk(content, func(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
		for _, path := range watched {
			if len(at) != len(path) || !leadsTo(at[:len(at)-1], path) {
				continue
			}
			switch last, name := at[len(at)-1], path[len(path)-1]; {
			case last.Index >= 0 || !strictjson.Alike(last.Name, name):
			case last.Name != name:
				b.problem = "it has a name that servers may take for " + strings.Join(path, ".")
			case kind == '"' && len(path) == 2:
				b.ref = strictjson.Text(raw)
			case kind == '"' && name == "operation":
				b.operation = strictjson.Text(raw)
			}
		}
	})
	if err != nil {
		return lfsBatch{problem: err.Error()}
	}
	return b
}

// leadsTo reports whether steps are the first names of a path.
func leadsTo(steps []strictjson.PathStep, path []string) bool {
	return !slices.ContainsFunc(steps, func(s strictjson.PathStep) bool { return s.Index >= 0 }) &&
		slices.EqualFunc(steps, path[:len(steps)], func(s strictjson.PathStep, name string) bool { return s.Name == name })
}
