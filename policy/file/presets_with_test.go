package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const onGitHub = `presets:
- npm
- github: {repos: [acme/App, "acme/lib-*"], push: ["refs/heads/agent/*"], pulls: write, issues: read, releases: write}`

func TestAPresetForOneRepository(t *testing.T) {
	p := compiled(t, onGitHub, inspecting)
	for ask, want := range map[string]string{
		"GET https://github.com/acme/app/info/refs?service=git-upload-pack":        "github-git",
		"GET https://github.com/ACME/lib-x.git/info/refs?service=git-receive-pack": "github-git",
		"GET https://github.com/acme/app/archive/refs/heads/main.zip":              "github-files",
		"GET https://codeload.github.com/acme/app/zip/refs/heads/main":             "github-codeload",
		"GET https://raw.githubusercontent.com/acme/app/main/README.md":            "github-raw",
		"GET https://api.github.com/repos/acme/app":                                "github-read",
		"HEAD https://api.github.com/repos/ACME/App/issues/1/comments":             "github-read",
		"GET https://api.github.com/user":                                          "github-read",
		"POST https://api.github.com/repos/acme/app/pulls":                         "github-pulls",
		"PATCH https://api.github.com/repos/acme/lib-x/pulls/7":                    "github-pulls",
		"POST https://api.github.com/repos/acme/app/pulls/7/reviews":               "github-pulls",
		"POST https://api.github.com/repos/acme/app/releases":                      "github-releases",
		"POST https://uploads.github.com/repos/acme/app/releases/5/assets?name=x":  "github-uploads",
		"GET https://registry.npmjs.org/x":                                         "preset:npm",

		"PUT https://api.github.com/repos/acme/app/pulls/7/merge":                   "",
		"POST https://api.github.com/repos/acme/app/issues":                         "",
		"POST https://api.github.com/repos/acme/app/issues/7/comments":              "",
		"PUT https://api.github.com/repos/acme/app/contents/x":                      "",
		"POST https://api.github.com/repos/acme/app/git/refs":                       "",
		"POST https://api.github.com/repos/acme/app/merges":                         "",
		"POST https://api.github.com/repos/acme/app/forks":                          "",
		"POST https://api.github.com/repos/acme/app/hooks":                          "",
		"POST https://api.github.com/repos/acme/app/keys":                           "",
		"PUT https://api.github.com/repos/acme/app/collaborators/x":                 "",
		"PUT https://api.github.com/repos/acme/app/actions/secrets/X":               "",
		"POST https://api.github.com/repos/acme/app/dispatches":                     "",
		"POST https://api.github.com/repos/acme/app/actions/workflows/1/dispatches": "",
		"POST https://api.github.com/repos/acme/app/actions/runs/1/rerun":           "",
		"POST https://api.github.com/repos/acme/app/pulls/7/codespaces":             "",
		"POST https://api.github.com/repos/acme/app/transfer":                       "",
		"DELETE https://api.github.com/repos/acme/app":                              "",
		"PATCH https://api.github.com/repos/acme/app":                               "",
		"POST https://api.github.com/repos/acme/other/pulls":                        "",
		"GET https://api.github.com/repos/acme/other":                               "",
		"GET https://api.github.com/repos/acme/app/../other":                        "",
		"GET https://api.github.com/repos/acme%2Fapp/pulls":                         "",
		"GET https://api.github.com/repositories/42/pulls":                          "",
		"POST https://api.github.com/user/repos":                                    "",
		"POST https://api.github.com/gists":                                         "",
		"POST https://api.github.com/graphql":                                       "", // only with the parameter graphql
		"POST https://uploads.github.com/repos/acme/other/releases/5/assets?name=x": "",
		"POST https://github.com/acme/app/issues":                                   "",
		"GET https://github.com/acme/other/archive/refs/heads/main.zip":             "",
		"GET https://github.com/acme/app/settings":                                  "",
		"GET https://raw.githubusercontent.com/acme/other/main/README.md":           "",
		"PUT https://objects.githubusercontent.com/x":                               "",
		"GET http://api.github.com/repos/acme/app":                                  "",
		"GET https://gist.github.com/":                                              "",
	} {
		d := p.Decide(t.Context(), asking(t, ask))
		if (d.Verdict == policy.Allow) != (want != "") || want != "" && d.Rule != want {
			t.Errorf("%s: %s, want %q", ask, saying(d), want)
		}
	}
}

// TestPresetsOfModels have the hosts of the presets without parameters, deny what providers run, and pin accounts.
func TestPresetsOfModels(t *testing.T) {
	for name, parameters := range map[string]string{
		"anthropic": "hosted_tools: deny, urls: deny, files: deny", "openai": "hosted_tools: deny, organizations: [org-1, org_2]", "gemini-cli": "hosted_tools: deny, domains: example.com",
	} {
		with, err := Parse("f", []byte("version: 1\npresets: ["+name+": {"+parameters+"}]"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plain, err := parsePresets([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		hosts := func(rules []policy.Rule) (all []string) {
			for i := range rules {
				all = append(all, rules[i].Pattern.String())
			}
			slices.Sort(all)
			return all
		}
		if got, want := hosts(with.Allow), hosts(plain[0].Allow); !slices.Equal(got, want) {
			t.Errorf("%s opens %v, and without parameters %v", name, got, want)
		}
	}
	p := compiled(t, `presets: [anthropic: {hosted_tools: deny}, openai: {urls: deny, organizations: [org-1, org_2]}, gemini-cli: {domains: example.com}]`, inspecting)
	for ask, want := range map[string]policy.Verdict{
		"POST https://api.anthropic.com/v1/messages": policy.Inspect, "POST https://api.anthropic.com/v1/files": policy.Deny, "GET https://platform.claude.com/": policy.Allow,
		"POST https://eu.api.openai.com/v1/responses": policy.Inspect, "POST https://api.openai.com/v1/batches": policy.Deny, "POST https://generativelanguage.googleapis.com/upload/v1beta/files": policy.Allow,
	} {
		r := asking(t, ask)
		r.HTTP.BodySize = -1
		if r.HTTP.Method == "GET" {
			r.HTTP.BodySize = 0
		}
		if d := p.Decide(t.Context(), r); d.Verdict != want {
			t.Errorf("%s: %s", ask, saying(d))
		}
	}
	for host, want := range map[string]string{
		"api.openai.com:443": "OpenAI-Allowed-Organization-Ids: org-1,org_2", "us.api.openai.com:443": "OpenAI-Allowed-Organization-Ids: org-1,org_2",
		"cloudcode-pa.googleapis.com:443": "X-GeminiCodeAssist-Allowed-Domains: example.com", "api.anthropic.com:443": "",
	} {
		dst, err := policy.ParseDestination(host)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range p.SetFields(dst) {
			got += f.Name + ": " + f.Value
		}
		if got != want {
			t.Errorf("%s gets %q, want %q", host, got, want)
		}
	}
}

func TestAPresetForOneProject(t *testing.T) {
	p := compiled(t, `presets: [gitlab: {repos: [acme/sub/app], projects: [42], push: refs/heads/agent/*, merge_requests: write}]`, inspecting)
	for ask, want := range map[string]string{
		"GET https://gitlab.com/acme/sub/app.git/info/refs?service=git-receive-pack": "gitlab-git",
		"GET https://gitlab.com/api/v4/projects/42/merge_requests/1/changes":         "gitlab-read",
		"POST https://gitlab.com/api/v4/projects/42/merge_requests":                  "gitlab-merge-requests",
		"PUT https://gitlab.com/api/v4/projects/42/merge_requests/1":                 "gitlab-merge-requests",

		"PUT https://gitlab.com/api/v4/projects/42/merge_requests/1/merge":        "",
		"GET https://gitlab.com/api/v4/projects/42":                               "", // it may show runners_token
		"GET https://gitlab.com/api/v4/projects/42/variables":                     "",
		"GET https://gitlab.com/api/v4/projects/42/pipelines/1/variables":         "",
		"GET https://gitlab.com/api/v4/projects/43/merge_requests":                "",
		"GET https://gitlab.com/api/v4/projects/acme%2Fsub%2Fapp/issues":          "",
		"POST https://gitlab.com/api/v4/projects/42/issues":                       "",
		"POST https://gitlab.com/api/v4/projects/42/repository/commits":           "",
		"POST https://gitlab.com/api/v4/projects":                                 "",
		"POST https://gitlab.com/api/v4/snippets":                                 "",
		"GET https://gitlab.com/acme/other.git/info/refs?service=git-upload-pack": "",
	} {
		d := p.Decide(t.Context(), asking(t, ask))
		if (d.Verdict == policy.Allow) != (want != "") || want != "" && d.Rule != want {
			t.Errorf("%s: %s, want %q", ask, saying(d), want)
		}
	}
}

// TestAPresetIsTheLinesThatItPrints pastes the text of a preset in its place.
func TestAPresetIsTheLinesThatItPrints(t *testing.T) {
	parameters, err := ParsePresetParameters(strings.Fields("repos=acme/app push=refs/heads/agent/*,refs/heads/x create=refs/tags/v* delete=refs/heads/agent/* options=ci.* pulls=write issues=write releases=write actions=write graphql=write"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := PresetWith("github", parameters)
	if err != nil {
		t.Fatal(err)
	}
	pasted, err := Parse("pasted", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	f, err := Parse("f", []byte("version: 1\nallow: [own.test]\npresets: [github: {repos: acme/app, push: [refs/heads/agent/*, refs/heads/x], create: refs/tags/v*, delete: refs/heads/agent/*, options: ci.*, pulls: write, issues: write, releases: write, actions: write, graphql: write}]"))
	if err != nil {
		t.Fatal(err)
	}
	words := func(all []policy.Rule) (lines []string) {
		for _, r := range all {
			lines = append(lines, r.ID+" "+r.Pattern.String()+" "+r.Conditions())
		}
		return lines
	}
	if got, want := words(f.Allow), append([]string{"allow[0] own.test "}, words(pasted.Allow)...); !slices.Equal(got, want) || len(want) < 12 {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestAPresetWithParametersGetsTheCredential(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\n"+onGitHub+"\ncredentials: [{for: github, from: {file: token}}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Allow {
		if r.ID == "github-git" && r.Credential == "github" {
			return
		}
	}
	t.Errorf("no rule has it: %+v", f.Allow)
}

func TestTwoPresetsOfOneName(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\npresets: [github: {repos: [acme/app]}, github: {repos: [acme/lib], pulls: write}]"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(f.Allow, func(r policy.Rule) bool { return r.ID == "github-2-pulls" }) {
		t.Errorf("%+v", f.Allow)
	}
}

func TestBadParametersOfPresets(t *testing.T) {
	for presets, want := range map[string]string{
		`[github: {}]`:                                                      "the preset github needs repos",
		`[github: {push: [refs/heads/x]}]`:                                  "the preset github needs repos",
		`[github: [acme/app]]`:                                              "presets[0].github is a list; write a mapping",
		`[github: {repos: [acme]}]`:                                         "is not the name of a repository",
		`[github: {repos: [a/b/c]}]`:                                        "has more than 2 parts",
		`[github: {repos: [acme/app], push: [main]}]`:                       "is not the full name of a ref",
		`[github: {repos: [acme/app], pulls: merge}]`:                       `pulls: "merge" is none of read, write`,
		`[github: {repos: [acme/app], pull: write}]`:                        `presets[0].github has no key "pull"; did you mean "pulls"?`,
		`[github: {repos: [acme/app], push: ["refs/heads/$x"]}]`:            "a value with $ cannot stand in a preset",
		`[github: {repos: [acme/app]}, github]`:                             "opens all of its hosts without; keep one",
		`[github: {repos: [acme/app], graphql: write}]`:                     "graphql: write changes nothing by itself",
		`[openai: {organizations: "org 1"}]`:                                `is not the id of an organization`,
		`[openai: {domains: [a.test]}]`:                                     `has no key "domains"`,
		`[anthropic: {hosted_tools: allow}]`:                                `is none of deny`,
		`[gemini-cli: {domains: ["*.test"]}]`:                               `is not the name of a domain`,
		`[npm: {repos: [acme/app]}]`:                                        `the preset "npm" has no parameters; anthropic, gemini-cli, github, gitlab, openai have some`,
		`[{github: {repos: [a/b]}, gitlab: {repos: [a/b]}}]`:                "presets[0] has several keys",
		`[gitlab: {repos: [a/b], projects: ["4/5"]}]`:                       "is not the number of a project",
		"[github: {repos: [a/b]}]\nallow: [{host: a.test, id: github-git}]": "github-git",
	} {
		if _, err := Parse("f", []byte("version: 1\npresets: "+presets)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", presets, err)
		}
	}
}

// TestAPresetForLargeFiles asks for what GitHub's answers name.
func TestAPresetForLargeFiles(t *testing.T) {
	with := compiled(t, `presets: [github: {repos: [acme/app], push: ["refs/heads/agent/*"], lfs: true}]`, inspecting)
	without := compiled(t, `presets: [github: {repos: [acme/app], push: ["refs/heads/agent/*"]}]`, inspecting)
	for _, host := range []string{"github-cloud.s3.amazonaws.com", "github-cloud.githubusercontent.com", "lfs.github.com"} {
		for repo, want := range map[string]bool{"acme/app": true, "acme/other": false, "": false} {
			r := asking(t, "PUT https://"+host+"/alambic/media/1?actor_id=15")
			if repo != "" {
				r.HTTP.LFS = &policy.LFSAction{Server: "github.com:443", Repo: repo, Name: "upload", Size: 3}
			}
			r.HTTP.BodySize = 3
			if d := with.Decide(t.Context(), r); (d.Verdict == policy.Allow) != want {
				t.Errorf("%s for %q: %s", host, repo, saying(d))
			}
			if d := without.Decide(t.Context(), r); d.Verdict == policy.Allow {
				t.Errorf("%s for %q, without lfs: %s", host, repo, saying(d))
			}
		}
	}
	if _, err := PresetWith("github", map[string][]string{"repos": {"acme/app"}, "lfs": {"false"}}); err == nil {
		t.Error("lfs: false is taken")
	}
}
