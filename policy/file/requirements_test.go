package file

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestConditionsOnHeadersAndQueries(t *testing.T) {
	const git = `allow: [{host: a.test, methods: [GET], headers: {accept: [json, "text/*"]}, query: {service: [git-upload-pack]}, query_only: true, id: x}]`
	const denied = "default: allow\n" + `deny: [{host: a.test, headers: {x-a: ["1"]}}, {host: b.test, query: {q: ["1"]}}, {host: c.test, paths: [/acme/**], paths_fold: true}]`
	const methods = `allow: [{host: a.test, methods: [POST]}, b.test]`
	for _, row := range []struct {
		file, ask string
		header    map[string][]string
		want      policy.Class
	}{
		{git, "GET https://a.test/?service=git-upload-pack", map[string][]string{"accept": {"json"}}, ""},
		{git, "GET https://a.test/?service=git%2Dupload-pack", map[string][]string{"accept": {"text/html"}}, ""},
		{git, "GET https://a.test/?service=git-upload-pack", nil, policy.HeaderDenied},
		{git, "GET https://a.test/?service=git-upload-pack", map[string][]string{"accept": {"json", "json"}}, policy.HeaderDenied},
		{git, "GET https://a.test/?service=git-upload-pack", map[string][]string{"accept": {"JSON"}}, policy.HeaderDenied},
		{git, "GET https://a.test/?service=git-receive-pack", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/?service=git-upload-pack&service=git-upload-pack", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/?service=git-upload-pack&%73ervice=git-receive-pack", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/?service=git-upload-pack&x=1", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/?service=git-upload-pack;x=1", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "GET https://a.test/?service=git-upload-pack&y=%zz", map[string][]string{"accept": {"json"}}, policy.QueryDenied},
		{git, "POST https://a.test/?service=git-upload-pack", map[string][]string{"accept": {"json"}}, policy.MethodDenied},
		{methods, "POST https://a.test/", nil, ""},
		{methods, "POST https://a.test/", map[string][]string{"x-http-method-override": {"DELETE"}}, policy.MethodDenied},
		{methods, "POST https://a.test/", map[string][]string{"x-http-method": {"POST"}}, policy.MethodDenied},
		{methods, "POST https://a.test/", map[string][]string{"x_http_method_override": {"DELETE"}}, policy.MethodDenied},
		{methods, "POST https://a.test/?%24httpMethod=DELETE", nil, policy.MethodDenied},
		{methods, "POST https://a.test/?x;_method=DELETE", nil, policy.MethodDenied},
		{methods, "POST https://a.test/?method=DELETE", nil, ""},
		{methods, "POST https://b.test/", map[string][]string{"x-method-override": {"DELETE"}}, ""},
		{"default: allow\ndeny: [{host: a.test, methods: [DELETE]}]", "POST https://a.test/", map[string][]string{"x-method-override": {"DELETE"}}, policy.RuleDeny},
		{"default: allow\ndeny: [{host: a.test, methods: [DELETE]}]", "POST https://a.test/", nil, ""},
		{denied, "GET https://a.test/", nil, ""},
		{denied, "GET https://a.test/", map[string][]string{"x-a": {"1"}}, policy.RuleDeny},
		{denied, "GET https://a.test/", map[string][]string{"x-a": {"2", "3"}}, policy.RuleDeny},
		{denied, "GET https://b.test/?q=2", nil, ""},
		{denied, "GET https://b.test/?q=%31", nil, policy.RuleDeny},
		{denied, "GET https://b.test/?q=2&q=3", nil, policy.RuleDeny},
		{denied, "GET https://b.test/?r=2;q=1", nil, policy.RuleDeny},
		{denied, "GET https://c.test/ACME/x", nil, policy.RuleDeny},
		{denied, "GET https://c.test/acm/x", nil, ""},
	} {
		r := asking(t, row.ask)
		r.HTTP.Header = row.header
		if d := compiled(t, row.file, inspecting).Decide(context.Background(), r); d.Class != row.want {
			t.Errorf("%s %v: %s, want %q", row.ask, row.header, saying(d), row.want)
		}
	}
}

func TestAGitRuleLetsFetchesOfItsRepositories(t *testing.T) {
	p := compiled(t, `allow: [{host: git.test, git: {repos: [Acme/App, "acme/lib-*", group/sub/x]}}]`, inspecting)
	const refs, pack = "?service=git-upload-pack", "application/x-git-upload-pack-request"
	for _, row := range []struct {
		ask, content string
		want         bool
	}{
		{"GET https://git.test/acme/app/info/refs" + refs, "", true},
		{"GET https://git.test/ACME/App.git/info/refs" + refs, "", true},
		{"POST https://git.test/acme/app.git/git-upload-pack", pack, true},
		{"GET https://git.test/acme/lib-x/info/refs" + refs, "", true},
		{"GET https://git.test/group/sub/x.git/info/refs" + refs, "", true},

		{"GET https://git.test/acme/app/info/refs?service=git-receive-pack", "", false},
		{"POST https://git.test/acme/app/git-receive-pack", "application/x-git-receive-pack-request", false},
		{"POST https://git.test/acme/app/git-receive-pack", pack, false},
		{"POST https://git.test/acme/app/git-upload-pack", "application/x-git-receive-pack-request", false},
		{"POST https://git.test/acme/app/git-upload-pack", "", false},
		{"POST https://git.test/acme/app/git-upload-pack?x", pack, false},
		{"GET https://git.test/acme/app/git-upload-pack", pack, false},
		{"POST https://git.test/acme/app/git-upload-archive", pack, false},
		{"HEAD https://git.test/acme/app/info/refs" + refs, "", false},
		{"GET https://git.test/acme/app/info/refs", "", false}, // the dumb protocol
		{"GET https://git.test/acme/app/HEAD", "", false},
		{"GET https://git.test/acme/app/info/refs" + refs + "&service=git-receive-pack", "", false},
		{"GET https://git.test/acme/app/info/refs" + refs + "&" + refs[1:], "", false},
		{"GET https://git.test/acme/app/info/refs" + refs + "&x=1", "", false},
		{"GET https://git.test/acme/app/info/refs" + refs + ";x", "", false},
		{"GET https://git.test/acme/app.git/../evil.git/info/refs" + refs, "", false},
		{"GET https://git.test/acme/app.git.git/info/refs" + refs, "", false},
		{"GET https://git.test/acme/app.wiki.git/info/refs" + refs, "", false},
		{"GET https://git.test/acme/lib-x.wiki/info/refs" + refs, "", false},
		{"GET https://git.test/acme/lib-x.design.git/info/refs" + refs, "", false}, // of GitLab
		{"GET https://git.test/acme/lib-x/y/info/refs" + refs, "", false},
		{"GET https://git.test/acme/lib-%2E/info/refs" + refs, "", false},
		{"GET https://git.test/acme/app%2Egit/info/refs" + refs, "", false},
		{"GET https://git.test/acme/evil/info/refs" + refs, "", false},
		{"GET https://git.test/x/acme/app/info/refs" + refs, "", false},
		{"POST https://git.test/acme/app.git/info/lfs/objects/batch", "application/vnd.git-lfs+json", false},
	} {
		r := asking(t, row.ask)
		if row.content != "" {
			r.HTTP.Header = map[string][]string{"content-type": {row.content}}
		}
		if d := p.Decide(context.Background(), r); (d.Verdict == policy.Allow) != row.want {
			t.Errorf("%s: %s", row.ask, saying(d))
		}
	}
	r := asking(t, "POST https://git.test/acme/app/git-upload-pack")
	r.HTTP.Header = map[string][]string{"content-type": {pack, pack}}
	if d := p.Decide(context.Background(), r); d.Class != policy.GitDenied {
		t.Errorf("two types of content: %s", saying(d))
	}
}

// pushBody is the body of a push with these commands, as git sends it.
func pushBody(capabilities string, lines ...string) *policy.Body {
	var b strings.Builder
	packet := func(text string) { fmt.Fprintf(&b, "%04x%s", len(text)+4, text) }
	for i, line := range lines {
		if i == 0 {
			line += "\x00 report-status-v2 side-band-64k " + capabilities
		}
		packet(line)
	}
	b.WriteString("0000")
	if capabilities == "push-options" {
		packet("ci.skip\n")
		b.WriteString("0000")
	}
	if strings.Contains(lines[0][41:], strings.Repeat("0", 40)) { // of a delete, nothing follows
		return &policy.Body{Bytes: []byte(b.String()), Ended: true}
	}
	b.WriteString("PACK")
	return &policy.Body{Bytes: []byte(b.String())}
}

func TestAGitRuleLetsPushesOfItsRefs(t *testing.T) {
	const none, one, two = "0000000000000000000000000000000000000000", "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"
	p := compiled(t, `allow:
- {host: git.test, id: gh, git: {repos: [acme/app], push: ["refs/heads/agent/*"], create: ["refs/tags/v*"], delete: [refs/heads/agent/old], options: ["ci.*"]}}
- {host: git.test, id: other, git: {repos: [acme/other], push: ["refs/heads/*"]}}
- {host: git.test, id: read, git: {repos: [acme/read]}}`, inspecting)
	push := func(lines ...string) *policy.Body { return pushBody("", lines...) }
	whole := func(text string) *policy.Body { return &policy.Body{Bytes: []byte(text), Ended: true} }
	for _, row := range []struct {
		says, repo string
		body       *policy.Body
		rule, ref  string // of a refusal
	}{
		{"a create", "acme/app", push(none + " " + one + " refs/heads/agent/x"), "", ""},
		{"a move", "ACME/App.git", push(one + " " + two + " refs/heads/agent/x"), "", ""},
		{"a tag", "acme/app", push(none + " " + one + " refs/tags/v1"), "", ""},
		{"a delete", "acme/app", push(one + " " + none + " refs/heads/agent/old"), "", ""},
		{"a probe", "acme/app", whole("0000"), "", ""},
		{"an option", "acme/app", pushBody("push-options", none+" "+one+" refs/heads/agent/x"), "", ""},

		{"main", "acme/app", push(one + " " + two + " refs/heads/main"), "gh", "refs/heads/main"},
		{"a second command to main", "acme/app", push(none+" "+one+" refs/heads/agent/x", one+" "+two+" refs/heads/main"), "gh", "refs/heads/main"},
		{"another case", "acme/app", push(none + " " + one + " refs/heads/Agent/x"), "gh", "refs/heads/Agent/x"},
		{"a slash more", "acme/app", push(none + " " + one + " refs/heads/agent/x/y"), "gh", "refs/heads/agent/x/y"},
		{"a pull request", "acme/app", push(none + " " + one + " refs/pull/1/head"), "gh", "refs/pull/1/head"},
		{"a tag that is there", "acme/app", push(one + " " + two + " refs/tags/v1"), "gh", "refs/tags/v1"},
		{"a tag of another name", "acme/app", push(none + " " + one + " refs/tags/x1"), "gh", "refs/tags/x1"},
		{"a delete of what may be pushed", "acme/app", push(one + " " + none + " refs/heads/agent/x"), "gh", "refs/heads/agent/x"},
		{"dot dot", "acme/app", push(none + " " + one + " refs/heads/agent/../main"), "gh", ""},
		{"HEAD", "acme/app", push(none + " " + one + " HEAD"), "gh", ""},
		{"an option of another name", "acme/other", pushBody("push-options", none+" "+one+" refs/heads/x"), "other", ""},
		{"bytes behind a probe", "acme/app", whole("00000000"), "gh", ""},
		{"nothing", "acme/app", whole(""), "gh", ""},
		{"no push", "acme/app", whole("PACK"), "gh", ""},
		{"a repository without push", "acme/read", push(none + " " + one + " refs/heads/agent/x"), "read", ""},
		{"a wiki", "acme/app.wiki", push(none + " " + one + " refs/heads/agent/x"), "gh", ""},
	} {
		r := asking(t, "POST https://git.test/"+row.repo+"/git-receive-pack")
		r.HTTP.Header = map[string][]string{"content-type": {"application/x-git-receive-pack-request"}}
		r.HTTP.BodySize, r.HTTP.Body = -1, row.body
		d := p.Decide(t.Context(), r)
		if row.rule == "" && d.Verdict != policy.Allow || row.rule != "" && (d.Class != policy.GitDenied || d.Rule != row.rule || d.Ref != row.ref) {
			t.Errorf("%s: %s, ref %q: %s", row.says, saying(d), d.Ref, d.Reason)
		}
		if row.ref != "" && !strings.Contains(d.Reason, row.ref) {
			t.Errorf("%s: the reason does not name the ref: %s", row.says, d.Reason)
		}
		if row.rule != "" {
			continue
		}
		r.HTTP.Body = nil
		if d := p.Decide(t.Context(), r); d.Verdict != policy.Inspect || d.Needs&policy.NeedsBodyStart == 0 {
			t.Errorf("%s, before its body was read: %s, needs %d", row.says, saying(d), d.Needs)
		}
		r.HTTP.Body = &policy.Body{Bytes: row.body.Bytes[:3]}
		if d := p.Decide(t.Context(), r); d.Verdict != policy.Inspect {
			t.Errorf("%s, after three bytes: %s", row.says, saying(d))
		}
		for _, coding := range [][]string{{"deflate"}, {"GZIP"}, {"gzip", "gzip"}, {"identity"}} {
			r.HTTP.Body, r.HTTP.Header["content-encoding"] = row.body, coding
			if d := p.Decide(t.Context(), r); d.Class != policy.GitDenied {
				t.Errorf("%s, as %s: %s", row.says, coding, saying(d))
			}
		}
	}
	for ask, want := range map[string]policy.Class{
		"GET https://git.test/acme/app.git/info/refs?service=git-receive-pack":                         "",
		"GET https://git.test/acme/read.git/info/refs?service=git-receive-pack":                        policy.GitDenied,
		"GET https://git.test/acme/evil.git/info/refs?service=git-receive-pack":                        policy.GitDenied,
		"GET https://git.test/acme/app.git/info/refs?service=git-receive-pack&service=git-upload-pack": policy.GitDenied,
		"GET https://git.test/acme/app.git/git-receive-pack":                                           policy.GitDenied,
		"PROPFIND https://git.test/acme/app.git/":                                                      policy.GitDenied, // the dumb protocol pushes by WebDAV
		"MKCOL https://git.test/acme/app.git/objects/":                                                 policy.GitDenied,
		"PUT https://git.test/acme/app.git/refs/heads/agent/x":                                         policy.GitDenied,
		"PUT https://git.test/acme/app.git/git-receive-pack":                                           policy.GitDenied,
		"GET https://git.test/acme%2Fapp.git/info/refs?service=git-receive-pack":                       policy.GitDenied,
		"GET https://git.test/acme//app.git/info/refs?service=git-receive-pack":                        policy.GitDenied,
		"GET https://git.test/acme/app.git/../evil.git/info/refs?service=git-receive-pack":             policy.GitDenied,
		"GET https://git.test/acme/app.git/info/refs?service=git-receive-pack%00":                      policy.GitDenied,
		"GET https://git.test/acme/app.git/info/refs?Service=git-receive-pack":                         policy.GitDenied,
	} {
		if d := p.Decide(t.Context(), asking(t, ask)); d.Class != want {
			t.Errorf("%s: %s", ask, saying(d))
		}
	}
}

func TestAGitRuleLetsLargeFiles(t *testing.T) {
	p := compiled(t, `allow:
- {host: git.test, id: lfs, git: {repos: [acme/app], lfs: true, push: ["refs/heads/agent/*"]}}
- {host: git.test, id: read, git: {repos: [acme/read], lfs: true}}
- {host: git.test, id: without, git: {repos: [acme/none], push: ["refs/heads/*"]}}`, inspecting)
	const kind = "application/vnd.git-lfs+json"
	oid := strings.Repeat("0f", 32)
	batch := func(operation, ref string) string {
		return `{"operation":"` + operation + `","transfers":["basic"],"ref":{"name":"` + ref + `"},"objects":[{"oid":"` + oid + `","size":3}],"hash_algo":"sha256"}`
	}
	for _, row := range []struct {
		ask, body, rule string
		want            bool
	}{
		{"POST /acme/app.git/info/lfs/objects/batch", batch("download", "refs/heads/main"), "lfs", true},
		{"POST /ACME/App/info/lfs/objects/batch", batch("download", ""), "lfs", true},
		{"POST /acme/app.git/info/lfs/objects/batch", batch("upload", "refs/heads/agent/x"), "lfs", true},
		{"POST /acme/app.git/info/lfs/locks/verify", `{"ref":{"name":"refs/heads/main"}}`, "lfs", true},
		{"GET /acme/app.git/info/lfs/locks?path=a.bin&refspec=refs/heads/main", "", "lfs", true},
		{"POST /acme/app.git/info/lfs/locks", `{"path":"a.bin","ref":{"name":"refs/heads/agent/x"}}`, "lfs", true},
		{"POST /acme/app.git/info/lfs/locks/17/unlock", `{"force":false,"ref":{"name":"refs/heads/agent/x"}}`, "lfs", true},
		{"POST /acme/read.git/info/lfs/objects/batch", batch("download", ""), "read", true},

		{"PUT /acme/app.git/info/lfs/objects/" + oid, "x", "lfs", false}, // none of these was handed out
		{"POST /acme/app.git/info/lfs/verify", "x", "lfs", false},
		{"GET /acme/app.git/gitlab-lfs/objects/" + oid + "/3", "", "lfs", false},
		{"GET /acme/read.git/info/lfs/objects/" + oid, "", "read", false},
		{"POST /acme/app.git/info/lfs/locks", `{"path":"a.bin","ref":{"name":"refs/heads/main"}}`, "lfs", false},
		{"POST /acme/app.git/info/lfs/locks/17/unlock", `{"force":true}`, "lfs", false},
		{"POST /acme/app.git/info/lfs/locks/17%2f..%2funlock", `{"ref":{"name":"refs/heads/agent/x"}}`, "lfs", false},
		{"POST /acme/read.git/info/lfs/locks", `{"path":"a.bin","ref":{"name":"refs/heads/agent/x"}}`, "read", false},
		{"POST /acme/app.git/info/lfs/objects/batch", batch("upload", "refs/heads/main"), "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", `{"operation":"upload","objects":[]}`, "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", batch("delete", "refs/heads/agent/x"), "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", `{"operation":"upload",` + batch("download", "refs/heads/main")[1:], "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", `{"Operation":"upload",` + batch("download", "refs/heads/main")[1:], "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", strings.Replace(batch("upload", "refs/heads/agent/x"), `"ref":{`, `"ref":{"Name":"refs/heads/main",`, 1), "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", strings.Replace(batch("upload", "refs/heads/agent/x"), `"ref":`, `"Ref":{"name":"refs/heads/main"},"ref":`, 1), "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch", "operation=download", "lfs", false},
		{"POST /acme/app.git/info/lfs/objects/batch?x=1", batch("download", ""), "lfs", false},
		{"POST /acme/app.git/info/lfs/locks", `{"path":"x"}`, "lfs", false},
		{"PUT /acme/app.git/info/lfs/objects/" + oid[:63] + "F", "x", "lfs", false},
		{"PUT /acme/app.git/info/lfs/objects/../../../../evil", "x", "lfs", false},
		{"POST /acme/evil.git/info/lfs/objects/batch", batch("download", ""), "lfs", false},
		{"POST /acme/evil/info/lfs/objects/acme/app.git/info/lfs/objects/batch", batch("download", ""), "lfs", false},
		{"POST /acme/read.git/info/lfs/objects/batch", batch("upload", "refs/heads/agent/x"), "read", false},
		{"PUT /acme/read.git/info/lfs/objects/" + oid, "x", "read", false},
		{"POST /acme/none.git/info/lfs/objects/batch", batch("download", ""), "without", false},
		{"GET /acme/none.git/info/lfs/objects/" + oid, "", "without", false},
	} {
		method, path, _ := strings.Cut(row.ask, " ")
		r := asking(t, method+" https://git.test"+path)
		r.HTTP.Header = map[string][]string{"content-type": {kind + "; charset=utf-8"}}
		if row.body != "" {
			r.HTTP.BodySize, r.HTTP.Body = -1, &policy.Body{Bytes: []byte(row.body), Content: []byte(row.body), Ended: true}
		}
		d := p.Decide(t.Context(), r)
		if (d.Verdict == policy.Allow) != row.want || d.Rule != row.rule || !row.want && d.Class != policy.GitDenied {
			t.Errorf("%s %s: %s: %s", row.ask, row.body, saying(d), d.Reason)
		}
		if r.HTTP.Body = nil; strings.HasSuffix(path, "/batch") && row.want {
			if d := p.Decide(t.Context(), r); d.Verdict != policy.Inspect || d.Needs&policy.NeedsBody != 0 {
				t.Errorf("%s, before its body was read: %s", row.ask, saying(d))
			}
		}
	}
}

// TestLargeFilesPassAsTheyWereHandedOut asks for what an answer to a batch has named, with one thing changed at a time.
func TestLargeFilesPassAsTheyWereHandedOut(t *testing.T) {
	p := compiled(t, `allow:
- {host: git.test, id: own, git: {repos: [acme/app], lfs: true, push: ["refs/heads/agent/*"]}}
- {host: git.test, id: read, git: {repos: [acme/read], lfs: true}}
- {host: store.test, id: store, lfs: {server: git.test, repos: [acme/app]}}`, inspecting)
	for says, row := range map[string]struct {
		host   string
		change func(*policy.HTTPRequest)
		want   bool
	}{
		"at the server":   {"git.test", func(h *policy.HTTPRequest) { h.LFS.Own = true }, true},
		"at another host": {"store.test", func(h *policy.HTTPRequest) {}, true},
		"in chunks":       {"store.test", func(h *policy.HTTPRequest) { h.BodySize = -1 }, true},
		"a download":      {"store.test", func(h *policy.HTTPRequest) { h.Method, h.LFS.Name, h.BodySize = "GET", "download", 0 }, true},
		"a download there": {"git.test", func(h *policy.HTTPRequest) {
			h.LFS.Own, h.LFS.Repo, h.LFS.Name, h.BodySize = true, "acme/read", "download", 0
		}, true},
		"a report": {"store.test", func(h *policy.HTTPRequest) { h.Method, h.LFS.Name, h.BodySize = "POST", "verify", 90 }, true},

		"by no answer":                  {"store.test", func(h *policy.HTTPRequest) { h.LFS = nil }, false},
		"by an answer of another":       {"store.test", func(h *policy.HTTPRequest) { h.LFS.Server = "git.test:8443" }, false},
		"for another repository":        {"store.test", func(h *policy.HTTPRequest) { h.LFS.Repo = "acme/other" }, false},
		"by another for the server":     {"git.test", func(h *policy.HTTPRequest) {}, false},
		"a longer one":                  {"store.test", func(h *policy.HTTPRequest) { h.BodySize = 11 }, false},
		"a shorter one":                 {"store.test", func(h *policy.HTTPRequest) { h.BodySize = 9 }, false},
		"a download with a body":        {"store.test", func(h *policy.HTTPRequest) { h.Method, h.LFS.Name = "GET", "download" }, false},
		"a long report":                 {"store.test", func(h *policy.HTTPRequest) { h.Method, h.LFS.Name, h.BodySize = "POST", "verify", 1025 }, false},
		"another method":                {"store.test", func(h *policy.HTTPRequest) { h.Header["x-http-method-override"] = []string{"DELETE"} }, false},
		"another protocol":              {"store.test", func(h *policy.HTTPRequest) { h.Upgrade = true }, false},
		"an upload to read":             {"git.test", func(h *policy.HTTPRequest) { h.LFS.Own, h.LFS.Repo = true, "acme/read" }, false},
		"an upload without large files": {"git.test", func(h *policy.HTTPRequest) { h.LFS.Own, h.LFS.Repo = true, "acme/none" }, false},
	} {
		r := asking(t, "PUT https://"+row.host+"/o/x?signature=1")
		r.HTTP.Header, r.HTTP.BodySize = map[string][]string{}, 10
		r.HTTP.LFS = &policy.LFSAction{Server: "git.test:443", Repo: "acme/app", Name: "upload", Size: 10}
		row.change(r.HTTP)
		if d := p.Decide(t.Context(), r); (d.Verdict == policy.Allow) != row.want || !row.want && d.Class != policy.GitDenied {
			t.Errorf("%s: %s: %s", says, saying(d), d.Reason)
		}
	}
}

func TestBadConditions(t *testing.T) {
	for rule, want := range map[string]string{
		`git: {}`:                                        "allow[0].git has no repos",
		`git: [acme/app]`:                                "allow[0].git is a list; write a mapping",
		`git: {repos: []}`:                               "allow[0].git.repos is empty",
		`git: {repos: [acme]}`:                           `allow[0].git.repos: "acme" is not the name of a repository; write it like acme/app`,
		`git: {repos: [acme/app.git]}`:                   `ends with .git, which clients may send or leave out; write "acme/app"`,
		`git: {repos: [acme/..]}`:                        "has a part that is not made of letters",
		`git: {repos: ["https://h/acme/app"]}`:           "is not the name of a repository",
		`git: {branch: [x], repos: [a/b]}`:               `allow[0].git has no key "branch"`,
		`git: {push: [refs/heads/x]}`:                    "allow[0].git has no repos",
		`git: {push: [agent], repos: [a/b]}`:             `allow[0].git.push: "agent" is not the full name of a ref; write it like refs/heads/agent/*`,
		`git: {push: ["refs/*/x"], repos: [a/b]}`:        `allow[0].git.push: "refs/*/x" names no kind of ref`,
		`git: {push: ["refs/*"], repos: [a/b]}`:          `"refs/*" names no kind of ref`,
		`git: {delete: [refs/heads/a..b], repos: [a/b]}`: `allow[0].git.delete: "refs/heads/a..b" is no ref`,
		`git: {create: [], repos: [a/b]}`:                "allow[0].git.create is empty",
		`git: {lfs: some, repos: [a/b]}`:                 "allow[0].git.lfs is not true or false",
		`lfs: {server: git.test}`:                        "allow[0].lfs needs server and repos",
		`lfs: {server: "git.test/x", repos: [a/b]}`:      `allow[0].lfs.server: "git.test/x" is not the host of a git server`,
		`lfs: true`:                              "allow[0].lfs is a truth value; write a mapping",
		`git: {options: [x], repos: [a/b]}`:      "allow[0].git.options are of a push, and none is allowed",
		`paths_fold: maybe`:                      "allow[0].paths_fold is not true or false",
		`headers: {}`:                            "allow[0].headers is empty",
		`headers: [accept]`:                      "allow[0].headers is a list; write a mapping",
		`headers: {Accept: [x]}`:                 `allow[0].headers: "Accept" has upper case, and names of fields have none here; write "accept"`,
		`headers: {host: [x]}`:                   "allow[0].headers: egressd writes host itself",
		`headers: {accept: []}`:                  "allow[0].headers.accept is empty",
		`headers: {accept: [1]}`:                 `allow[0].headers.accept is a number; put "1" in quotes`,
		`headers: {accept: [x], accept: [y]}`:    "allow[0].headers.accept stands a second time",
		`query: {"": [x]}`:                       "allow[0].query: the name of a parameter is empty",
		`query: {q: [x]}, tls: any`:              "allow[0] has query, which needs requests that can be seen, and tls or ech",
		`querys: {q: [x]}`:                       `allow[0] has no key "querys"; did you mean "query"?`,
		`headers: {accept: [x]}, upgrade: other`: "",
	} {
		_, err := Parse("f", []byte("version: 1\nallow: [{host: a.test, "+rule+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

func TestADenyHasNoGit(t *testing.T) {
	_, err := Parse("f", []byte("version: 1\ndeny: [{host: a.test, git: {repos: [a/b]}}]"))
	if err == nil || !strings.Contains(err.Error(), "deny[0].git says what may be fetched, and stands in allow alone") {
		t.Error(err)
	}
}

func TestADenyWithPathsOnAHostThatFolds(t *testing.T) {
	for says, row := range map[string]struct {
		text string
		want bool
	}{
		"a preset says so":        {"presets: [github]\ndeny: [{host: api.github.com, paths: [/repos/acme/**]}]", true},
		"the deny folds":          {"presets: [github]\ndeny: [{host: api.github.com, paths: [/repos/acme/**], paths_fold: true}]", false},
		"another host":            {"presets: [github]\ndeny: [{host: a.test, paths: [/repos/acme/**]}]", false},
		"a rule says so":          {"allow: [{host: a.test, paths_fold: true}]\nask: [{host: \"*.test\", paths: [/a]}]", true},
		"a path without a letter": {"presets: [github]\ndeny: [{host: api.github.com, paths: [/1]}]", false},
	} {
		f, err := Parse("f", []byte("version: 1\n"+row.text))
		if err != nil {
			t.Fatal(err)
		}
		warned := strings.Contains(strings.Join(f.Warnings(), "\n"), "add paths_fold: true")
		if warned != row.want {
			t.Errorf("%s: warned is %t: %q", says, warned, f.Warnings())
		}
	}
}
