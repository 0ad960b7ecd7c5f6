package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

const marked = "version: 1\nallow: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\nrego: [x]\n"

// obeyMark refuses requests that have a field by which data could leave.
func (w *world) obeyMark(t *testing.T) {
	t.Helper()
	w.ruled(t, `package egress
deny contains {"rule": "no-mark"} if "blue" in input.http.headers["x-mark"]`)
}

// ruled puts a policy in Rego in force, beside a file that allows one host.
func (w *world) ruled(t *testing.T, module string) {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(marked))
	if err != nil {
		t.Fatal(err)
	}
	e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(module)}}, rego.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: w.inspector.Page(new(egress.Refusal), "", "") != nil, Evaluators: []policy.Evaluator{e}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
}

func TestAPolicySeesTheFieldsOfARequest(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, bothPaths, nil)
		w.obeyMark(t)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "fine") }, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for _, c := range []struct {
			field string
			want  int
		}{{"X-Mark: red", 200}, {"X-Mark: blue", 403}, {"x-MARK: blue", 403}} {
			if resp := start(t, rt, "GET", o.url("allowed.test", "/"), nil, "X-Mark: green", c.field); resp.StatusCode != c.want {
				t.Errorf("with %s: %s", c.field, resp.Status)
			}
		}
	})
}

func TestAPolicySeesTheFieldsOfAPlainRequest(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	w.obeyMark(t)
	o := newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
	ask := func(fields string) *testClient {
		return w.dial(t).send("GET http://allowed.test:" + o.port + "/ HTTP/1.1\r\nHost: allowed.test:" + o.port + "\r\n" + fields + "\r\n")
	}
	ask("X-Mark: red\r\nx-mark: blue\r\n").expect("HTTP/1.1 403 ")
	ask("X-Mark: red\r\n").expect("HTTP/1.1 204 ")
}

// needMark refuses requests without a field that its upstream obeys.
const needMark = `package egress
trial if "yes" in input.http.headers["x-dry-run"]
deny contains {"rule": "no-trial"} if not trial
deny contains {"rule": "expects"} if input.http.headers.expect
deny contains {"rule": "claims"} if input.http.headers["x-forwarded-for"]
deny contains {"rule": "hops"} if input.http.headers.connection`

// TestAPolicySeesTheFieldsThatGoUp has requests with fields that end at egressd: a
// field that is not there for the upstream is not there for the policy either.
func TestAPolicySeesTheFieldsThatGoUp(t *testing.T) {
	for name, row := range map[string]struct{ fields, want string }{
		"one that goes up":                 {"X-Dry-Run: yes\r\n", "HTTP/1.1 204 "},
		"one that Connection nominates":    {"X-Dry-Run: yes\r\nConnection: x-dry-run\r\n", "HTTP/1.1 403 "},
		"one that Proxy-Connection does":   {"X-Dry-Run: yes\r\nProxy-Connection: X-Dry-Run\r\n", "HTTP/1.1 403 "},
		"fields that go nowhere beside it": {"X-Dry-Run: yes\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n", "HTTP/1.1 204 "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			w.ruled(t, needMark)
			o := newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
			w.dial(t).send(get("allowed.test", o.port, "/", row.fields+"X-Last: 1")).expect(row.want)
		})
	}
}

// TestAnUpgradeIsSeen as it is written for the upstream.
func TestAnUpgradeIsSeen(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	w.ruled(t, `package egress
deny contains {"rule": "sockets"} if "websocket" in input.http.headers.upgrade`)
	o := newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
	w.dial(t).send(get("allowed.test", o.port, "/", webSocketFields...)).expect("HTTP/1.1 403 ")
	w.dial(t).send(get("allowed.test", o.port, "/", "Upgrade: websocket")).expect("HTTP/1.1 204 ")
}

// TestATrailerDoesNotGoUp: nobody has judged its fields.
func TestATrailerDoesNotGoUp(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, insideBudget, nil)
		w.obeyMark(t)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(rw, "%s %v %v", body, r.Trailer, r.Header["X-Mark"])
		}, nil)
		req, err := http.NewRequest("POST", o.url("allowed.test", "/"), drip{strings.NewReader("all of it")})
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Mark": {"blue"}}
		resp, err := w.visitor(t, overH2, "allowed.test", o.port).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "all of it map[] []" {
			t.Errorf("%s %q, %v", resp.Status, body, err)
		}
	})
}
