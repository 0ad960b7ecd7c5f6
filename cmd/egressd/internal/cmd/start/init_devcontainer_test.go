package start

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations/devcontainer"
)

// TestTheProjectsOwnDevContainer finds nothing to change in .devcontainer, so that its copy of the Feature is the one
// that egressd has.
func TestTheProjectsOwnDevContainer(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..", "..")
	c, err := config.Load(filepath.Join(root, ".devcontainer", "egressd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	o := devContainerOptions{integrationOptions: integrationOptions{planOptions: &planOptions{}}, workspace: root, sandbox: "egressd", trust: []string{"mcr.microsoft.com/devcontainers/go:1.26-bookworm"}}
	settings, missing, err := o.settings(c)
	if err != nil || missing != "" {
		t.Fatalf("the policy lacks %q: %v", missing, err)
	}
	settings.Program = "/usr/bin/egressd"
	plan, err := devcontainer.Merge(settings)
	if err != nil {
		t.Fatal(err)
	}
	var difference strings.Builder
	if changed, err := o.show(&difference, plan); changed || err != nil {
		t.Errorf("egressd init devcontainer would change %s (%v)", difference.String(), err)
	}
}
