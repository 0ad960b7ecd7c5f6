package file

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const useAdapter = "leave the key out, and ask a policy for Envoy from package egress: egressd help rego-recipes"

// removedKeys are keys that earlier versions had, each with what to write instead. "[]" stands for any entry of a list.
var removedKeys = map[string]string{
	"audit.witnesses":          "send checkpoints to audit.anchors, and compare with egressd log verify --checkpoint FILE",
	"listen.forwarded":         "let the platform's network policy allow egressd's listener alone, and set the proxy variables in the sandbox: egressd help platforms",
	"sandboxes[].oidc":         "give the sandbox a token_file, and set the proxy variables that egressd env prints: egressd help platforms",
	"rego[].input":             useAdapter,
	"sandboxes[].rego[].input": useAdapter,
}

var entryOfList = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[[0-9]+\]`) })

// instead returns what to write instead of a key that was removed, or "". The key stands with its place, as in
// "sandboxes[0].oidc"; what is at the top of the file is "the file.KEY".
func instead(key string) string {
	return removedKeys[strings.TrimPrefix(entryOfList().ReplaceAllString(key, "[]"), "the file.")]
}

// RemovedFormat says of a format that egressd wrote before what to use instead, and "" of every other text.
func RemovedFormat(name string) string {
	if !slices.Contains([]string{"cef", "eve", "zeek"}, name) {
		return ""
	}
	return "egressd does not write " + name + "; take json, and map its fields by the table of egressd help export-formats, or take ocsf or ecs"
}
