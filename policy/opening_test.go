package policy

import "testing"

// TestAnOpeningIsJudgedByItsRequests judges what is already allowed by the requests that a line is about, so that
// nothing is called allowed that is denied.
func TestAnOpeningIsJudgedByItsRequests(t *testing.T) {
	read := Opening{Pattern: mustPattern(t, "api.test:80"), Method: "GET", Path: "/v1/**"}
	p := Assemble(Parts{Lists: Lists{Layer: User, Allow: []Rule{read.Line("read"), {Pattern: mustPattern(t, "all.test"), ID: "all"}}}, Inspection: true})
	for _, row := range []struct {
		opening Opening
		all     bool
	}{
		{Opening{mustPattern(t, "api.test:80"), "GET", "/v1/x"}, true},
		{Opening{mustPattern(t, "api.test:80"), "HEAD", "/v1/x"}, true},
		{Opening{mustPattern(t, "api.test:80"), "POST", "/v1/x"}, false},
		{Opening{mustPattern(t, "api.test:80"), "GET", "/v2"}, false},
		{Opening{mustPattern(t, "api.test:81"), "GET", "/v1/x"}, false},
		{Opening{Pattern: mustPattern(t, "api.test:80")}, false},
		{Opening{mustPattern(t, "all.test:80"), "POST", "/x"}, true},
		{Opening{Pattern: mustPattern(t, "all.test:443")}, true},
	} {
		if all := p.OpensAll(t.Context(), row.opening, Sandbox{Name: "default"}); all != row.all {
			t.Errorf("%s is all allowed: %v", row.opening, all)
		}
	}
	if r := p.Reach(t.Context(), Opening{Pattern: mustPattern(t, "api.test:80")}, Sandbox{Name: "default"}); r.Partly != 1 {
		t.Errorf("the part that is allowed: %+v", r)
	}
}
