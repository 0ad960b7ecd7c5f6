package sandbox

import (
	"errors"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A RefusedContainer is a container that was refused by one of its settings, before egressd served it. Its JSON is what a command
// that has refused one tells the daemon.
type RefusedContainer struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Image   string `json:"image,omitempty"`
	Project string `json:"project,omitempty"` // Project and Service are those of Compose
	Service string `json:"service,omitempty"`

	Sandbox string `json:"sandbox,omitempty"` // that it would have been, as far as the command knows
	Setting string `json:"setting"`           // the row of package boundary's table: a field of the engine's API
	Reason  string `json:"reason"`            // what is refused of it, and why
}

// refusedBytes bounds each text of a RefusedContainer, and reasonBytes the reason that [RefusedReason] makes.
const refusedBytes, reasonBytes = 1024, 512

// RefusedReason is a reason of several lines as that of a RefusedContainer.
func RefusedReason(lines string) string {
	text := strings.ReplaceAll(lines, "\n", "; ")
	return text[:min(len(text), reasonBytes)]
}

// Check returns an error unless c can be recorded.
func (c *RefusedContainer) Check() error {
	for _, text := range []string{c.ID, c.Name, c.Image, c.Project, c.Service, c.Sandbox, c.Setting, c.Reason} {
		if len(text) > refusedBytes {
			return errors.New("a refused container with a text that is too long")
		}
	}
	if c.ID == "" || c.Setting == "" || c.Reason == "" || c.Sandbox != "" && !PlainName(c.Sandbox) {
		return errors.New("a refused container without an id, a setting or a reason, or with what is no name of a sandbox")
	}
	return nil
}

// Container is c as records name it.
func (c *RefusedContainer) Container() *policy.Container {
	return &policy.Container{ID: c.ID, Name: c.Name, Image: c.Image, Project: c.Project, Service: c.Service}
}
