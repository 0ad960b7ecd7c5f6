package devcontainer

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// TestDevContainerOfCompose takes over settings of a dev container whose services egressd holds, and refuses those that nobody judges
// when the container starts.
func TestDevContainerOfCompose(t *testing.T) {
	folder := t.TempDir()
	at, file := filepath.Join(folder, ".devcontainer", "devcontainer.json"), filepath.Join(folder, "compose.yaml")
	judged := []string{"/policy/judged.yaml", "/policy/judged.egressd.yaml"}
	of := func(text string) (*Composed, error) {
		writeFile(t, at, text)
		return OfCompose(folder, file, judged, []string{"web"})
	}
	const head = `{"dockerComposeFile": "../compose.yaml", "service": "web"`
	for _, text := range []string{
		head + `}`,
		`{"dockerComposeFile": ["../compose.yaml"], "service": "web", // of the tests
		"workspaceFolder": "/workspaces/project", "postCreateCommand": "npm ci", "remoteUser": "node", "mounts": ["source=x,target=/y,type=volume"],}`,
		head + `, "remoteEnv": {"PATH": "${containerEnv:PATH}:/opt/bin"}, "capAdd": ["SYS_PTRACE"]}`,
	} {
		got, err := of(text)
		if err != nil || got == nil {
			t.Errorf("%s: %v, %v", text, got, err)
			continue
		}
		var said map[string]any
		if err := json.Unmarshal([]byte(got.Text), &said); err != nil || !slices.Equal(words(said["dockerComposeFile"]), judged) || said["service"] != "web" {
			t.Errorf("%s became %s, %v", text, got.Text, err)
		}
	}
	for text, setting := range map[string]string{
		head + `, "initializeCommand": "id"}`:                                              "initializeCommand",
		head + `, "features": {"ghcr.io/devcontainers/features/node:1": {}}}`:              "features",
		head + `, "runArgs": ["--privileged"]}`:                                            "runArgs",
		head + `, "image": "x"}`:                                                           "image",
		head + `, "somethingNew": 1}`:                                                      "somethingNew",
		head + `, "remoteEnv": {"TOKEN": "${localEnv:GITHUB_TOKEN}"}}`:                     "remoteEnv TOKEN",
		head + `, "postCreateCommand": ["echo", "${LOCALENV:HOME}"]}`:                      "postCreateCommand",
		head + `, "containerEnv": {"A": "x\nLABEL y=z"}}`:                                  "containerEnv A",
		head + `, "capAdd": ["CHOWN\n  evil:\n    image: x"]}`:                             "capAdd",
		head + `, "mounts": [{"type": "volume", "source": "x\r  y: {}", "target": "/z"}]}`: "mounts source",
		head + `, "securityOpt": ["a\u2028b"]}`:                                            "securityOpt",
		head + `, "runServices": ["--env-file=x"]}`:                                        "runServices",
		head + `, "remoteUser": "a b"}`:                                                    "remoteUser",
		`{"dockerComposeFile": "../compose.yaml", "service": "db"}`:                        "service",
		`{"dockerComposeFile": "../compose.yaml"}`:                                         "service",
	} {
		got, err := of(text)
		if refused, is := errors.AsType[*BoundaryError](err); !is || refused.Setting != setting || got != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{`{"image": "x"}`, `{"dockerComposeFile": "../other.yaml", "service": "web"}`, `{"dockerComposeFile": ["../compose.yaml", "b.yaml"], "service": "web"}`} {
		if got, err := of(text); got != nil || err != nil {
			t.Errorf("of other files: %s: %v, %v", text, got, err)
		}
	}
}

// TestLabelsForAComposeFile has settings of images that would be more than one line of a compose file.
func TestLabelsForAComposeFile(t *testing.T) {
	for text, refused := range map[string]bool{
		"": false, `[]`: false, `[{"remoteUser": "node", "mounts": ["source=x,target=/y,type=volume"], "postCreateCommand": "a\nb", "customizations": {"x": "a\nb"}}]`: false,
		`[{"id": "a"}, {"capAdd": ["CHOWN\n  evil: {image: x}"]}]`: true, `{"securityOpt": ["a\rb"]}`: true, `[{"containerEnv": {"A\nB": "x"}}]`: true,
		`[{"mounts": [{"source": "a\u0085b", "target": "/x"}]}]`: true, `not JSON`: true,
	} {
		if err := JudgeLabels("a:1", map[string]string{metadataLabel: text}); (err != nil) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}
