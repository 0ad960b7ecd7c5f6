package policy

import (
	"strings"
	"sync/atomic"
)

// A Sandbox is who asks: one container, one bwrap tree, one token.
type Sandbox struct {
	Name   string
	Kind   string
	Labels map[string]string

	// Template is the name of the template that the sandbox is one of, or "". It is not for policies.
	Template string

	// Attachment tells what came from one network that is attached from the rest of what
	// the sandbox does; 0: nothing was. It is not for policies.
	Attachment uint32

	// Container is where the request came from, as far as the engine that runs it
	// says so, or nil. It is for the record, and not for policies.
	Container *Container
}

// Holder names who holds the sandbox's part of what all sandboxes share: the template of a sandbox that is one of a
// template, since its token lets the client choose any id, or else the sandbox itself.
func (s *Sandbox) Holder() string {
	if s.Template != "" {
		return s.Template
	}
	return s.Name
}

// A Container is one run of a container of Docker or Podman. Its engine supplies the fields, which may be long or
// hold unprintable characters.
type Container struct {
	ID    string // 64 hexadecimal digits
	Name  string
	Image string

	// Project and Service are those of Compose; empty: it was started otherwise.
	Project, Service string

	ended atomic.Bool
}

// End marks the container as ended or moved. Connections from its former address no longer belong to it.
func (c *Container) End() { c.ended.Store(true) }

// Ended reports whether it has ended. No container never ends.
func (c *Container) Ended() bool { return c != nil && c.ended.Load() }

// Containers selects the containers of one sandbox by exactly one of its fields.
type Containers struct {
	// Name is that of one container.
	Name string

	// Label is KEY=VALUE.
	Label string

	// Compose is PROJECT/SERVICE.
	Compose string
}

// Given reports whether c names any.
func (c *Containers) Given() bool { return *c != Containers{} }

// String is how c is written in the file.
func (c *Containers) String() string {
	switch {
	case c.Name != "":
		return "name: " + c.Name
	case c.Label != "":
		return "label: " + c.Label
	default:
		return "compose: " + c.Compose
	}
}

// Labels by which Compose marks the containers that it starts.
const (
	ComposeProject = "com.docker.compose.project"
	ComposeService = "com.docker.compose.service"
)

// Holds reports whether a container with that name and those labels is one of them.
func (c *Containers) Holds(name string, labels map[string]string) bool {
	switch {
	case c.Name != "":
		return name == c.Name
	case c.Label != "":
		key, value, _ := strings.Cut(c.Label, "=")
		has, ok := labels[key]
		return ok && has == value
	case c.Compose != "":
		project, service, _ := strings.Cut(c.Compose, "/")
		return labels[ComposeProject] == project && labels[ComposeService] == service
	}
	return false
}
