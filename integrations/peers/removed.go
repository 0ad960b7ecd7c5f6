package peers

// removed are kinds of earlier versions, with what to do instead of an import.
var removed = map[string]string{
	"cilium":        "egressd init k8s puts egressd into the pod, beside the CiliumNetworkPolicy: egressd help kubernetes",
	"cloudflare":    "Cloudflare's lists are code of a Worker now: egressd help platforms says where egressd stands there",
	"gh-aw":         "egressd init github holds a job: egressd help github-actions",
	"init-firewall": "egressd init devcontainer writes a policy for a dev container",
	"microsandbox":  "egressd run --learn -- CMD records what a program needs, and egressd policy suggest --run last proposes the rules",
	"opa-envoy":     "egressd help rego-recipes says how egressd and Envoy ask the same Rego",
	"opensandbox":   "egressd run --learn -- CMD records what a program needs, and egressd policy suggest --run last proposes the rules",
	"pipelock":      "egressd run --learn -- CMD records what an agent needs, and egressd policy suggest --run last proposes the rules",
	"squid":         "write the hosts of its dstdomain lists into allow_file: a pattern a line, .example.com as example.com and *.example.com",
}

// Removed returns what to do instead of converting a kind that earlier versions had, or "".
func Removed(kind string) string { return removed[kind] }
