package operator

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
)

// TestASandboxOfATemplateAsks has the answer count for the one that asks, and for no other of its template.
func TestASandboxOfATemplateAsks(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\nsandboxes: [{name: \"e2b-{id}\", user: \"sbx-{id}\", token_file: web.token}]\n"))
	var a egress.Access
	if status := inquires(t, d, "sbx-7f3a:another-secret", asksFor("a.allowed.test:80", "", "x"), &a); status != "202" {
		t.Fatalf("status %s, %+v", status, a)
	}
	answers(t, d, "answer", a.ID, "yes")
	for who, want := range map[string]string{"sbx-7f3a": "200", "sbx-other": "403"} {
		if status := inquires(t, d, who+":another-secret", "http://a.allowed.test/", nil); status != want {
			t.Errorf("%s: status %s", who, status)
		}
	}
}

// TestPathsInTLS asks for one path of HTTPS, by a policy that has egressd look into TLS, and by one that has not.
func TestPathsInTLS(t *testing.T) {
	const inside = "tls: {ca_dir: ca, extra_roots: [lab.pem]}\n"
	t.Run("looks into TLS", func(t *testing.T) {
		d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [{host: allowed.test, methods: [GET]}]\n"+inside))
		var a egress.Access
		if status := inquires(t, d, "", asksFor("https://curl.allowed.test/only", `,"method":"GET"`, "x"), &a); status != "202" {
			t.Fatalf("status %s, %+v", status, a)
		}
		answers(t, d, "answer", a.ID, "yes")
		out, _ := d.Shell(t.TempDir(), d.AuthorityFile(), "for p in only other; do "+askCurl+"--cacert $LAB_CA https://curl.allowed.test/$p; done")
		if !strings.Contains(out, "GET /only") || strings.Contains(out, "GET /other") || !strings.Contains(out, " 403 ") {
			t.Errorf("got %s", out)
		}
	})
	t.Run("looks into none", func(t *testing.T) {
		d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"+inside))
		for more, want := range map[string]string{`,"method":"GET"`: "403 refused", "": "202 pending"} {
			var a egress.Access
			if status := inquires(t, d, "", asksFor("curl.allowed.test", more, "x"), &a); status+" "+a.State != want {
				t.Errorf("%s: %s %s", more, status, a.State)
			}
		}
		if e := d.RunCommand(t, nil, "allow", "curl.allowed.test", "--method", "GET", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Talk, "plain HTTP alone") {
			t.Errorf("a grant that TLS does not have: exit %d, %s", e.Code, e.Talk)
		}
	})
}
