package file

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// nodesOfLab is what the server would say.
var nodesOfLab = map[string]policy.Node{
	"R_app": {Repo: "acme/app"}, "PR_app": {Repo: "acme/app"}, "LA_app": {Repo: "acme/app"}, "R_evil": {Repo: "evil/app"}, "PR_evil": {Repo: "evil/app"},
	"U_me": {Person: true}, "BOT_agent": {}, "MDEwOlJlcG9zaXRvcnkxMjM0": {Repo: "acme/app"}, "MDEwOlJlcG9zaXRvcnkxMg==": {Repo: "acme/apps"}, "W_app": {Repo: "acme/app.wiki"},
}

// graphqlBody is the body of a request for a document.
func graphqlBody(t *testing.T, document string, variables any) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": document, "variables": variables})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestGraphQL(t *testing.T) {
	p := compiled(t, `allow: [{host: api.github.com, methods: [POST], paths: [/graphql], id: graph, graphql: {query: [repository, viewer, search, __type], mutation: [createPullRequest, addComment, addPullRequestReview, requestReviews, requestReviewsByLogin, replaceActorsForAssignable, createIssue], repos: [Acme/App]}}]`, inspecting)
	// As gh 2.23 sends it.
	const ghCreate = "\n\t\tmutation PullRequestCreate($input: CreatePullRequestInput!) {\n\t\t\tcreatePullRequest(input: $input) {\n\t\t\t\tpullRequest {\n\t\t\t\t\tid\n\t\t\t\t\turl\n\t\t\t\t}\n\t\t\t}\n\t}"
	inputOf := func(pairs ...any) map[string]any {
		input := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			input[pairs[i].(string)] = pairs[i+1]
		}
		return map[string]any{"input": input}
	}
	comment := func(id string) string {
		return `mutation{addComment(input:{subjectId:` + id + `,body:"x"}){clientMutationId}}`
	}
	for _, row := range []struct {
		says, body string
		asks       []string // of the server; nil for a body that it is not asked about
		allow      bool
	}{
		{"gh pr create", graphqlBody(t, ghCreate, inputOf("title", "t", "body", "b", "draft", false, "baseRefName", "main", "headRefName", "agent/x", "repositoryId", "R_app", "maintainerCanModify", true)), []string{"R_app"}, true},
		{"the same in another repository", graphqlBody(t, ghCreate, inputOf("title", "t", "repositoryId", "R_evil", "headRefName", "x", "baseRefName", "y")), []string{"R_evil"}, false},
		{"a foreign head", graphqlBody(t, ghCreate, inputOf("title", "t", "repositoryId", "R_app", "headRepositoryId", "R_evil")), []string{"R_app", "R_evil"}, false},
		{"an old id", graphqlBody(t, ghCreate, inputOf("repositoryId", "MDEwOlJlcG9zaXRvcnkxMjM0")), []string{"MDEwOlJlcG9zaXRvcnkxMjM0"}, true},
		{"an old id of a longer name", graphqlBody(t, ghCreate, inputOf("repositoryId", "MDEwOlJlcG9zaXRvcnkxMg==")), []string{"MDEwOlJlcG9zaXRvcnkxMg=="}, false},
		{"the wiki", graphqlBody(t, ghCreate, inputOf("repositoryId", "W_app")), []string{"W_app"}, false},
		{"an id that the server does not know", graphqlBody(t, ghCreate, inputOf("repositoryId", "R_none")), []string{"R_none"}, false},
		{"an assignee", graphqlBody(t, `mutation($input:CreateIssueInput!){createIssue(input:$input){clientMutationId}}`, inputOf("repositoryId", "R_app", "title", "t", "assigneeIds", []string{"U_me"}, "labelIds", []string{"LA_app"})), []string{"LA_app", "R_app", "U_me"}, true},
		{"an agent as assignee", graphqlBody(t, `mutation($input:CreateIssueInput!){createIssue(input:$input){clientMutationId}}`, inputOf("repositoryId", "R_app", "assigneeIds", []string{"BOT_agent"})), []string{"BOT_agent", "R_app"}, false},
		{"a person for a label", graphqlBody(t, `mutation($input:CreateIssueInput!){createIssue(input:$input){clientMutationId}}`, inputOf("repositoryId", "R_app", "labelIds", []string{"U_me"})), []string{"R_app", "U_me"}, false},
		{"no id", graphqlBody(t, ghCreate, inputOf("title", "t")), nil, true}, // which the server refuses
		{"a null id", graphqlBody(t, ghCreate, inputOf("repositoryId", nil)), nil, true},
		{"a literal", graphqlBody(t, comment(`"PR_app"`), nil), []string{"PR_app"}, true},
		{"a foreign literal", graphqlBody(t, comment(`"PR_evil"`), nil), []string{"PR_evil"}, false},
		{"an escaped literal", graphqlBody(t, comment(`"PR\u005fevil"`), nil), []string{"PR_evil"}, false},
		{"a list for one", graphqlBody(t, comment(`["PR_app" "PR_evil"]`), nil), []string{"PR_app", "PR_evil"}, false},
		{"a default", graphqlBody(t, `mutation($id:ID="PR_evil"){addComment(input:{subjectId:$id,body:"x"}){clientMutationId}}`, nil), []string{"PR_evil"}, false},
		{"a variable over a default", graphqlBody(t, `mutation($id:ID="PR_evil"){addComment(input:{subjectId:$id,body:"x"}){clientMutationId}}`, map[string]string{"id": "PR_app"}), []string{"PR_app"}, true},
		{"an object for an id", graphqlBody(t, comment(`{id:"PR_app"}`), nil), nil, false},
		{"a number for an id", graphqlBody(t, comment(`7`), nil), nil, false},
		{"a word for an id", graphqlBody(t, comment(`PR_app`), nil), nil, false},
		{"an id with a space", graphqlBody(t, comment(`"PR_app "`), nil), nil, false},
		{"an empty id", graphqlBody(t, comment(`""`), nil), nil, false},
		{"two mutations, one foreign", graphqlBody(t, `mutation{a:addComment(input:{subjectId:"PR_app",body:"x"}){clientMutationId} b:addComment(input:{subjectId:"PR_evil",body:"x"}){clientMutationId}}`, nil), []string{"PR_app", "PR_evil"}, false},
		{"a member that is not known", graphqlBody(t, ghCreate, inputOf("repositoryId", "R_app", "targetRepositoryNameWithOwner", "evil/x")), nil, false},
		{"the arguments of an agent", graphqlBody(t, `mutation($input:CreateIssueInput!){createIssue(input:$input){clientMutationId}}`, inputOf("repositoryId", "R_app", "agentAssignment", map[string]string{"targetRepositoryId": "R_evil"})), nil, false},
		{"an object for a text", graphqlBody(t, ghCreate, inputOf("repositoryId", "R_app", "title", map[string]string{"id": "R_evil"})), nil, false},
		{"another argument", graphqlBody(t, `mutation{addComment(input:{subjectId:"PR_app",body:"x"},on:"PR_evil"){clientMutationId}}`, nil), nil, false},
		{"no input", graphqlBody(t, `mutation{addComment{clientMutationId}}`, nil), nil, false},
		{"the comments of a review", graphqlBody(t, `mutation{addPullRequestReview(input:{pullRequestId:"PR_app",event:COMMENT,threads:[{path:"a",line:1,body:"x"}]}){clientMutationId}}`, nil), []string{"PR_app"}, true},
		{"an id among the comments", graphqlBody(t, `mutation{addPullRequestReview(input:{pullRequestId:"PR_app",threads:[{path:"a",threadId:"PR_evil"}]}){clientMutationId}}`, nil), nil, false},
		{"a list among the comments", graphqlBody(t, `mutation{addPullRequestReview(input:{pullRequestId:"PR_app",threads:[[{path:"a"}]]}){clientMutationId}}`, nil), nil, false},
		{"a team", graphqlBody(t, `mutation{requestReviews(input:{pullRequestId:"PR_app",userIds:["U_me"],union:true}){clientMutationId}}`, nil), []string{"PR_app", "U_me"}, true},
		{"logins", graphqlBody(t, `mutation($l:[String!]){replaceActorsForAssignable(input:{assignableId:"PR_app",actorLogins:$l}){__typename}}`, map[string]any{"l": []string{"monalisa", "octo_corp", "a-b"}}), []string{"PR_app"}, true},
		{"the login of a bot", graphqlBody(t, `mutation($l:[String!]){replaceActorsForAssignable(input:{assignableId:"PR_app",actorLogins:$l}){__typename}}`, map[string]any{"l": []string{"monalisa", "copilot-swe-agent[bot]"}}), nil, false},
		{"an agent by its login", graphqlBody(t, `mutation{replaceActorsForAssignable(input:{assignableId:"PR_app",actorLogins:"Copilot"}){__typename}}`, nil), nil, false},
		{"an agent with a task", graphqlBody(t, `mutation{replaceActorsForAssignable(input:{assignableId:"PR_app",agentAssignment:{customInstructions:"x"}}){__typename}}`, nil), nil, false},
		{"reviewers by login", graphqlBody(t, `mutation{requestReviewsByLogin(input:{pullRequestId:"PR_app",userLogins:["monalisa"],teamSlugs:["acme/core"],union:true}){__typename}}`, nil), []string{"PR_app"}, true},
		{"a bot among them", graphqlBody(t, `mutation{requestReviewsByLogin(input:{pullRequestId:"PR_app",userLogins:["x[bot]"]}){__typename}}`, nil), nil, false},
		{"bots beside them", graphqlBody(t, `mutation{requestReviewsByLogin(input:{pullRequestId:"PR_app",botLogins:["copilot-pull-request-reviewer"]}){__typename}}`, nil), nil, false},
		{"a bot", graphqlBody(t, `mutation{requestReviews(input:{pullRequestId:"PR_app",botIds:["BOT_agent"]}){clientMutationId}}`, nil), nil, false},
		{"a text with any words", graphqlBody(t, comment(`"PR_app"`)+` # mutation{deleteIssue}`, nil), []string{"PR_app"}, true},

		{"a query", graphqlBody(t, `query{viewer{login} repository(owner:"evil",name:"x"){id} __typename}`, nil), nil, true},
		{"a query for what is not listed", graphqlBody(t, `{node(id:"R_app"){id}}`, nil), nil, false},
		{"an alias of a listed one", graphqlBody(t, `{viewer:node(id:"R_app"){id}}`, nil), nil, false},
		{"another mutation", graphqlBody(t, `mutation{mergePullRequest(input:{pullRequestId:"PR_app"}){clientMutationId}}`, nil), nil, false},
		{"another under the alias of a listed one", graphqlBody(t, `mutation{addComment:deleteIssue(input:{issueId:"PR_app"}){clientMutationId}}`, nil), nil, false},
		{"a query and a mutation, and the name of the query", `{"query":"query Q{viewer{login}} mutation M{deleteIssue(input:{issueId:\"x\"}){clientMutationId}}","operationName":"Q"}`, nil, false},
		{"a listed query as a mutation", graphqlBody(t, `mutation{viewer{login}}`, nil), nil, false},
		{"a listed mutation as a query", graphqlBody(t, `{addComment(input:{subjectId:"PR_app"}){clientMutationId}}`, nil), nil, false},
		{"a subscription", graphqlBody(t, `subscription{viewer{login}}`, nil), nil, false},
		{"a subscription to nothing", graphqlBody(t, `subscription{__typename}`, nil), nil, false},
		{"introspection that is listed", graphqlBody(t, `query PullRequest_fields{PullRequest:__type(name:"PullRequest"){fields{name}}}`, nil), nil, true},
		{"introspection that is not", graphqlBody(t, `{__schema{types{name}}}`, nil), nil, false},
		{"a batch", "[" + graphqlBody(t, `{viewer{login}}`, nil) + "]", nil, false},
		{"a persisted query", `{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"00"}}}`, nil, false},
		{"a persisted query beside one", `{"query":"{viewer{login}}","extensions":{"persistedQuery":{"version":1,"sha256Hash":"00"}}}`, nil, false},
		{"an id of a stored one", `{"query":"{viewer{login}}","id":"x"}`, nil, false},
		{"QUERY beside query", `{"query":"{viewer{login}}","QUERY":"mutation{x}"}`, nil, false},
		{"query twice", `{"query":"{viewer{login}}","qu\u0065ry":"mutation{x}"}`, nil, false},
		{"variables as a text", `{"query":"{viewer{login}}","variables":"{}"}`, nil, false},
		{"null variables", `{"query":"{viewer{login}}","variables":null,"operationName":null}`, nil, true},
		{"a query as a list", `{"query":["{viewer{login}}"]}`, nil, false},
		{"an operation name as an object", `{"query":"{viewer{login}}","operationName":{}}`, nil, false},
		{"no query", `{"variables":{}}`, nil, false},
		{"no JSON", `query=mutation{x}`, nil, false},
		{"many ids", graphqlBody(t, `mutation{`+strings.Repeat(`addComment(input:{subjectId:"PR_app"}){clientMutationId} `, 101)+`}`, nil), nil, false},
		{"many variables", graphqlBody(t, `{viewer{login}}`, map[string]any{"a": make([]int, 10_001)}), nil, false},
	} {
		r := posting(t, "POST https://api.github.com/graphql", "application/json; charset=utf-8", row.body)
		d := p.Decide(context.Background(), r)
		if (d.Verdict == policy.Inspect) != (row.asks != nil) || d.Verdict == policy.Inspect && d.Needs != policy.NeedsNodes {
			t.Errorf("%s: at first %s, needs %b, asks %q", row.says, saying(d), d.Needs, r.HTTP.UnknownNodes())
		}
		asks := r.HTTP.UnknownNodes()
		slices.Sort(asks)
		if !slices.Equal(asks, row.asks) {
			t.Errorf("%s: asks %q, want %q", row.says, asks, row.asks)
		}
		if row.asks != nil {
			r.HTTP.Nodes = map[string]policy.Node{}
			for _, id := range asks {
				r.HTTP.Nodes[id] = nodesOfLab[id]
			}
			d = p.Decide(context.Background(), r)
		}
		if want := policy.GraphQLDenied; (d.Verdict == policy.Allow) != row.allow || !row.allow && d.Class != want {
			t.Errorf("%s: %s, %s", row.says, saying(d), d.Reason)
		}
	}
}

// TestGraphQLByTheHead: what else of a request can name a document.
func TestGraphQLByTheHead(t *testing.T) {
	p := compiled(t, `allow: [{host: a.test, id: graph, graphql: {query: any}}]`, inspecting)
	good := graphqlBody(t, `{anything{login}}`, nil)
	for _, row := range []struct {
		ask, kind, header string
		allow             bool
	}{
		{"POST https://a.test/graphql", "application/json", "", true},
		{"POST https://a.test/graphql?query=mutation{x}", "application/json", "", false},
		{"POST https://a.test/graphql?operationName=M", "application/json", "", false},
		{"GET https://a.test/graphql?query={viewer{login}}", "application/json", "", false},
		{"PUT https://a.test/graphql", "application/json", "", false},
		{"POST https://a.test/graphql", "application/graphql", "", false},
		{"POST https://a.test/graphql", "text/plain", "", false},
		{"POST https://a.test/graphql", "application/x-www-form-urlencoded", "", false},
		{"POST https://a.test/graphql", "multipart/form-data; boundary=x", "", false},
	} {
		r := posting(t, row.ask, row.kind, good)
		if d := p.Decide(context.Background(), r); (d.Verdict == policy.Allow) != row.allow || !row.allow && d.Class != policy.GraphQLDenied {
			t.Errorf("%s of %s: %s", row.ask, row.kind, saying(d))
		}
	}
	if d := p.Decide(context.Background(), posting(t, "POST https://a.test/graphql", "application/json", graphqlBody(t, `mutation{x}`, nil))); d.Class != policy.GraphQLDenied {
		t.Errorf("a mutation where none is listed: %s", saying(d))
	}
}

// TestAnyServerOfGraphQL: without repos, no id is looked at.
func TestAnyServerOfGraphQL(t *testing.T) {
	p := compiled(t, `allow: [{host: a.test, graphql: {mutation: [ping]}}]`, inspecting)
	for document, allow := range map[string]bool{`mutation{ping(any:{id:"x"},other:[1])}`: true, `mutation{ping pong}`: false, `{ping}`: false, `mutation{...{ping} __typename}`: true} {
		if d := p.Decide(context.Background(), posting(t, "POST https://a.test/x", "application/json", graphqlBody(t, document, nil))); (d.Verdict == policy.Allow) != allow {
			t.Errorf("%s: %s", document, saying(d))
		}
	}
}

// TestNodesOfTwoRules: each rule has repositories of its own, and the answers decide which of them lets a request.
func TestNodesOfTwoRules(t *testing.T) {
	p := compiled(t, "presets: [github: {repos: [acme/lib], pulls: write, graphql: write}, github: {repos: [acme/app], pulls: write, graphql: write}]\n"+
		`deny: [{host: api.github.com, methods: [DELETE]}]`, inspecting)
	for id, rule := range map[string]string{"R_app": "github-2-graphql", "R_evil": ""} {
		r := posting(t, "POST https://api.github.com/graphql", "application/json", graphqlBody(t, `mutation{createPullRequest(input:{repositoryId:"`+id+`"}){clientMutationId}}`, nil))
		for range 2 {
			if d := p.Decide(context.Background(), r); d.Verdict != policy.Inspect && (d.Rule != rule && rule != "" || (d.Verdict == policy.Allow) != (rule != "")) {
				t.Errorf("%s: %s", id, saying(d))
			}
			r.HTTP.Nodes = nodesOfLab
		}
		if says := r.HTTP.Body.Says(); rule != "" && !slices.Equal(says, []string{"graphql mutation createPullRequest", "graphql in acme/app"}) {
			t.Errorf("%s: says %q", id, says)
		}
	}
}

// TestACeilingWithGraphQL: a layer that opens nothing has the ids asked for, too.
func TestACeilingWithGraphQL(t *testing.T) {
	p := compiled(t, "sandboxes: [{name: a, token_file: a.token, allow: [{host: api.github.com, graphql: {mutation: [addComment], repos: [acme/app]}}]}]\nallow: [api.github.com]", inspecting)
	for id, allow := range map[string]bool{"PR_app": true, "PR_evil": false} {
		r := posting(t, "POST https://api.github.com/graphql", "application/json", graphqlBody(t, `mutation{addComment(input:{subjectId:"`+id+`"}){clientMutationId}}`, nil))
		r.Sandbox.Name = "a"
		if d := p.Decide(context.Background(), r); d.Verdict != policy.Inspect {
			t.Errorf("%s: %s at first", id, saying(d))
		}
		r.HTTP.Nodes = nodesOfLab
		if d := p.Decide(context.Background(), r); (d.Verdict == policy.Allow) != allow {
			t.Errorf("%s: %s", id, saying(d))
		}
	}
}

func TestBadGraphQL(t *testing.T) {
	for rule, want := range map[string]string{
		`graphql: [query]`:                                             "allow[0].graphql is a list; write a mapping",
		`graphql: {}`:                                                  "allow[0].graphql lists nothing",
		`graphql: {quer: any}`:                                         `allow[0].graphql has no key "quer"; did you mean "query"?`,
		`graphql: {query: some}`:                                       "allow[0].graphql.query",
		`graphql: {query: [a-b]}`:                                      "is not the name of a field",
		`graphql: {query: any, repos: [acme/app]}`:                     "there is none",
		`graphql: {mutation: [createRef], repos: [acme/app]}`:          "egressd does not know what the mutation createRef names by id",
		`graphql: {mutation: [mergePullRequest], repos: [acme/app]}`:   "egressd does not know",
		`graphql: {mutation: [addComent], repos: [acme/app]}`:          `did you mean "addComment"?`,
		`graphql: {mutation: [addComment], repos: [acme]}`:             "is not the name of a repository",
		`graphql: {query: any}, tls: any`:                              "allow[0] has graphql, which needs requests that can be seen",
		`id: x}], deny: [{host: a.test, graphql: {query: any}}], a: [`: "stands in allow alone",
	} {
		_, err := Parse("f", []byte("version: 1\nallow: [{host: a.test, "+rule+"}]"))
		if strings.Contains(rule, "deny") {
			_, err = Parse("f", []byte("version: 1\ndeny: [{host: a.test, graphql: {query: any}}]"))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// TestAMutationThatNoTableHasIsRefused asks for each mutation of GitHub's public schema, and for ones that it does not have.
func TestAMutationThatNoTableHasIsRefused(t *testing.T) {
	text, err := os.ReadFile("../../internal/githubapi/testdata/mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	p := compiled(t, "presets: [github: {repos: [acme/app], pulls: write, issues: write, graphql: write}]", inspecting)
	names, refused := []string{"addcomment", "addComment2", "_addComment", "madeUp"}, 0
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); name != "#" {
			names = append(names, name)
		}
	}
	for _, name := range names {
		for _, document := range []string{`mutation{` + name + `(input:{clientMutationId:"x"}){clientMutationId}}`, `mutation{addComment:` + name + `(input:{clientMutationId:"x"}){clientMutationId}}`} {
			d := p.Decide(context.Background(), posting(t, "POST https://api.github.com/graphql", "application/json", graphqlBody(t, document, nil)))
			known := slices.Contains(policy.GraphQLMutations(), name)
			if (d.Verdict == policy.Allow) != known || !known && d.Class != policy.GraphQLDenied {
				t.Errorf("%s: %s", document, saying(d))
			}
			if !known {
				refused++
			}
		}
	}
	if refused < 400 {
		t.Errorf("only %d were refused", refused)
	}
}
