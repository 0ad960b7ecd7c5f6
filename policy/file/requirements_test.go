package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestConditionsOnHeadersAndQueries(t *testing.T) {
	const git = `allow: [{host: a.test, methods: [GET], headers: {accept: [json, "text/*"]}, query: {service: [git-upload-pack]}, query_only: true, id: x}]`
	const denied = "default: allow\n" + `deny: [{host: a.test, headers: {x-a: ["1"]}}, {host: b.test, query: {q: ["1"]}}, {host: c.test, paths: [/acme/**], paths_fold: true}]`
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

func TestBadConditions(t *testing.T) {
	for rule, want := range map[string]string{
		`git: {}`:                                "allow[0].git has no repos",
		`git: [acme/app]`:                        "allow[0].git is a list; write a mapping",
		`git: {repos: []}`:                       "allow[0].git.repos is empty",
		`git: {repos: [acme]}`:                   `allow[0].git.repos: "acme" is not the name of a repository; write it like acme/app`,
		`git: {repos: [acme/app.git]}`:           `ends with .git, which clients may send or leave out; write "acme/app"`,
		`git: {repos: [acme/..]}`:                "has a part that is not made of letters",
		`git: {repos: ["https://h/acme/app"]}`:   "is not the name of a repository",
		`git: {push: [x], repos: [a/b]}`:         `allow[0].git has no key "push"`,
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
