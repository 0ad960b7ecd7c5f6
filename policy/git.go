package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/gitwire"
)

// A GitRule is met by what git sends over its smart HTTP protocol (gitprotocol-http) to fetch from some repositories, and to
// push some refs to them. Nothing else meets it but the API of Git LFS, if it says so. All refs of one push have to be in one
// rule.
//
// The objects of a push are not read. So nothing is known of what they hold, nor whether a ref is moved forward or elsewhere.
type GitRule struct {
	// Repos are "owner/name" or, on servers with groups within groups, "group/group/name". Upper case is lower case. In a
	// part of them "*" stands for any text.
	Repos []string

	// Refs that may be pushed, as [ParseGitRef] returns them: to create or move them, to create them alone, to delete them.
	// A server creates a ref only if it has none of that name.
	Push, Create, Delete []string

	// Options are push options, in which "*" stands for any text. Others are refused.
	Options []string

	// LFS lets the API of Git LFS at the repositories: downloads, and uploads for refs that may be pushed or created. Requests
	// that move objects pass if an answer of that API has named them. Those to another host need an [LFSRule] there.
	LFS bool
}

const (
	gitRefs    = "/info/refs"
	gitUpload  = "/git-upload-pack"
	gitReceive = "/git-receive-pack"
	gitBody    = "application/x-git-upload-pack-request"
)

// ParseGitRepo returns text as it stands in [GitRule].Repos.
func ParseGitRepo(text string) (string, error) {
	parts := strings.Split(text, "/")
	switch {
	case strings.Contains(text, "://"), len(parts) < 2, len(parts) > 8:
		return "", fmt.Errorf("%q is not the name of a repository; write it like acme/app", text)
	case strings.HasSuffix(strings.ToLower(text), ".git"):
		return "", fmt.Errorf("%q ends with .git, which clients may send or leave out; write %q", text, text[:len(text)-len(".git")])
	}
	for _, part := range parts {
		if !plainGitPart(strings.ReplaceAll(part, "*", "x")) {
			return "", fmt.Errorf("%q has a part that is not made of letters, digits, dots, dashes and underscores; write it like acme/app", text)
		}
	}
	return strings.ToLower(text), nil
}

// plainGitPart reports whether every server takes text for one part of a repository's name.
func plainGitPart(text string) bool {
	if text == "" || strings.Trim(text, ".") == "" || len(text) > 100 {
		return false
	}
	for i := range len(text) {
		if !Unreserved(text[i]) || text[i] == '~' {
			return false
		}
	}
	return true
}

// ParseGitRef returns text as it stands in the lists of refs of a [GitRule]: the full name of a ref, in which "*" stands for any
// text between two slashes. Refs are compared byte for byte.
func ParseGitRef(text string) (string, error) {
	switch err := gitwire.CheckRef(strings.ReplaceAll(text, "*", "x")); {
	case !strings.HasPrefix(text, "refs/"):
		return "", fmt.Errorf("%q is not the full name of a ref; write it like refs/heads/agent/* or refs/tags/v*", text)
	case strings.Count(text, "/") < 2, strings.Contains(strings.Split(text, "/")[1], "*"):
		return "", fmt.Errorf("%q names no kind of ref; write refs/heads/, refs/tags/ or another one in full", text)
	case err != nil:
		return "", fmt.Errorf("%q is no ref: %w", text, err)
	}
	return text, nil
}

// pushes reports whether there is anything that may be pushed.
func (g *GitRule) pushes() bool { return len(g.Push)+len(g.Create)+len(g.Delete) > 0 }

// requirement is met by the requests of a fetch, and by those of a push that the rule lets.
func (g *GitRule) requirement() *requirement {
	needs := NeedsMethod | NeedsPath | NeedsQuery | NeedsHeaders
	if g.pushes() || g.LFS {
		needs |= NeedsBodyStart
	}
	return &requirement{
		words: g.words(), needs: needs,
		match: func(h *HTTPRequest) fit { f, _ := g.judge(h); return f },
		near: func(h *HTTPRequest) bool {
			asked := h.Git()
			return asked != nil && g.names(asked.Repo)
		},
		says: func(h *HTTPRequest) gitRefusal { _, refused := g.judge(h); return refused },
	}
}

// words stand for the whole rule: two rules with the same words are one.
func (g *GitRule) words() string {
	words := "git fetches " + strings.Join(g.Repos, " or ")
	for _, part := range []struct {
		verb string
		of   []string
	}{{"pushes", g.Push}, {"creates", g.Create}, {"deletes", g.Delete}, {"sends push option", g.Options}} {
		if len(part.of) > 0 {
			words += ", " + part.verb + " " + strings.Join(part.of, " or ")
		}
	}
	if g.LFS {
		words += ", with large files"
	}
	return words
}

// A gitRefusal says what of a request a git rule does not let.
type gitRefusal struct {
	what string // "a push of refs/heads/main"
	ref  string // of a push: the first that is not let; or ""
}

// judge compares a request with the rule.
func (g *GitRule) judge(h *HTTPRequest) (fit, gitRefusal) {
	if large, ok := lfsRequestOf(h); ok {
		return g.judgeLFS(h, large)
	}
	r, ok := gitRequestOf(h)
	switch {
	case !ok:
		return no, gitRefusal{what: "this request"}
	case !g.names(r.repo) && r.push:
		return no, gitRefusal{what: "a push to this repository"}
	case !g.names(r.repo):
		return no, gitRefusal{what: "a fetch from this repository"}
	case !r.push:
		return yes, gitRefusal{}
	case !g.pushes():
		return no, gitRefusal{what: "a push"}
	case r.discovery:
		return yes, gitRefusal{}
	}
	p, err := h.push()
	switch {
	case errors.Is(err, gitwire.ErrShort):
		return unread, gitRefusal{what: "a push whose commands were not read"}
	case err != nil:
		return no, gitRefusal{what: "this push (" + err.Error() + ")"}
	}
	return g.judgePush(p)
}

// judgePush compares each command of a push with the rule.
func (g *GitRule) judgePush(p *gitwire.Push) (fit, gitRefusal) {
	for _, c := range p.Commands {
		if verb := g.refusedVerb(c); verb != "" {
			return no, gitRefusal{what: verb + " " + plainRef(c.Ref), ref: c.Ref}
		}
	}
	for _, option := range p.Options {
		if !slices.ContainsFunc(g.Options, func(pattern string) bool { return matchSegment(pattern, option) }) {
			return no, gitRefusal{what: "a push option of this push"}
		}
	}
	return yes, gitRefusal{}
}

// refusedVerb says what a command does that the rule does not let, or "".
func (g *GitRule) refusedVerb(c gitwire.Command) string {
	switch {
	case c.Deletes() && matchRef(g.Delete, c.Ref), !c.Deletes() && matchRef(g.Push, c.Ref), c.Creates() && matchRef(g.Create, c.Ref):
		return ""
	case c.Deletes():
		return "deleting"
	case c.Creates():
		return "creating"
	case matchRef(g.Create, c.Ref):
		return "moving"
	}
	return "a push of"
}

// plainRef is a ref as a reason may name it: without text that a sandbox has chosen freely.
func plainRef(ref string) string {
	if len(ref) > 100 || strings.ContainsFunc(ref, func(c rune) bool { return c > 0x7f || c != '/' && !Unreserved(byte(c)) }) {
		return "a ref"
	}
	return ref
}

func matchRef(patterns []string, ref string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchParts(pattern, ref) })
}

func (g *GitRule) names(repo string) bool { return matchesRepo(g.Repos, repo) }

func matchesRepo(patterns []string, repo string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchRepo(pattern, repo) })
}

// A gitRequest is a request of git's smart HTTP protocol.
type gitRequest struct {
	repo      string // in lower case and without ".git"
	push      bool
	discovery bool // it asks for the refs of the repository
}

// gitRequestOf returns what h asks git's server for. A request that servers may read in two ways is none.
func gitRequestOf(h *HTTPRequest) (r gitRequest, ok bool) {
	path := h.Path
	switch h.Method {
	case "GET":
		if path, ok = strings.CutSuffix(path, gitRefs); !ok {
			return r, false
		}
		parameters, err := parseQuery(h.Query)
		service := parameters["service"]
		r.discovery, r.push = true, slices.Equal(service, []string{"git-receive-pack"})
		ok = err == nil && len(parameters) == 1 && (r.push || slices.Equal(service, []string{"git-upload-pack"}))
	case "POST":
		body := gitBody
		if path, ok = strings.CutSuffix(path, gitUpload); !ok {
			path, ok = strings.CutSuffix(path, gitReceive)
			body, r.push = gitwire.PushType, true
		}
		ok = ok && h.Query == "" && slices.Equal(h.Header["content-type"], []string{body})
	}
	if ok {
		r.repo, ok = gitRepo(path)
	}
	return r, ok
}

// gitRepo returns the repository of a path, in lower case and without ".git".
func gitRepo(path string) (repo string, ok bool) {
	repo, rooted := strings.CutPrefix(strings.ToLower(path), "/")
	repo = strings.TrimSuffix(repo, ".git")
	if !rooted || strings.HasSuffix(repo, ".git") { // servers differ in how often they strip it
		return "", false
	}
	for part := range strings.SplitSeq(repo, "/") {
		if !plainGitPart(part) {
			return "", false
		}
	}
	return repo, true
}

// push reads the commands of a push from what was read of the body.
func (h *HTTPRequest) push() (*gitwire.Push, error) {
	coding, body := h.Header["content-encoding"], h.Body
	if body == nil {
		body = &Body{Ended: h.BodySize == 0}
	}
	switch {
	case len(coding) == 0:
		return gitwire.ParsePush(body.Bytes, body.Ended, false)
	case len(coding) == 1 && (coding[0] == "gzip" || coding[0] == "x-gzip"):
		return gitwire.ParsePush(body.Bytes, body.Ended, true)
	}
	return nil, errors.New("its body is compressed by something else than gzip")
}

// A GitOperation is what a request asks of a git server.
type GitOperation struct {
	Repo string        // in lower case and without ".git"
	Name string        // "fetch", "push", "lfs-download", "lfs-upload", or "lfs" for a batch that was not read
	Push *gitwire.Push // the commands, once they were read; else nil

	Batch bool // it asks an LFS server where objects lie
}

// Git returns what the request asks of a git server, or nil. A request for the refs counts as the operation that it begins.
func (h *HTTPRequest) Git() *GitOperation {
	if large, ok := lfsRequestOf(h); ok {
		return &GitOperation{Repo: large.repo, Name: large.says, Batch: large.batch}
	}
	r, ok := gitRequestOf(h)
	switch {
	case !ok:
		return nil
	case !r.push:
		return &GitOperation{Repo: r.repo, Name: "fetch"}
	}
	operation := &GitOperation{Repo: r.repo, Name: "push"}
	if !r.discovery {
		operation.Push, _ = h.push() // one that cannot be read has no commands
	}
	return operation
}

// matchRepo compares part by part. A wiki is a repository of its own, and so are the designs of GitLab. A star stands for neither.
func matchRepo(pattern, repo string) bool {
	return matchParts(pattern, repo) && !slices.ContainsFunc([]string{".wiki", ".design"}, func(end string) bool {
		return strings.HasSuffix(repo, end) && !strings.HasSuffix(pattern, end)
	})
}

// matchParts compares texts between slashes.
func matchParts(pattern, text string) bool {
	patterns, parts := strings.Split(pattern, "/"), strings.Split(text, "/")
	if len(patterns) != len(parts) {
		return false
	}
	for i := range parts {
		if !matchSegment(patterns[i], parts[i]) {
			return false
		}
	}
	return true
}
