package file

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const containersFile = `version: 1
docker: {socket: "unix:${RUN}/docker.sock"}
sandboxes:
  - {name: web, docker: {name: shop-web-1}}
  - {name: ci, docker: {label: "team=ci=x"}}
  - {name: db, docker: {compose: shop/db}}
`

func TestContainers(t *testing.T) {
	f, err := Parse("egressd.yaml", []byte(containersFile))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/run/user/7", true })
	if err != nil || out.Docker.Socket != "unix:/run/user/7/docker.sock" || !f.AsksDocker() {
		t.Errorf("%v, %+v", err, out)
	}
	labels := func(pairs ...string) map[string]string {
		all := map[string]string{}
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			all[key] = value
		}
		return all
	}
	shop := labels("com.docker.compose.project=shop", "com.docker.compose.service=db")
	for _, row := range []struct {
		says, sandbox, name string
		labels              map[string]string
		want                bool
	}{
		{"its name", "web", "shop-web-1", nil, true},
		{"another name", "web", "shop-web-10", nil, false},
		{"its label", "ci", "x", labels("team=ci=x"), true},
		{"another value", "ci", "x", labels("team=ci"), false},
		{"no label", "ci", "team", nil, false},
		{"its service", "db", "x", shop, true},
		{"the service of another project", "db", "x", labels("com.docker.compose.project=shop2", "com.docker.compose.service=db"), false},
		{"a name like a service", "db", "shop/db", nil, false},
	} {
		for _, s := range f.Sandboxes {
			if s.Name == row.sandbox && s.Docker.Holds(row.name, row.labels) != row.want {
				t.Errorf("%s: %v", row.says, !row.want)
			}
		}
	}
	var none policy.Containers
	if none.Given() || none.Holds("", nil) {
		t.Error("no containers are some")
	}
}

func TestContainersThatAreNone(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"nothing":                {`sandboxes: [{name: a, docker: {}}]`, "is one of name, label and compose"},
		"two of them":            {`sandboxes: [{name: a, docker: {name: x, label: "a=b"}}]`, "is one of name, label and compose"},
		"a list":                 {`sandboxes: [{name: a, docker: [x]}]`, "write a mapping"},
		"a misspelt key":         {`sandboxes: [{name: a, docker: {nmae: x}}]`, "name"},
		"a path for a name":      {`sandboxes: [{name: a, docker: {name: /web}}]`, `cannot be "/web"; write web: the name that docker ps shows`},
		"an empty name":          {`sandboxes: [{name: a, docker: {name: ""}}]`, "docker.name is empty; write one"},
		"a label of any":         {`sandboxes: [{name: a, docker: {label: team}}]`, "KEY=VALUE, of which both are there"},
		"a label of nothing":     {`sandboxes: [{name: a, docker: {label: "team="}}]`, "KEY=VALUE, of which both are there"},
		"a project":              {`sandboxes: [{name: a, docker: {compose: shop}}]`, "PROJECT/SERVICE"},
		"three of Compose":       {`sandboxes: [{name: a, docker: {compose: a/b/c}}]`, "PROJECT/SERVICE"},
		"the same twice":         {`sandboxes: [{name: a, docker: {name: x}}, {name: b, docker: {name: x}}]`, `name: x is said of the sandbox "a" already`},
		"no way to come":         {"listen: {proxy: [\"unix:/run/p.sock\"]}\nsandboxes: [{name: a, docker: {name: x}}]", "needs a TCP listener or a socket to hand its network in"},
		"a uid without a socket": {"listen: {proxy: [\"unix:/run/p.sock\", \"127.0.0.1:1\"]}\nsandboxes: [{name: a, uid: [7], docker: {name: x}}]", "no connection is both"},
		"an engine by TCP":       {"docker: {socket: \"127.0.0.1:2375\"}\nsandboxes: [{name: a, docker: {name: x}}]", "is not a Unix socket; write unix:/run/docker.sock"},
		"an engine for none":     {"docker: {socket: \"unix:/run/docker.sock\"}", "docker.socket is asked for sandboxes with docker or enter, and there is none"},
		"a misspelt section":     {"dokcer: {socket: \"unix:/run/docker.sock\"}", "docker"},
		"a misspelt setting":     {"docker: {sokcet: \"unix:/run/docker.sock\"}", "socket"},
		"nothing tells apart":    {`sandboxes: [{name: a}]`, "docker"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("egressd.yaml", []byte("version: 1\n"+row.text+"\n"))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
	if _, err := Parse("egressd.yaml", []byte("version: 1\nlisten: {proxy: [], enter: [\"unix:/run/e.sock\"]}\nsandboxes: [{name: a, uid: [7], docker: {name: x}}]\n")); err != nil {
		t.Errorf("a user and a container at one listener: %v", err)
	}
}
