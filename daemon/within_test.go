package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// An asker is a program that asks egressd for more.
type asker struct {
	client *http.Client
}

func (w *regoWorld) asker() *asker {
	proxy := &url.URL{Scheme: "http", Host: w.proxy}
	return &asker{client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}, Timeout: 30 * time.Second}}
}

// asks asks for a request, waits for the answer for a while, and returns its state.
func (a *asker) asks(t *testing.T, body string, wait int) (state string) {
	t.Helper()
	var answer struct{ ID, State, Reason string }
	get := func(r *http.Response, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		answer.State = ""
		if err := json.Unmarshal(text, &answer); err != nil || answer.State == "" {
			answer.State = fmt.Sprintf("%d %s", r.StatusCode, text)
		}
	}
	get(a.client.Post("http://egressd.internal/requests", "application/json", strings.NewReader(body)))
	if answer.State == "pending" && wait > 0 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://egressd.internal/requests/%s?wait=%d", answer.ID, wait), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "application/json")
		get(a.client.Do(request))
	}
	return answer.State
}

const boundaryFile = `version: 1
allow:
  - "*.inside.test:443"
  - {host: "api.test:80", methods: [GET], paths: ["/v1/**"]}
  - "plain.test"
deny: ["secret.inside.test"]
unsafe_allow: ["127.0.0.1:*"] # names lead there in tests
`

func boundedWorld(t *testing.T, lines string) *regoWorld {
	t.Helper()
	return serveRego(t, "approve_within: boundary.yaml\n"+lines, map[string]string{"boundary.yaml": boundaryFile})
}

// TestWhatTheBoundaryAllowsIsGrantedByItself, in exactly the terms of the question, with the proof in the log. Everything else
// waits for a person.
func TestWhatTheBoundaryAllowsIsGrantedByItself(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\n")
	for i, row := range []struct {
		body, want string
	}{
		{`{"host": "a.inside.test", "reason": "r"}`, "approved"},
		{`{"host": "api.test:80", "method": "GET", "path": "/v1/items", "reason": "r"}`, "approved"},
		{`{"host": "api.test:80", "method": "GET", "path": "/v2/items", "reason": "r"}`, "pending"},
		{`{"host": "api.test:80", "method": "POST", "path": "/v1/items", "reason": "r"}`, "pending"},
		{`{"host": "api.test:80", "reason": "all of it"}`, "pending"},
		{`{"host": "a.inside.test:8443", "reason": "r"}`, "pending"},
		{`{"host": "secret.inside.test", "reason": "r"}`, "refused"},
		{`{"host": "inside.test", "reason": "r"}`, "pending"},
	} {
		if i == 4 { // four questions may wait at a time
			w.rejectAll(t)
		}
		if state := w.asker().asks(t, row.body, 1); state != row.want {
			t.Errorf("%s: %s, want %s", row.body, state, row.want)
		}
	}
	grants := w.Grants().List().Grants
	if len(grants) != 2 {
		t.Fatalf("%d grants: %+v", len(grants), grants)
	}
	for _, g := range grants {
		if g.UID != nil || g.Sandbox != "default" || !strings.Contains(g.By, "approve_within") || g.Seconds > approvals.ApprovedFor.Seconds() || g.From == "" {
			t.Errorf("%+v", g)
		}
		r := w.record(t, func(r *record.Record) bool {
			return r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "grant "+g.ID)
		})
		if !strings.Contains(r.Note, "proof: ") || !strings.Contains(r.Note, "none is beyond approve_within (sha256:") || !strings.Contains(r.Note, "whose rule allow[") {
			t.Errorf("the record says %q", r.Note)
		}
	}
	if status, text := w.connect(t, "a.inside.test:443"); status == http.StatusForbidden {
		t.Errorf("what was granted is denied: %s", text)
	}
}

// rejectAll answers no to each question that waits.
func (w *regoWorld) rejectAll(t *testing.T) {
	t.Helper()
	for _, q := range w.Gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		if id, _ := record.ParseID(q.ID); q.State == "pending" {
			if err := w.Gate.Approvals.Answer(id, approvals.Answer{Lasts: time.Second}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestNothingBeyondTheBoundary: hosts that look like those of the boundary, and what no line beside others opens.
func TestNothingBeyondTheBoundary(t *testing.T) {
	w := boundedWorld(t, "deny: [\"denied.inside.test\", \"secret.inside.test\"]\nceiling: [\"*.test:*\", \"127.0.0.1:*\"]\nlimits: {ask_wait: 1s}\n")
	for i, host := range []string{
		"inside.test.evil.example", "ainside.test", "a.inside.test.", "A.INSIDE.TEST", "xn--nside-p4a.test", "a.xn--insde-q9a.test", "a.inside.test%2eevil.example", "a.inside.test@evil.example",
		"denied.inside.test", "10.0.0.5", "169.254.169.254", "127.0.0.1", "metadata.google.internal", "egressd.internal", "*.inside.test", "*", "a.inside.test:443-444", "a.inside.test:*", "[::ffff:10.0.0.5]",
	} {
		if i%3 == 0 {
			w.rejectAll(t)
		}
		state := w.ask(t, host)
		want := host == "a.inside.test." // and in upper case it is the same, which is allowed by then
		if (state == "approved" || state == "allowed") != want {
			t.Errorf("%s: %s", host, state)
		}
	}
	for _, g := range w.Grants().List().Grants {
		if g.Pattern != "a.inside.test:443" {
			t.Errorf("granted: %+v", g)
		}
	}
}

// ask has a sandbox of its own ask for a host, so that no budget of questions ends before the hosts do.
func (w *regoWorld) ask(t *testing.T, host string) string {
	t.Helper()
	bounded := boundedGranting{grantsAPI{&w.grants}}
	q := admin.GrantRequest{Verdict: "allow", Patterns: []string{host}, Sandbox: "default", Seconds: 60, From: "01KB6ZQ4SZ"}
	if !strings.Contains(host, ":") {
		q.Patterns[0] += ":443"
	}
	if _, err := bounded.Grant(t.Context(), admin.Operator{Rule: "approve_within"}, q); err != nil {
		return err.Error()
	}
	return "approved"
}

// TestABoundaryIsReadWithThePolicy: a narrower one counts for the next question, and one that anybody may write refuses the policy.
func TestABoundaryIsReadWithThePolicy(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\n")
	if state := w.ask(t, "a.inside.test"); state != "approved" {
		t.Fatal(state)
	}
	w.write(t, "boundary.yaml", "version: 1\nallow: [\"other.test\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n")
	w.hear(t, "policy reloaded")
	if state := w.ask(t, "b.inside.test"); state == "approved" {
		t.Error("the boundary from before counts")
	}
	if state := w.ask(t, "other.test"); state != "approved" {
		t.Error(state)
	}
	path := filepath.Join(w.dir, "boundary.yaml")
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := w.reload(t); err == nil || !strings.Contains(err.Error(), "other users may write") {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"version: 1\nrego: [x.rego]\n": "no rego", "version: 1\nsandboxes: [{name: a, token_file: t}]\n": "no sandboxes", "version: 1\nallow: [\"a b\"]\n": "boundary.yaml", "": "version",
	} {
		w.write(t, "boundary.yaml", text)
		if err := w.reload(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := w.reload(t); err == nil {
		t.Error("a boundary that is not there is none")
	}
}

// TestNoBoundaryFromBeforeCounts: others ask all the time while the boundary changes.
func TestNoBoundaryFromBeforeCounts(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\n")
	done := make(chan struct{})
	var asking sync.WaitGroup
	for n := range 3 {
		asking.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					w.ask(t, fmt.Sprintf("flood-%d-%d.inside.test", n, i%4))
				}
			}
		})
	}
	for i := range 10 {
		w.write(t, "boundary.yaml", boundaryFile)
		if err := w.reload(t); err != nil {
			t.Fatal(err)
		}
		w.write(t, "boundary.yaml", "version: 1\nallow: [other.test]\nunsafe_allow: [\"127.0.0.1:*\"]\n")
		if err := w.reload(t); err != nil {
			t.Fatal(err)
		}
		if state := w.ask(t, fmt.Sprintf("late-%d.inside.test", i)); state == "approved" {
			t.Error("a boundary from before counts")
		}
	}
	close(done)
	asking.Wait()
	for _, g := range w.Grants().List().Grants {
		if !strings.HasPrefix(g.Pattern, "flood-") {
			t.Errorf("granted: %+v", g)
		}
	}
}

// reload has the policy read again, and returns what came of it.
func (w *regoWorld) reload(t *testing.T) error {
	t.Helper()
	_, err := w.admin.reloadFor(t.Context(), "the test")
	return err
}

// TestGrantsWithinTheBoundaryHaveAShare: one sandbox gets no more than some, and a person may still grant.
func TestGrantsWithinTheBoundaryHaveAShare(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\n")
	for i := range withinMost {
		if state := w.ask(t, fmt.Sprintf("h%d.inside.test", i)); state != "approved" {
			t.Fatal(state)
		}
	}
	if state := w.ask(t, "more.inside.test"); state == "approved" {
		t.Error("there is no limit")
	}
	if _, err := w.Grants().Grant(t.Context(), someone, admin.GrantRequest{Verdict: "allow", Patterns: []string{"more.inside.test"}, Seconds: 60}); err != nil {
		t.Error(err)
	}
}

// TestADenyOfTheBoundaryHoldsForWhatNamesLeadTo: the policy has no such line, so a name of the boundary may lead there.
func TestADenyOfTheBoundaryHoldsForWhatNamesLeadTo(t *testing.T) {
	w := boundedWorld(t, "")
	if state := w.ask(t, "a.inside.test"); !strings.Contains(state, "leads to secret.inside.test") {
		t.Error(state)
	}
}

// TestWhatCannotBeProvedWaits: Rego beside the file may tell apart what nobody tried.
func TestWhatCannotBeProvedWaits(t *testing.T) {
	w := serveRego(t, "approve_within: boundary.yaml\nrego: [policy]\n", map[string]string{
		"boundary.yaml": boundaryFile,
		"policy/p.rego": "package egress\n\ndeny contains {\"rule\": \"never\"} if input.destination.host == \"never.test\"\n",
	})
	if state := w.ask(t, "a.inside.test"); !strings.Contains(state, "cannot be proved") {
		t.Error(state)
	}
}

// TestABoundaryInAProjectIsRefused: its sandbox may write it.
func TestABoundaryInAProjectIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tree/boundary.yaml": boundaryFile,
		"egressd.yaml":       "version: 1\napprove_within: link.yaml\nsandboxes: [{name: a, token_file: t, project: tree}]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name), text)
	}
	if err := os.Symlink("tree/boundary.yaml", filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(filepath.Join(dir, "egressd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.CompileBoundary(nil, nil); err == nil || !strings.Contains(err.Error(), "project of sandbox a") {
		t.Errorf("%v, %v", p.Digest(), err)
	}
}

// TestALineThatAsksKeepsNothingFromBeingProved: a name of the boundary that leads to a host of that line asks a person, and passes
// by nothing else.
func TestALineThatAsksKeepsNothingFromBeingProved(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\nask: [\"asked.test\"]\n")
	if state := w.ask(t, "a.inside.test"); state != "approved" {
		t.Error(state)
	}
	if state := w.ask(t, "asked.test"); state == "approved" {
		t.Error("what a line asks about is granted")
	}
}

// TestAWiderBoundaryAnswersWhatWaits: only the boundary changes, and nobody asks again.
func TestAWiderBoundaryAnswersWhatWaits(t *testing.T) {
	w := boundedWorld(t, "deny: [\"secret.inside.test\"]\n")
	before := w.Gate.Digest()
	answered := make(chan string, 1)
	go func() { answered <- w.asker().asks(t, `{"host": "later.test", "reason": "r"}`, 20) }()
	for len(w.Gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions) == 0 {
		time.Sleep(time.Millisecond)
	}
	w.write(t, "boundary.yaml", strings.Replace(boundaryFile, "\"plain.test\"", "\"later.test\"", 1))
	if err := w.reload(t); err != nil {
		t.Fatal(err)
	}
	if state := <-answered; state != "approved" {
		t.Errorf("it is %s", state)
	}
	if w.Gate.Digest() == before {
		t.Error("the grant is no part of the policy")
	}
}

// TestNoPathLeadsBeyondTheBoundary has a program ask for paths that some server or some reader takes for another one. What is
// granted lets no request pass that the boundary denies.
func TestNoPathLeadsBeyondTheBoundary(t *testing.T) {
	w := serveRego(t, "approve_within: boundary.yaml\n", map[string]string{"boundary.yaml": `version: 1
allow:
  - {host: "api.test:80", methods: [GET], paths: ["/v1/**", "/exact"]}
  - {host: "deep.test:80", methods: [GET, HEAD], paths: ["/a/*/c"]}
deny: [{host: "api.test:80", paths: ["/v1/secret/**"]}]
unsafe_allow: ["127.0.0.1:*"]
`})
	go func() { // else the daemon waits until somebody hears what it says of each grant
		for {
			select {
			case <-w.said:
			case <-t.Context().Done():
				return
			}
		}
	}()
	boundary := w.reloads.boundary.Load()
	asked := 0
	for _, host := range []string{"api.test:80", "deep.test:80", "API.test:80", "api.test.:80", "api.test:8080"} {
		for _, method := range []string{"GET", "get", "HEAD", "POST", ""} {
			for _, path := range []string{
				"/v1/items", "/v1", "/v1/", "/v1/**", "/v1/*", "/**", "/*", "/", "", "/exact", "/exact/", "/exact/x", "/EXACT", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E%2E%2Fadmin", "/v1//../admin", "//v1/items", "/./v1/x",
				"/v1/secret", "/v1/secret/x", "/v1/secret/**", "/v1/%73ecret/x", "/v1/secret%2fx", "/v1/x;/../../admin", "/v1/x?y=/../admin", "/v1/x#y", "/v1\\..\\admin", "/v1/\x00", "/a/b/c", "/a/*/c", "/a/**", "/a/b/c/**", "/a/**/c", "/a/%2a/c",
			} {
				q := admin.GrantRequest{Verdict: "allow", Patterns: []string{host}, Method: method, Path: path, Sandbox: "default", Seconds: 60, From: "01KB6ZQ4SZ"}
				done, err := boundedGranting{grantsAPI{&w.grants}}.Grant(t.Context(), admin.Operator{Rule: "approve_within"}, q)
				if err != nil || len(done.Grants) == 0 {
					continue
				}
				asked++
				w.nothingBeyond(t, fmt.Sprintf("%s %q of %s", method, path, host), boundary)
				if _, err := w.Grants().Revoke(t.Context(), someone, done.Grants[0].ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if asked < 8 {
		t.Errorf("only %d were granted, so that this shows little", asked)
	}
}

// nothingBeyond asks the policy in force and the boundary about requests, and reports what only the policy allows.
func (w *regoWorld) nothingBeyond(t *testing.T, granted string, boundary *policy.Policy) {
	t.Helper()
	for _, host := range []string{"api.test", "deep.test", "www.api.test", "evil.test"} {
		for _, port := range []uint16{80, 443, 8080} {
			for _, method := range []string{"GET", "HEAD", "POST"} {
				for _, path := range []string{"/v1/items", "/v1/", "/v1", "/exact", "/exact/x", "/admin", "/v1/secret", "/v1/secret/x", "/a/b/c", "/a/b/d/c", "/a/b/c/d", "/", "/a/*/c"} {
					r := policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Via: policy.ViaHTTP, Destination: policy.Destination{Host: host, Port: port}, HTTP: &policy.HTTPRequest{Method: method, Path: path}, Time: time.Now()}
					now, may := w.current.Load().policy.Decide(t.Context(), &r), boundary.Decide(t.Context(), &r)
					if now.Verdict == policy.Allow && may.Verdict != policy.Allow {
						t.Errorf("%s was granted, and opens %s %s of %s:%d", granted, method, path, host, port)
					}
				}
			}
		}
	}
}
