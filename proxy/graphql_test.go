package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
)

const graphqlPolicy = `version: 1
unsafe_allow: ["127.0.0.1:*"]
allow:
  - {host: "allowed.test:*", paths: [/graphql], graphql: {query: [viewer], mutation: [addComment], repos: [acme/app]}, id: graph}
`

// A graphqlLab is a server of GraphQL that knows some nodes. It answers questions about them, and keeps everything else that arrives.
type graphqlLab struct {
	mu     sync.Mutex
	asked  [][]string                // ids of each question
	tokens []string                  // of the questions
	up     []string                  // bodies of other requests
	answer func(http.ResponseWriter) // instead of one about nodes; nil: none
}

func (l *graphqlLab) serve(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var q struct {
		Query     string
		Variables struct{ IDs []string }
	}
	json.Unmarshal(body, &q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.Contains(q.Query, "nodes(ids:$ids)") {
		l.up = append(l.up, string(body))
		io.WriteString(rw, `{"data":{}}`)
		return
	}
	l.asked, l.tokens = append(l.asked, q.Variables.IDs), append(l.tokens, r.Header.Get("Authorization"))
	if l.answer != nil {
		l.answer(rw)
		return
	}
	var nodes []string
	for _, id := range q.Variables.IDs {
		switch kind, repo, _ := strings.Cut(id, "_"); {
		case kind == "PR" || kind == "IC":
			nodes = append(nodes, `{"__typename":"PullRequest","of":{"nameWithOwner":"Acme/`+repo+`"}}`)
		case kind == "R":
			nodes = append(nodes, `{"__typename":"Repository","self":"Acme/`+repo+`"}`)
		default:
			nodes = append(nodes, "null")
		}
	}
	fmt.Fprintf(rw, `{"data":{"nodes":[%s]},"errors":[{"type":"NOT_FOUND"}]}`, strings.Join(nodes, ","))
}

// took returns what has arrived since the last time.
func (l *graphqlLab) took() (asked [][]string, up []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, up = l.asked, l.up
	l.asked, l.up = nil, nil
	return asked, up
}

func addComment(ids ...string) string {
	text := "mutation{"
	for i, id := range ids {
		text += fmt.Sprintf("a%d:addComment(input:{subjectId:%q,body:\"x\"}){clientMutationId} ", i, id)
	}
	body, _ := json.Marshal(map[string]string{"query": text + "}"})
	return string(body)
}

// A graphqlAnswer is what clients show of a refusal.
type graphqlAnswer struct {
	Data   any
	Errors []struct {
		Type, Message string
		Extensions    struct{ Class, ID, Rule string }
	}
}

func (r reply) graphqlRefusal(t *testing.T) (a graphqlAnswer) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), &a); err != nil || r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" || len(a.Errors) != 1 || a.Data != nil {
		t.Fatalf("%v in %d %v %s", err, r.StatusCode, r.Header, r.body)
	}
	if e := a.Errors[0]; e.Extensions.Class != "graphql-denied" || e.Extensions.ID != r.Header.Get("X-Egressd-Id") || e.Message == "" {
		t.Errorf("answered %+v", e)
	}
	return a
}

// TestNodesAreAskedFor: a mutation passes once the server has said that all it names is of the repository. The question is a request
// in the log, and an answer holds for the next request.
func TestNodesAreAskedFor(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, graphqlPolicy, nil)
		var lab graphqlLab
		o := w.pki.secureOrigin(t, overH2, lab.serve, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		post := func(body string) reply {
			return ask(t, rt, "POST", o.url("allowed.test", "/graphql"), strings.NewReader(body), "Content-Type: application/json", "Authorization: token mine")
		}
		for _, row := range []struct {
			says, body string
			asked      []string
			passes     bool
		}{
			{"a query", `{"query":"{viewer{login}}"}`, nil, true},
			{"the repository", addComment("PR_app"), []string{"PR_app"}, true},
			{"the same again", addComment("PR_app", "PR_app"), nil, true},
			{"another id beside it", addComment("PR_app", "IC_app"), []string{"IC_app"}, true},
			{"another repository", addComment("PR_other"), []string{"PR_other"}, false},
			{"the same again", addComment("PR_other"), nil, false},
			{"one of each", addComment("PR_app", "R_other"), []string{"R_other"}, false},
			{"one that nobody knows", addComment("X_app"), []string{"X_app"}, false},
			{"which may be there later", addComment("X_app"), []string{"X_app"}, false},
			{"what no rule lists", `{"query":"mutation{deleteIssue(input:{issueId:\"PR_app\"}){clientMutationId}}"}`, nil, false},
		} {
			r := post(row.body)
			asked, up := lab.took()
			if row.passes != slices.Equal(up, []string{row.body}) || len(up) > 1 || (row.asked == nil) != (len(asked) == 0) || row.asked != nil && !slices.Equal(asked[0], row.asked) {
				t.Errorf("%s: asked %q, went up %q: %s", row.says, asked, up, r.all())
			}
			if !row.passes {
				r.graphqlRefusal(t)
			}
		}
		if slices.ContainsFunc(lab.tokens, func(token string) bool { return token != "token mine" }) {
			t.Errorf("asked with %q", lab.tokens)
		}
		own := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest && r.HTTP.Own })
		if own.Decision.Rule != "graph" || own.Body == nil || own.Body.SHA256 == "" || own.HTTP.Method != "POST" || own.Sandbox == "" {
			t.Errorf("recorded %+v", own)
		}
		if end := w.recorded(t, closeOf(own)); end.Bytes.Up == 0 || end.Bytes.Down == 0 || end.Outcome != "closed" || end.HTTP.Status != 200 {
			t.Errorf("recorded %+v", end)
		}
		passed := w.recorded(t, func(r record.Record) bool {
			return r.Kind == record.KindRequest && !r.HTTP.Own && r.Decision.Action == "allow" && len(r.Body.Says) > 1
		})
		if !slices.Equal(passed.Body.Says, []string{"graphql mutation addComment", "graphql in acme/app"}) {
			t.Errorf("recorded %q", passed.Body.Says)
		}
	})
}

// TestAnUnansweredQuestionRefuses: whatever the server says instead of an answer.
func TestAnUnansweredQuestionRefuses(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, graphqlPolicy, nil)
		var lab graphqlLab
		o := w.pki.secureOrigin(t, overH2, lab.serve, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for says, answer := range map[string]func(http.ResponseWriter){
			"an error":    func(rw http.ResponseWriter) { http.Error(rw, `{"message":"Bad credentials"}`, http.StatusUnauthorized) },
			"a redirect":  func(rw http.ResponseWriter) { rw.Header().Set("Location", "https://evil.test/"); rw.WriteHeader(307) },
			"no JSON":     func(rw http.ResponseWriter) { io.WriteString(rw, "<html>") },
			"fewer nodes": func(rw http.ResponseWriter) { io.WriteString(rw, `{"data":{"nodes":[]}}`) },
			"more nodes": func(rw http.ResponseWriter) {
				io.WriteString(rw, `{"data":{"nodes":[{"self":"acme/app"},{"self":"acme/app"}]}}`)
			},
			"nothing": func(rw http.ResponseWriter) {},
			"too much": func(rw http.ResponseWriter) {
				io.WriteString(rw, `{"data":{"nodes":[{"self":"acme/app"}]},"x":"`+strings.Repeat("x", 300<<10)+`"}`)
			},
			"something else": func(rw http.ResponseWriter) { io.WriteString(rw, `{"data":{"nodes":[{"self":"acme/app2"}]}}`) },
			"gzip": func(rw http.ResponseWriter) {
				rw.Header().Set("Content-Encoding", "gzip")
				io.WriteString(rw, `{"data":{"nodes":[{"self":"acme/app"}]}}`)
			},
		} {
			lab.answer = answer
			r := ask(t, rt, "POST", o.url("allowed.test", "/graphql"), strings.NewReader(addComment("PR_app"+strings.ReplaceAll(says, " ", ""))), "Content-Type: application/json")
			r.graphqlRefusal(t)
			if asked, up := lab.took(); len(asked) != 1 || len(up) != 0 {
				t.Errorf("%s: asked %q, went up %q", says, asked, up)
			}
		}
	})
}

// TestTheQuestionHasTheSecret, and the sandbox does not see its answer.
func TestTheQuestionHasTheSecret(t *testing.T) {
	set := plainSet(t)
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, strings.Replace(graphqlPolicy, "id: graph", `id: key, inject: {header: Authorization, value: "Bearer {}", env: KEY, placeholder: EXAMPLE_TOKEN}`, 1), func(i *inspect.Inspection) {
			i.Secrets.Apply = func(_ string, _ policy.Destination, r *credentials.Request) credentials.Answer { return set.Apply(r) }
		})
		var lab graphqlLab
		o := w.pki.secureOrigin(t, overH2, lab.serve, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		ask(t, rt, "POST", o.url("allowed.test", "/graphql"), strings.NewReader(addComment("PR_app")), "Content-Type: application/json", "Authorization: token EXAMPLE_TOKEN")
		if asked, up := lab.took(); len(asked) != 1 || len(up) != 1 || !slices.Equal(lab.tokens, []string{"token " + theSecret}) {
			t.Errorf("asked %q with %q, went up %q", asked, lab.tokens, up)
		}
	})
}

// TestAQuestionNeedsNoFieldOfItsRule: the request has met the other conditions, and the question does not repeat them.
func TestAQuestionNeedsNoFieldOfItsRule(t *testing.T) {
	w := newInspectWorld(t, strings.Replace(graphqlPolicy, "id: graph", `id: graph, methods: [POST], headers: {x-github-api-version: ["2022-11-28"]}, json: {/operationName: [Comment]}, query_only: true`, 1), nil)
	var lab graphqlLab
	o := w.pki.secureOrigin(t, false, lab.serve, nil)
	rt := w.visitor(t, false, "allowed.test", o.port)
	post := func(id, name, version string) reply {
		body := strings.Replace(addComment(id), "mutation", "mutation "+name, 1)
		return ask(t, rt, "POST", o.url("allowed.test", "/graphql"), strings.NewReader(body[:len(body)-1]+`,"operationName":"`+name+`"}`), "Content-Type: application/json", "X-GitHub-Api-Version: "+version)
	}
	post("PR_app", "Comment", "2022-11-28")
	if asked, up := lab.took(); len(asked) != 1 || len(up) != 1 {
		t.Errorf("asked %q, went up %q", asked, up)
	}
	post("PR_other", "Comment", "2022-11-28").graphqlRefusal(t)
	if asked, up := lab.took(); len(asked) != 1 || len(up) != 0 {
		t.Errorf("of another repository: asked %q, went up %q", asked, up)
	}
	for _, r := range []reply{post("PR_more", "Other", "2022-11-28"), post("PR_more", "Comment", "2030-01-01")} {
		if asked, up := lab.took(); len(asked)+len(up) > 0 || !strings.Contains(r.body, `-denied"`) {
			t.Errorf("asked %q, went up %q, answered %s", asked, up, r.body)
		}
	}
}

// TestADeniedQuestionRefuses: the question is decided as a request of the sandbox.
func TestADeniedQuestionRefuses(t *testing.T) {
	w := newInspectWorld(t, graphqlPolicy+"deny:\n  - {host: \"allowed.test:*\", headers: {user-agent: [egressd]}}\n", nil)
	var lab graphqlLab
	o := w.pki.secureOrigin(t, false, lab.serve, nil)
	rt := w.visitor(t, false, "allowed.test", o.port)
	ask(t, rt, "POST", o.url("allowed.test", "/graphql"), strings.NewReader(addComment("PR_app")), "Content-Type: application/json").graphqlRefusal(t)
	if asked, up := lab.took(); len(asked)+len(up) != 0 {
		t.Errorf("asked %q, went up %q", asked, up)
	}
	denied := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest && r.HTTP.Own })
	if denied.Decision.Action != "deny" {
		t.Errorf("recorded %+v", denied)
	}
}

// TestNodesInClearAreNotAskedFor.
func TestNodesInClearAreNotAskedFor(t *testing.T) {
	w := newInspectWorld(t, graphqlPolicy, nil)
	witness := newWitness(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	body := addComment("PR_app")
	c := w.dial(t).send(fmt.Sprintf("POST http://allowed.test:%s/graphql HTTP/1.1\r\nHost: allowed.test:%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", witness.port, witness.port, len(body), body))
	if got := c.rest(); !strings.Contains(got, "graphql-denied") || witness.got() != "" {
		t.Errorf("answered %s, went up %q", got, witness.got())
	}
}

// TestNoWayRoundARuleOfGraphQL: nothing of these requests goes up, over either version of HTTP.
func TestNoWayRoundARuleOfGraphQL(t *testing.T) {
	const bad = `mutation{deleteIssue(input:{issueId:\"I_app\"}){clientMutationId}}`
	query := func(text string) string { return `{"query":"` + text + `"}` }
	many := strings.Repeat("x", 300)
	rows := []struct {
		says, method, path, body string
		fields                   []string
	}{
		{says: "an alias", body: query(strings.Replace(bad, "deleteIssue", "addComment:deleteIssue", 1))},
		{says: "a fragment first", body: query(`fragment F on Mutation{deleteIssue(input:{issueId:\"I_app\"}){clientMutationId}} mutation{...F}`)},
		{says: "two operations", body: `{"query":"query Q{viewer{login}} ` + strings.Replace(bad, "mutation", "mutation M", 1) + `","operationName":"Q"}`},
		{says: "skipped", body: query(strings.Replace(bad, "(input", " @skip(if:true)(input", 1))},
		{says: "skipped rightly", body: query(`mutation{deleteIssue(input:{issueId:\"I_app\"}) @skip(if:true){clientMutationId}}`)},
		{says: "a list", body: "[" + query("{viewer{login}}") + "," + query(bad) + "]"},
		{says: "a stored document", body: `{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + many[:64] + `"}}}`},
		{says: "a query in the URL", path: "/graphql?query=" + `mutation%7BdeleteIssue%7D`, body: query("{viewer{login}}")},
		{says: "a question mark alone", path: "/graphql?operationName=M", body: query("{viewer{login}}")},
		{says: "a GET", method: "GET", path: "/graphql?query=%7Bviewer%7Blogin%7D%7D"},
		{says: "another path", path: "/graphql/", body: query("{viewer{login}}")},
		{says: "an override of the method", method: "PUT", body: query("{viewer{login}}"), fields: []string{"X-HTTP-Method-Override: POST"}},
		{says: "a form", body: "query=" + bad, fields: []string{"Content-Type: application/x-www-form-urlencoded"}},
		{says: "two types", body: query("{viewer{login}}"), fields: []string{"Content-Type: application/json", "Content-Type: text/plain"}},
		{says: "UTF-16", body: "\xfe\xff\x00{\x00}", fields: []string{"Content-Type: application/json; charset=utf-16"}},
		{says: "two bodies in gzip", body: gzipped(query("{viewer{login}}")) + gzipped(query(bad)), fields: []string{"Content-Encoding: gzip"}},
		{says: "two frames of zstd", body: zstandard(query("{viewer{login}}")) + zstandard(query(bad)), fields: []string{"Content-Encoding: zstd"}},
		{says: "a comment that ends early", body: query(`{viewer{login}} #\r` + bad)},
		{says: "a block text that ends early", body: query(`mutation{addComment(input:{subjectId:\"PR_app\",body:\"\"\"a\"\"\"\"})} ` + bad)},
		{says: "a subscription", body: query("subscription{viewer{login}}")},
		{says: "an id with a line end", body: query(`mutation{addComment(input:{subjectId:\"PR_app\\nPR_other\",body:\"x\"}){clientMutationId}}`)},
		{says: "an id of two", body: query(`mutation{addComment(input:{subjectId:\"PR_app\",subjectId:\"PR_other\"}){clientMutationId}}`)},
		{says: "a variable twice", body: `{"query":"mutation($i:ID!){addComment(input:{subjectId:$i,body:\"x\"}){clientMutationId}}","variables":{"i":"PR_app","\u0069":"PR_other"}}`},
		{says: "a default of another", body: query(`mutation($i:ID=\"PR_other\"){addComment(input:{subjectId:$i,body:\"x\"}){clientMutationId}}`)},
		{says: "an id that is too long", body: query(`mutation{addComment(input:{subjectId:\"` + many + `\",body:\"x\"}){clientMutationId}}`)},
		{says: "a name of Unicode", body: `{"query":"{viewer{login}}","ｑuery":"` + bad + `"}`},
		{says: "a million braces", body: query(strings.Repeat("{a", 50_000))},
		{says: "fragments that double", body: query("mutation{...A0}" + doublingFragments(25))},
	}
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, graphqlPolicy, nil)
		var lab graphqlLab
		o := w.pki.secureOrigin(t, overH2, lab.serve, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for _, row := range rows {
			method, path, fields := cmp.Or(row.method, "POST"), cmp.Or(row.path, "/graphql"), row.fields
			if !strings.Contains(strings.Join(fields, " "), "Content-Type") && row.body != "" {
				fields = append(fields, "Content-Type: application/json")
			}
			r := ask(t, rt, method, o.url("allowed.test", path), strings.NewReader(row.body), fields...)
			if _, up := lab.took(); len(up) > 0 || !strings.Contains(r.body, `-denied"`) {
				t.Errorf("%s: went up %q, answered %s", row.says, up, r.body)
			}
		}
		w.nothingHeld(t)
	})
}

func doublingFragments(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf(" fragment A%d on Mutation{...A%d ...A%d}", i, i+1, i+1)
	}
	return text + fmt.Sprintf(" fragment A%d on Mutation{__typename}", n)
}
