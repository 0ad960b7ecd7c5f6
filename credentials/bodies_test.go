package credentials

import (
	"strings"
	"testing"
)

// TestATokenInABodyForGitLab, which GitLab would take before that of the header.
func TestATokenInABodyForGitLab(t *testing.T) {
	gl, npm := credentialOf(t, "gitlab", "glpat-REALREALREAL"), credentialOf(t, "npm", "npm_REALREALREAL")
	gl.Bodies = KindNamed("gitlab").Bodies
	set := NewSet(Key{1}, []*Credential{gl, npm})
	const form, json, parts = "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=x"
	part := func(disposition string) string {
		return "--x\r\n" + disposition + "\r\n\r\nglpat-foreign\r\n--x--\r\n"
	}
	const pass, refused, unread = "pass", "refused", "unread" // unread: without the body
	for _, row := range []struct{ says, method, kind, body, want string }{
		{"a form", "POST", form, "title=x&private_token=glpat-foreign", refused},
		{"a form whose names are escaped", "POST", form + ";charset=utf-8", "%70rivate_token=glpat-foreign", refused},
		{"a form without a type", "POST", "", "private_token=glpat-foreign", refused},
		{"a form of GET", "GET", form, "access_token=x", refused},
		{"JSON", "PUT", json, `{"title":"x","job_token":"x"}`, refused},
		{"JSON with an escape", "POST", "application/vnd.git-lfs+json", `{"private\u005ftoken":"x"}`, refused},
		{"JSON that is none", "POST", json, `{`, refused},
		{"a part", "POST", parts, part(`Content-Disposition: form-data; name="private_token"`), refused},
		{"a part without quotes", "POST", parts, part(`content-disposition: form-data; NAME=bearer_token`), refused},
		{"a part with a quoted character", "POST", parts, part(`Content-Disposition: form-data; name="private\_token"`), refused},
		{"two types", "POST", json + "|" + form, `{}`, pass},
		{"a type that is none", "POST", ";", "private_token=x", refused},

		{"an issue", "POST", json, `{"title":"private_token=x","labels":{"private_token":1}}`, pass},
		{"an issue as a form", "POST", form, "title=private_token", pass},
		{"a file that speaks of tokens", "POST", parts, part(`Content-Disposition: form-data; name="file"; filename="a.md"`) + "the private_token", pass},
		{"nothing", "DELETE", json, "", pass},
		{"a package", "PUT", "application/octet-stream", "", unread},
		{"a package without a type", "PUT", "", "", unread},
		{"a push", "POST", "application/x-git-receive-pack-request", "", unread},
	} {
		var fields []string
		for kind := range strings.SplitSeq(row.kind, "|") {
			if kind != "" {
				fields = append(fields, "Content-Type: "+kind)
			}
		}
		r := &Request{Sandbox: "ci", Rule: "gl", Host: "gitlab.com", Method: row.method, Fields: fieldsOf(fields)}
		r.Target.Path = "/api/v4/projects/1/issues"
		a := set.Apply(r)
		if a.NeedsBody != (row.want != unread) || a.NeedsBody && a.Added != nil {
			t.Errorf("%s, without the body: %+v", row.says, a)
		}
		if row.want == unread {
			continue
		}
		r.Body = []byte(row.body)
		if a = set.Apply(r); a.NeedsBody || (a.Refused != "") != (row.want == refused) || (a.Added == nil) != (row.want == refused) {
			t.Errorf("%s: %+v", row.says, a)
		}
	}
	if a := set.Apply(&Request{Sandbox: "ci", Rule: "n", Host: "registry.npmjs.org", Method: "POST", Fields: fieldsOf([]string{"Content-Type: " + json})}); a.NeedsBody || a.Added == nil {
		t.Errorf("of another kind: %+v", a)
	}
}
