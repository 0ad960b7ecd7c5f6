package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

const (
	ghToken  = "ghp_REALsecretREALsecretREALsecret"
	ghPolicy = `version: 1
presets:
  - github: {repos: [acme/app], push: ["refs/heads/agent/*"], pulls: write, issues: write, releases: write, graphql: write}
credentials:
  - {for: github, from: {file: real.token}}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`
)

// A hub is a server that does what gh asks for, for whoever has the real token, in every repository. It keeps what it did.
type hub struct {
	mu    sync.Mutex
	did   []string
	tests *testing.T
}

// repos are the repositories of the hub, by the letters behind the kind in their node ids.
var repos = map[string]string{"app": "Acme/App", "other": "acme/other", "fork": "evil/app"}

func (h *hub) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, what)
}

func (h *hub) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	did := h.did
	h.did = nil
	return did
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); got != "token "+ghToken && got != "Bearer "+ghToken {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"message":"Bad credentials"}`)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Oauth-Scopes", "repo")
	switch {
	case r.URL.Path == "/graphql":
		h.graphql(w, r)
	case r.URL.Path == "/repos/acme/renamed": // as GitHub answers for a repository that has moved
		http.Redirect(w, r, "https://api.github.com/repositories/42", http.StatusMovedPermanently)
	case strings.Contains(r.URL.Path, "/releases/tags/"):
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"message":"Not Found"}`)
	case r.Method == http.MethodGet:
		io.WriteString(w, `{"id":1,"number":1,"name":"app","login":"agent","full_name":"acme/app"}`)
	default:
		io.Copy(io.Discard, r.Body)
		h.note(r.Method + " " + r.Host + r.URL.Path)
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"id":5,"url":"https://api.github.com/repos/acme/app/releases/5","html_url":"https://github.com/acme/app/releases/v1","upload_url":"https://uploads.github.com/repos/acme/app/releases/5/assets{?name,label}"}`)
	}
}

func (h *hub) graphql(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Query     string
		Variables struct {
			Owner, Name, Repo string
			IDs               []string
			Input             map[string]any
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		h.tests.Errorf("the hub got %v", err)
	}
	if strings.Contains(q.Query, "nodes(ids:$ids)") {
		var nodes []string
		for _, id := range q.Variables.IDs {
			kind, of, _ := strings.Cut(id, "_")
			switch {
			case repos[of] == "" && kind != "U" && kind != "BOT":
				nodes = append(nodes, "null")
			case kind == "U" || kind == "BOT":
				nodes = append(nodes, fmt.Sprintf(`{"__typename":%q}`, map[string]string{"U": "User", "BOT": "Bot"}[kind]))
			case kind == "R":
				nodes = append(nodes, fmt.Sprintf(`{"__typename":"Repository","self":%q}`, repos[of]))
			default:
				nodes = append(nodes, fmt.Sprintf(`{"__typename":"Issue","of":{"nameWithOwner":%q}}`, repos[of]))
			}
		}
		fmt.Fprintf(w, `{"data":{"nodes":[%s]}}`, strings.Join(nodes, ","))
		return
	}
	of := "other"
	for id, name := range repos {
		if strings.EqualFold(name, q.Variables.Owner+"/"+q.Variables.Name+q.Variables.Repo) {
			of = id
		}
	}
	if strings.Contains(strings.TrimSpace(q.Query)+" ", "mutation") {
		h.note(fmt.Sprint("mutation ", q.Variables.Input))
		answers := map[string]string{
			"createPullRequest": `{"pullRequest":{"id":"PR_app","url":"https://github.com/acme/app/pull/1"}}`, "createIssue": `{"issue":{"id":"I_app","url":"https://github.com/acme/app/issues/1"}}`,
			"addComment": `{"commentEdge":{"node":{"url":"https://github.com/acme/app/issues/1#x"}}}`, "closeIssue": `{"issue":{"id":"I_app"}}`,
		}
		for name, answer := range answers {
			if strings.Contains(q.Query, name) {
				fmt.Fprintf(w, `{"data":{%q:%s}}`, name, answer)
				return
			}
		}
		io.WriteString(w, `{"data":{}}`)
		return
	}
	owner, name, _ := strings.Cut(repos[of], "/")
	thing := `"id":"%s_` + of + `","author":{"login":"agent"},"state":"OPEN","url":"https://github.com/acme/app/issues/1","title":"t","number":1`
	var answers []string // to what was asked for: gh takes nothing else
	for asked, answer := range map[string]string{
		"viewer":     `"viewer":{"login":"agent","id":"U_agent"}`,
		"repository": `"repository":{"id":"R_` + of + `","name":"` + name + `","owner":{"login":"` + owner + `"},"hasIssuesEnabled":true,"viewerPermission":"WRITE","defaultBranchRef":{"name":"main"},"mergeCommitAllowed":true,"pullRequests":{"nodes":[]},"pullRequest":{"headRefName":"agent/x","mergeable":"MERGEABLE","mergeStateStatus":"CLEAN",` + fmt.Sprintf(thing, "PR") + `},"issue":{"__typename":"Issue",` + fmt.Sprintf(thing, "I") + `}}`,
	} {
		if regexp.MustCompile(`[{\s:]` + asked + `\s*[({]`).MatchString(q.Query) {
			answers = append(answers, answer)
		}
	}
	for _, asked := range regexp.MustCompile(`(\w+)\s*:\s*__type`).FindAllStringSubmatch(q.Query, -1) {
		answers = append(answers, fmt.Sprintf(`%q:{"fields":[]}`, asked[1]))
	}
	for asked, node := range map[string]string{ // lists of the repository, for which gh takes nothing else
		"assignableUsers": `{"id":"U_monalisa","login":"monalisa","name":"Mona"},{"id":"BOT_agent","login":"copilot-swe-agent","name":""}`,
		"suggestedActors": `{"__typename":"User","id":"U_monalisa","login":"monalisa","name":"Mona"},{"__typename":"Bot","id":"BOT_agent","login":"copilot-swe-agent"}`,
		"labels":          `{"id":"LA_` + of + `","name":"bug"}`,
		"releases":        `{"name":"v1","tagName":"v1","isLatest":true,"isDraft":false,"isPrerelease":false,"createdAt":"2026-11-29T00:00:00Z","publishedAt":"2026-11-29T00:00:00Z"}`,
	} {
		if regexp.MustCompile(`repository\([^)]*\)\s*\{\s*` + asked + `\(`).MatchString(q.Query) {
			answers = []string{`"repository":{"` + asked + `":{"nodes":[` + node + `],"pageInfo":{"hasNextPage":false,"endCursor":""}}}`}
		}
	}
	fmt.Fprintf(w, `{"data":{%s}}`, strings.Join(answers, ","))
}

// startHub starts egressd before a hub. It returns the folder of the sandbox, with the placeholders in the file vars, and the
// folder of the repositories at github.com.
func startHub(t *testing.T, policy string, secrets map[string]string) (d *world.Daemon, h *hub, dir, served string) {
	t.Helper()
	d = world.NewDaemon(t, policy)
	for name, secret := range secrets {
		d.PutFile(t, name, secret+"\n")
	}
	d.World.Zone.Delegate("com", func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(world.AllowedIPv4)}}
		}
		return m
	})
	t.Cleanup(func() { d.World.Zone.Delegate("com", nil) })
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	h = &hub{tests: t}
	for _, host := range []string{"api.github.com", "uploads.github.com"} {
		d.World.Origin.Sites.Store(host, h)
		t.Cleanup(func() { d.World.Origin.Sites.Delete(host) })
	}
	served = t.TempDir()
	for _, name := range []string{"Acme/App", "acme/other"} {
		if err := os.Mkdir(filepath.Join(served, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		world.MakeRepository(t, filepath.Join(served, name+".git"))
	}
	d.World.Origin.ServeRepositories(t, "github.com", served)
	site, _ := d.World.Origin.Sites.Load("github.com")
	d.World.Origin.Sites.Store("github.com", world.Whole(site.(http.Handler)))
	t.Cleanup(func() { d.World.Origin.Sites.Delete("github.com") })
	exported, err := exec.Command(world.Egressd.Path(), "env", "--config", d.Config).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, exported)
	}
	for _, secret := range secrets {
		if strings.Contains(string(exported), secret) {
			t.Fatalf("the sandbox gets a secret: %s", exported)
		}
	}
	var variables []string
	for line := range strings.Lines(string(exported)) {
		if strings.Contains(line, "EGRESSD") {
			variables = append(variables, line)
		}
	}
	dir = t.TempDir()
	for name, text := range map[string]string{"vars": strings.Join(variables, ""), "file": "of a release"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d, h, dir, served
}

// TestGHWorksInOneRepository runs gh against a hub that would do everything.
func TestGHWorksInOneRepository(t *testing.T) {
	d, h, dir, _ := startHub(t, ghPolicy, map[string]string{"real.token": ghToken})
	ca := d.AuthorityFile()
	for _, row := range ghRows {
		t.Run(row.says, func(t *testing.T) {
			h.took()
			mark := d.LogMark(t)
			out, err := d.Shell(dir, ca, "set -a; . ./vars; export SSL_CERT_FILE=$LAB_CA GH_CONFIG_DIR=$PWD/gh GH_NO_UPDATE_NOTIFIER=1 GH_PROMPT_DISABLED=1 NO_COLOR=1; "+row.command)
			did := strings.Join(h.took(), "\n")
			if (err == nil) != (row.class == "") || !strings.Contains(did, row.did) || row.did == "" && did != "" || !strings.Contains(out, row.prints) || strings.Contains(out, ghToken) {
				t.Errorf("%v, printed %q, did %q", err, out, did)
			}
			if row.class == "" {
				d.NothingRefused(t, mark)
			} else {
				records, _ := d.Log.Since(mark)
				var classes []string
				for _, r := range records {
					classes = append(classes, string(r.Outcome)) // of what was refused after it was allowed
					if r.Decision != nil {
						classes = append(classes, r.Decision.Class)
					}
				}
				if !slices.Contains(classes, string(row.class)) {
					t.Errorf("the log has %q, want %s", classes, row.class)
				}
			}
		})
	}
}

// ghRows are commands, and what becomes of them.
var ghRows = []struct {
	says, command string
	did           string // by the hub, or ""
	class         policy.Class
	prints        string
}{
	{"a pull request", "gh pr create -R acme/app --head agent/x --base main --title t --body b", "repositoryId:R_app", "", "https://github.com/acme/app/pull/1"},
	{"an issue", "gh issue create -R acme/app --title t --body b", "repositoryId:R_app", "", "https://github.com/acme/app/issues/1"},
	{"a comment", "gh issue comment 1 -R acme/app --body b", "subjectId:I_app", "", ""},
	{"a closed issue", "gh issue close 1 -R acme/app", "issueId:I_app", "", ""},
	{"a release", "gh release create v1 -R acme/app --title t --notes n", "POST api.github.com/repos/acme/app/releases", "", "https://github.com/acme/app/releases/v1"},
	{"a release with a file", "gh release create v1 file -R acme/app --title t --notes n", "POST uploads.github.com/repos/acme/app/releases/5/assets", "", ""},
	{"reading REST", "gh api repos/acme/app", "", "", "full_name"},
	{"reading GraphQL", "gh api graphql -f query='query{viewer{login}}'", "", "", "agent"},

	{"a pull request elsewhere", "gh pr create -R evil/app --head agent/x --base main --title t --body b", "", policy.GraphQLDenied, "GraphQL: Blocked by egressd"},
	{"an issue elsewhere", "gh issue create -R acme/other --title t --body b", "", policy.GraphQLDenied, "another repository"},
	{"a comment elsewhere", "gh issue comment 1 -R acme/other --body b", "", policy.GraphQLDenied, "another repository"},
	{"a merge", `gh api graphql -f query='mutation{mergePullRequest(input:{pullRequestId:"PR_app"}){clientMutationId}}'`, "", policy.GraphQLDenied, "mergePullRequest"},
	{"an alias", `gh api graphql -f query='mutation{addComment:deleteIssue(input:{issueId:"I_app"}){clientMutationId}}'`, "", policy.GraphQLDenied, "deleteIssue"},
	{"an id elsewhere", `gh api graphql -f query='mutation($i:ID!){addComment(input:{subjectId:$i,body:"x"}){clientMutationId}}' -f i=I_fork`, "", policy.GraphQLDenied, "another repository"},
	{"a gist", "echo x | gh gist create -", "", policy.PathDenied, "this path"},
	{"a fork", "gh api -X POST repos/acme/app/forks", "", policy.PathDenied, "this path"},
	{"a repository", "gh repo create new --private", "", policy.GraphQLDenied, ""},
	{"another repository by name", "gh api repos/acme/other", "", policy.PathDenied, "this path"},
	{"by its old name", "gh api repos/acme/renamed", "", policy.PathDenied, "this path"},
	{"by its number", "gh api repositories/42", "", policy.PathDenied, "this path"},
	{"a release elsewhere", "gh release create v1 -R acme/other --title t --notes n", "", policy.PathDenied, "this path"},
	{"a secret", "gh api -X PUT repos/acme/app/actions/secrets/X -f encrypted_value=x", "", policy.MethodDenied, "PUT"},
	{"a review", "gh pr review 1 -R acme/app --comment --body b", "pullRequestId:PR_app", "", ""},
	{"a new title", "gh issue edit 1 -R acme/app --title n", "id:I_app", "", ""},
	{"an assignee", "gh issue edit 1 -R acme/app --add-assignee monalisa", "U_monalisa", "", ""},
	{"an agent as assignee", "gh issue edit 1 -R acme/app --add-assignee @copilot || gh issue edit 1 -R acme/app --add-assignee copilot-swe-agent", "", policy.GraphQLDenied, "no repository that the server names"},
	{"a label", "gh issue edit 1 -R acme/app --add-label bug", "LA_app", "", ""},
	{"a closed pull request", "gh pr close 1 -R acme/app", "pullRequestId:PR_app", "", ""},
	{"a draft", "gh pr ready 1 --undo -R acme/app", "pullRequestId:PR_app", "", ""},
	{"the repository", "gh repo view acme/app --json name", "", "", "App"},
	{"pull requests", "gh pr list -R acme/app", "", "", ""},
	{"a pull request to read", "gh pr view 1 -R acme/app --json title", "", "", "title"},
	{"issues", "gh issue list -R acme/app", "", "", ""},
	{"releases", "gh release list -R acme/app", "", "", ""},
	{"runs", "gh run list -R acme/app", "", "", ""},
	{"a clone", "export GIT_SSL_CAINFO=$LAB_CA; rm -rf App; gh repo clone acme/app && ls App/.git/HEAD", "", "", "HEAD"},
	{"a clone of another", "export GIT_SSL_CAINFO=$LAB_CA; gh repo clone acme/other", "", policy.GitDenied, ""},

	{"merging", "gh pr merge 1 --merge -R acme/app", "", policy.GraphQLDenied, "mergePullRequest"},
	{"a review elsewhere", "gh pr review 1 -R evil/app --approve", "", policy.GraphQLDenied, "another repository"},
	{"forking", "gh repo fork acme/app --clone=false", "", policy.PathDenied, ""},
	{"a transfer", "gh issue transfer 1 evil/app -R acme/app", "", policy.GraphQLDenied, "transferIssue"},
	{"a deleted issue", "gh issue delete 1 -R acme/app --yes", "", policy.GraphQLDenied, "deleteIssue"},
	{"a locked issue", "gh issue lock 1 -R acme/app", "", policy.GraphQLDenied, "lockLockable"},
	{"a branch of an issue", `gh api graphql -f query='mutation{createLinkedBranch(input:{issueId:"I_app",oid:"x"}){clientMutationId}}'`, "", policy.GraphQLDenied, "createLinkedBranch"},
	{"a new label", "gh label create x -R acme/app", "", policy.PathDenied, ""},
	{"an edited repository", "gh repo edit acme/app --visibility public --accept-visibility-change-consequences || gh repo edit acme/app --visibility public", "", policy.PathDenied, ""},
	{"a deleted repository", "gh repo delete acme/app --yes || gh repo delete acme/app --confirm", "", policy.MethodDenied, ""},
	{"a workflow", "gh workflow run 1 -R acme/app", "", policy.PathDenied, ""},
	{"a search", "gh search issues x", "", policy.PathDenied, "this path"},
	{"a key", "gh api -X POST user/keys -f key=x -f title=x", "", policy.PathDenied, ""},
	{"a token of its own", "GH_TOKEN=ghp_foreign gh api repos/acme/app", "", policy.CredentialRefused, "not the placeholder"},
}
