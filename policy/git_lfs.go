package policy

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
)

// An lfsRequest is a request of the API of Git LFS at a repository, by the paths that git-lfs takes without configuration.
type lfsRequest struct {
	repo   string
	upload bool // it changes what the server has, or is part of that
	batch  bool // its body says which objects it is about, and for which ref
}

// lfsRequestOf returns what h asks an LFS server for. Servers may keep the objects at another host. No request to that host
// is a request of LFS here.
func lfsRequestOf(h *HTTPRequest) (r lfsRequest, ok bool) {
	path, rest, found := strings.Cut(h.Path, "/info/lfs/")
	if !found {
		if path, rest, found = strings.Cut(h.Path, "/gitlab-lfs/"); !found || !strings.HasPrefix(rest, "objects/") {
			return r, false
		}
	}
	switch part, object := strings.CutPrefix(rest, "objects/"); {
	case h.Query != "":
		return r, false
	case h.Method == "POST" && rest == "objects/batch":
		r.batch = true
	case h.Method == "POST" && (rest == "locks/verify" || rest == "verify"):
		r.upload = true
	case object && lfsObject(part) && (h.Method == "GET" || h.Method == "PUT"):
		r.upload = h.Method == "PUT"
	default:
		return r, false
	}
	r.repo, ok = gitRepo(path)
	return r, ok
}

// operation is the name of a request in records.
func (r *lfsRequest) operation(h *HTTPRequest) string {
	switch {
	case r.upload:
		return "lfs-upload"
	case !r.batch:
		return "lfs-download"
	}
	if b := h.lfsBatch(); b.operation == "upload" || b.operation == "download" {
		return "lfs-" + b.operation
	}
	return "lfs"
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
	case !r.batch:
		return yes, gitRefusal{}
	case h.Unread():
		return unread, gitRefusal{what: "a batch of large files that was not read"}
	}
	switch b := h.lfsBatch(); {
	case b.problem != "":
		return no, gitRefusal{what: "this batch of large files (" + b.problem + ")"}
	case b.operation == "download":
		return yes, gitRefusal{}
	case b.operation == "upload" && (matchRef(g.Push, b.ref) || matchRef(g.Create, b.ref)):
		return yes, gitRefusal{}
	case b.operation == "upload":
		return no, gitRefusal{what: "uploads of large files for " + plainRef(b.ref), ref: b.ref}
	}
	return no, gitRefusal{what: "this operation on large files"}
}

// An lfsBatch is what a batch request says, or why it cannot be read.
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
