package peers

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy/file"
)

// TestOperationsOfGraphQL imports endpoints of OpenShell as its documents have them. One rule of egressd stands for one rule of
// OpenShell: of two, an operation has to meet one by itself.
func TestOperationsOfGraphQL(t *testing.T) {
	const head = "version: 1\nnetwork_policies:\n  q:\n    binaries: [{path: /**}]\n    endpoints:\n      - {host: api.git.test, port: 443, protocol: graphql, enforcement: enforce, "
	for _, row := range []struct {
		says  string
		lines []string // of allow
		whole bool
	}{
		{"access: read-only}", []string{`{host: "api.git.test:443", graphql: {query: any}}`}, true},
		{"access: read-write}", []string{`{host: "api.git.test:443", graphql: {query: any}}`}, false},
		{"rules: [{allow: {operation_type: query}}, {allow: {operation_type: mutation, fields: [createIssue, addComment]}}]}",
			[]string{`{host: "api.git.test:443", graphql: {query: any}}`, `{host: "api.git.test:443", graphql: {mutation: ["createIssue", "addComment"]}}`}, true},
		{"rules: [{allow: {operation_type: mutation, fields: [createIssue]}}, {allow: {operation_type: mutation, fields: [addComment]}}]}",
			[]string{`{host: "api.git.test:443", graphql: {mutation: ["createIssue"]}}`, `{host: "api.git.test:443", graphql: {mutation: ["addComment"]}}`}, true},
		{"rules: [{allow: {operation_type: query, fields: [viewer]}}, {allow: {operation_type: mutation}}]}", []string{`{host: "api.git.test:443", graphql: {query: ["viewer"]}}`}, false},
		{`rules: [{allow: {operation_type: query, fields: ["view*"]}}]}`, nil, false},
		{"rules: [{allow: {operation_type: query, operation_name: List}}]}", nil, false},
		{"rules: [{allow: {operation_type: subscription, fields: [issueAdded]}}]}", nil, false},
	} {
		c, err := Import("openshell", []byte(head+row.says), Options{})
		if err != nil {
			t.Errorf("%s: %v", row.says, err)
			continue
		}
		if _, err := file.Parse("imported", []byte(c.Text)); err != nil {
			t.Errorf("%s: %v\n%s", row.says, err, c.Text)
		}
		if c.Allowed != len(row.lines) || c.Denied > 0 || (c.Lost == 0) != row.whole {
			t.Errorf("%s became\n%s%q", row.says, c.Text, c.Stricter)
		}
		for _, line := range row.lines {
			if !strings.Contains(c.Text, "  - "+line+"\n") {
				t.Errorf("%s has no %s:\n%s", row.says, line, c.Text)
			}
		}
	}
}
