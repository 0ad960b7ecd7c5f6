// Package k8s makes a manifest of Kubernetes: a pod of an agent with egressd as its sidecar.
package k8s

import (
	_ "embed"
	"strings"

	"github.com/egressd/egressd/integrations"
)

//go:embed k8s.yaml
var k8s string

// Files returns a manifest: a pod with an agent, with egressd as sidecar, and with an init container that loads the
// rules. image is egressd's image.
func Files(path, image string) integrations.Set {
	return integrations.Set{
		Files: []integrations.Made{{Path: path, Text: strings.ReplaceAll(k8s, "EGRESSD-IMAGE", image), Mode: 0o644}},
		Notes: []string{
			"put the agent's image and command into " + path + ", and its rules into the policy; then kubectl apply -f " + path,
			"Kubernetes 1.29 or later, for the sidecar; a namespace that enforces Pod Security \"privileged\", since the rules take NET_ADMIN in an init container",
			"who may create pods or exec into egressd's container is outside of what it holds; so is who connects to the agent from elsewhere: that is for a NetworkPolicy",
		},
	}
}
