package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
)

// grantingFake notes what is asked of it.
type grantingFake struct {
	asked GrantRequest
	id    string
	who   Operator
	err   error
}

func (f *grantingFake) Grant(_ context.Context, who Operator, q GrantRequest) (Granted, error) {
	f.who, f.asked = who, q
	return Granted{Grants: []Grant{{ID: "GAAAAAA"}}, Already: []string{}, Policy: "sha256:1"}, f.err
}

func (f *grantingFake) Revoke(_ context.Context, who Operator, id string) (Revoked, error) {
	f.who, f.id = who, id
	return Revoked{Revoked: Grant{ID: id}}, f.err
}

func (f *grantingFake) List() GrantList { return GrantList{Grants: []Grant{{ID: "GAAAAAA"}}} }

func TestGrantsAreAskedForStrictly(t *testing.T) {
	w := newWorld(t)
	f := &grantingFake{}
	w.Grants = f
	w.listen(t)
	const kind, good = "application/json", `{"verdict":"allow","patterns":["a.test"],"seconds":60,"sandbox":"ci","from":"01KB6ZQ4SZ"}`
	for _, row := range []struct {
		kind, body string
		status     int
	}{
		{"text/plain", good, 415},
		{kind, `{"verdict":"allow","patterns":"a.test"}`, 400},
		{kind, `{"verdict":"allow","patterns":["a.test"],"seconds":1e99}`, 400},
		{kind, `{"verdict":"allow","until":"tomorrow"}`, 400},
		{kind, good + good, 400},
		{kind, ``, 400},
	} {
		status, text := w.ask(t, "POST", "/v1/grants", row.body, func(r *http.Request) { r.Header.Set("Content-Type", row.kind) })
		if status != row.status || f.asked.Verdict != "" {
			t.Errorf("%s %.40s: %d %.80s, want %d", row.kind, row.body, status, text, row.status)
		}
	}
	asJSON := func(r *http.Request) { r.Header.Set("Content-Type", kind) }
	status, text := w.ask(t, "POST", "/v1/grants", good, asJSON)
	if q := f.asked; status != 200 || q.Patterns[0] != "a.test" || q.Seconds != 60 || q.Sandbox != "ci" || q.From != "01KB6ZQ4SZ" || !f.who.Addr.IsValid() || !strings.Contains(text, `"id":"GAAAAAA"`) {
		t.Errorf("%d %s: %+v by %v", status, text, q, f.who)
	}
	if status, text := w.ask(t, "GET", "/v1/grants", "", nil); status != 200 || !strings.Contains(text, `"id":"GAAAAAA"`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.ask(t, "DELETE", "/v1/grants/GBBBBBB", "", nil); status != 200 || f.id != "GBBBBBB" {
		t.Errorf("%d %s: %q", status, text, f.id)
	}
}

func TestWhyNothingWasGrantedIsSaid(t *testing.T) {
	w := newWorld(t)
	f := &grantingFake{}
	w.Grants = f
	w.listen(t)
	asJSON := func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }
	for _, row := range []struct {
		err    error
		status int
		says   string
	}{
		{&Unavailable{422, "a.test would stay refused", "egressd allow --list"}, 422, `{"error":"a.test would stay refused","hint":"egressd allow --list"}`},
		{&Unavailable{503, "egressd is stopping", ""}, 503, "egressd is stopping"},
		{errors.New("no"), 500, "no"},
	} {
		f.err = row.err
		for method, path := range map[string]string{"POST": "/v1/grants", "DELETE": "/v1/grants/GAAAAAA"} {
			if status, text := w.ask(t, method, path, "{}", asJSON); status != row.status || !strings.Contains(text, row.says) {
				t.Errorf("%s: %v: %d %s", method, row.err, status, text)
			}
		}
	}
	w.Grants = nil
	for method, path := range map[string]string{"POST": "/v1/grants", "DELETE": "/v1/grants/GAAAAAA", "GET": "/v1/grants"} {
		if status, text := w.ask(t, method, path, "{}", asJSON); status != 404 {
			t.Errorf("%s where there are none: %d %s", method, status, text)
		}
	}
}

// TestNobodyElseGrants: not without the token, and not for a page in a browser.
func TestNobodyElseGrants(t *testing.T) {
	w := newWorld(t)
	f := &grantingFake{}
	w.Grants = f
	w.listen(t)
	for says, change := range map[string]func(*http.Request){
		"no token":     func(r *http.Request) { r.Header.Del("Authorization") },
		"a wrong one":  func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") },
		"a page":       func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1") },
		"another host": func(r *http.Request) { r.Host = "rebound.test" },
	} {
		for method, path := range map[string]string{"POST": "/v1/grants", "DELETE": "/v1/grants/GAAAAAA", "GET": "/v1/grants"} {
			status, text := w.ask(t, method, path, `{"verdict":"allow","patterns":["a.test"],"seconds":60}`, func(r *http.Request) {
				r.Header.Set("Content-Type", "application/json")
				change(r)
			})
			if status < 400 || f.id != "" || f.asked.Verdict != "" || strings.Contains(text, "GAAAAAA") {
				t.Errorf("%s: %s is answered %d %s", says, method, status, text)
			}
		}
	}
}
