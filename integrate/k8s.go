package integrate

import (
	_ "embed"
	"strings"
)

//go:embed k8s.yaml
var k8s string

// Kubernetes returns a manifest: a pod of an agent, egressd as a sidecar of it, and the rules
// between them. image is egressd's.
func Kubernetes(path, image string) Set {
	return Set{
		Files: []Made{{path, strings.ReplaceAll(k8s, "EGRESSD-IMAGE", image), 0o644}},
		Notes: []string{
			"put the agent's image and command into " + path + ", and its rules into the policy; then kubectl apply -f " + path,
			"Kubernetes 1.29 or later, for the sidecar; a namespace that enforces Pod Security \"privileged\", since the rules take NET_ADMIN in an init container",
			"who may create pods or exec into egressd's container is outside of what it holds; so is who connects to the agent from elsewhere: that is for a NetworkPolicy",
		},
	}
}
