package policy

import (
	"fmt"
	"slices"
	"strings"
)

// A GitRule is met by what git sends to fetch from some repositories over its smart HTTP protocol (gitprotocol-http), and by
// nothing else: no push, no file of a repository, no large file (LFS).
type GitRule struct {
	// Repos are "owner/name" or, on servers with groups within groups, "group/group/name". Upper case is lower case. In a
	// part of them "*" stands for any text.
	Repos []string
}

const (
	gitRefs   = "/info/refs"
	gitUpload = "/git-upload-pack"
	gitBody   = "application/x-git-upload-pack-request"
)

// ParseGitRepo returns text as it stands in [GitRule.Repos].
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

// requirement is met by the two requests of a fetch.
func (g *GitRule) requirement() *requirement {
	return &requirement{words: "git fetches " + strings.Join(g.Repos, " or "), needs: NeedsMethod | NeedsPath | NeedsQuery | NeedsHeaders, match: func(h *HTTPRequest) fit {
		repo, ok := fetchedRepo(h)
		if ok && slices.ContainsFunc(g.Repos, func(pattern string) bool { return matchRepo(pattern, repo) }) {
			return yes
		}
		return no
	}}
}

// fetchedRepo returns the repository that h fetches from, in lower case and without ".git".
func fetchedRepo(h *HTTPRequest) (repo string, ok bool) {
	path := h.Path
	switch h.Method {
	case "GET":
		path, ok = strings.CutSuffix(path, gitRefs)
		parameters, err := parseQuery(h.Query)
		ok = ok && err == nil && len(parameters) == 1 && slices.Equal(parameters["service"], []string{"git-upload-pack"})
	case "POST":
		path, ok = strings.CutSuffix(path, gitUpload)
		ok = ok && h.Query == "" && slices.Equal(h.Header["content-type"], []string{gitBody})
	}
	repo, rooted := strings.CutPrefix(strings.ToLower(path), "/")
	repo = strings.TrimSuffix(repo, ".git")
	if !ok || !rooted || strings.HasSuffix(repo, ".git") { // servers differ in how often they strip it
		return "", false
	}
	for part := range strings.SplitSeq(repo, "/") {
		if !plainGitPart(part) {
			return "", false
		}
	}
	return repo, true
}

// matchRepo compares part by part. A wiki is a repository of its own, which a star does not stand for.
func matchRepo(pattern, repo string) bool {
	patterns, parts := strings.Split(pattern, "/"), strings.Split(repo, "/")
	if len(patterns) != len(parts) || strings.HasSuffix(repo, ".wiki") && !strings.HasSuffix(pattern, ".wiki") {
		return false
	}
	for i := range parts {
		if !matchSegment(patterns[i], parts[i]) {
			return false
		}
	}
	return true
}
