package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// DefaultDocker is the socket of the engine that says which container is which.
const DefaultDocker = UnixListener + "/run/docker.sock"

// A Docker section says where the engine is that runs the sandboxes.
type Docker struct {
	// Socket is that of its API. Default: [DefaultDocker].
	Socket string
}

func (r *reader) docker(d *Docker) func(*yaml.Node) {
	return r.section("docker", fields{"socket": func(n *yaml.Node) {
		r.places["docker"] = placeOf(n)
		r.socket("docker.socket", &d.Socket, "; write unix:/run/docker.sock, or where Podman listens")(n)
	}})
}

func (r *reader) containers(what string, into *policy.Containers) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.places[what] = placeOf(n)
		r.mapping(n, what, fields{
			"name":    r.containerText(what+".name", &into.Name, plainContainer, "web: the name that docker ps shows"),
			"label":   r.containerText(what+".label", &into.Label, plainLabel, "\"team=web\": KEY=VALUE, of which both are there"),
			"compose": r.containerText(what+".compose", &into.Compose, plainService, "shop/web: PROJECT/SERVICE, as docker compose ls and ps show them"),
		})
		if n.Kind == yaml.MappingNode && len(n.Content) != 2 {
			r.fail(n, "%s is one of name, label and compose; write the one that tells its containers from all others", what)
		}
	}
}

func (r *reader) containerText(what string, into *string, right func(string) bool, write string) func(*yaml.Node) {
	return r.checked(what, into, func(text string) string { return unless(right(text), text, write) })
}

const containerTextMost = 255

// plainContainer reports whether an engine lets a container have that name.
func plainContainer(text string) bool {
	return len(text) <= containerTextMost && text != "" && strings.IndexByte("_.-", text[0]) < 0 && !strings.ContainsFunc(text, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.-", c))
	})
}

func plainLabel(text string) bool {
	key, value, ok := strings.Cut(text, "=")
	return ok && key != "" && value != "" && len(text) <= 2*containerTextMost && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}

func plainService(text string) bool {
	project, service, ok := strings.Cut(text, "/")
	return ok && plainContainer(project) && plainContainer(service)
}

// AsksDocker reports whether a sandbox is told by its container.
func (f *File) AsksDocker() bool {
	return slices.ContainsFunc(f.Sandboxes, func(s SandboxRules) bool { return s.Docker.Given() })
}

// checkContainers refuses identities that no container can have, and an engine socket
// that no sandbox needs.
func (r *reader) checkContainers(f *File) {
	for i := range f.Sandboxes {
		s, at := &f.Sandboxes[i], fmt.Sprintf("sandboxes[%d].docker", i)
		if !s.Docker.Given() {
			continue
		}
		by := f.Listen.Proxy
		if s.Listen != "" {
			by = []string{s.Listen}
		}
		attached := s.Enter != "" || len(f.Listen.Enter) > 0
		switch {
		case !attached && len(s.UIDs) > 0:
			r.failAt(r.places[at], "%s is told by an address, and uid by a unix socket; no connection is both: leave one out, or add enter: \"unix:/path\"", at)
		case !attached && !slices.ContainsFunc(by, isTCP) && (s.Listen != "" || len(f.Listen.Transparent) == 0):
			r.failAt(r.places[at], "%s needs a TCP listener or a socket to hand its network in, and the sandbox has none to come by; add one to listen.proxy, listen.transparent or listen.enter", at)
		}
	}
	enters := len(f.Listen.Enter) > 0 || slices.ContainsFunc(f.Sandboxes, func(s SandboxRules) bool { return s.Enter != "" })
	if f.Docker.Socket != "" && !f.AsksDocker() && !enters {
		r.failAt(r.places["docker"], "docker.socket is asked for sandboxes with docker or enter, and there is none; write docker: {name: web} under a sandbox, or leave the key out")
	}
}
