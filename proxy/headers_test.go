package proxy

import (
	"io"
	"net/http"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

const marked = "version: 1\nallow: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\nrego: [x]\n"

// obeyMark refuses requests that have a field by which data could leave.
func (w *world) obeyMark(t *testing.T) {
	t.Helper()
	file, err := policy.ParseFile("test.yaml", []byte(marked))
	if err != nil {
		t.Fatal(err)
	}
	e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(`package egress
deny contains {"rule": "no-mark"} if "blue" in input.http.headers["x-mark"]`)}}, rego.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := file.Compile(policy.Environment{Inspection: w.inspection.Load() != nil, Evaluators: []policy.Evaluator{e}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
}

func TestAPolicySeesTheFieldsOfARequest(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInsideWorld(t, bothPaths, nil)
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
	ask := func(fields string) *client {
		return w.dial(t).send("GET http://allowed.test:" + o.port + "/ HTTP/1.1\r\nHost: allowed.test:" + o.port + "\r\n" + fields + "\r\n")
	}
	ask("X-Mark: red\r\nx-mark: blue\r\n").expect("HTTP/1.1 403 ")
	ask("X-Mark: red\r\n").expect("HTTP/1.1 204 ")
}
