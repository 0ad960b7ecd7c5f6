package devcontainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations/jsonc"
)

// TestDevContainerMountsInPlace has settings name files of the workspace, which somebody in the container could put a link in the place
// of: for the next start, or the next build.
func TestDevContainerMountsInPlace(t *testing.T) {
	const workspaceAt = `"workspaceMount": "source=${localWorkspaceFolder},target=/w,type=bind", "workspaceFolder": "/w"`
	in := func(path string) string {
		return "source=${localWorkspaceFolder}/" + path + ",target=${containerWorkspaceFolder}/" + path + ",type=bind"
	}
	for text, row := range map[string]struct {
		guards  []string
		refused bool
	}{
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/data,target=/d,type=bind,readonly"]}`:                                                                                   {guards: []string{in("data")}},
		`{"image": "base", "mounts": [{"source": "${localWorkspaceFolder}/conf/a/nginx.conf", "target": "/d", "type": "bind"}]}`:                                                              {guards: []string{in("conf"), in("conf/a"), in("conf/a/nginx.conf")}},
		`{"image": "base", "runArgs": ["-v", "./data:/d"], ` + workspaceAt + `}`:                                                                                                              {guards: []string{in("data")}},
		`{"image": "base", "runArgs": ["--env-file=${localWorkspaceFolder}/.env"]}`:                                                                                                           {guards: []string{in(".env") + ",readonly"}},
		`{"image": "base", "runArgs": ["--env-file", ".devcontainer/x.env"]}`:                                                                                                                 {},
		`{"image": "base", "runArgs": ["--env-file", ".env"]}`:                                                                                                                                {refused: true},
		`{"image": "base", "runArgs": ["--env-file=.devcontainer/../.env"]}`:                                                                                                                  {refused: true},
		`{"build": {"dockerfile": "../Dockerfile", "context": ".."}}`:                                                                                                                         {guards: []string{in("Dockerfile") + ",readonly"}},
		`{"build": {"dockerfile": "../conf/Dockerfile", "context": "../conf"}}`:                                                                                                               {guards: []string{in("conf"), in("conf/Dockerfile") + ",readonly"}},
		`{"dockerFile": "D", "context": "../conf"}`:                                                                                                                                           {guards: []string{in("conf")}},
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/data,target=/workspaces/NAME/data,type=bind"]}`:                                                                         {},
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/data,target=/d,type=bind", "source=v,target=${containerWorkspaceFolder}/data,type=volume"]}`:                            {},
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/conf,target=${containerWorkspaceFolder}/conf,type=bind", "source=${localWorkspaceFolder}/conf/a,target=/a,type=bind"]}`: {guards: []string{in("conf/a")}},

		// Another mount has the path, too, or it lies behind a link.
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/conf,target=/c,type=bind", "source=${localWorkspaceFolder}/conf/a,target=/a,type=bind"]}`:                                                                                                   {refused: true},
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/conf,target=/c,type=bind", "source=${localWorkspaceFolder}/data,target=${containerWorkspaceFolder}/conf,type=bind,readonly", "source=${localWorkspaceFolder}/conf/a,target=/a,type=bind"]}`: {refused: true},
		`{"image": "base", "runArgs": ["-v", "${localWorkspaceFolder}/conf:/c"], "mounts": ["source=${localWorkspaceFolder}/conf/a,target=/a,type=bind"]}`:                                                                                                        {refused: true},
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/linked/a,target=/a,type=bind"]}`:                                                                                                                                                            {refused: true},
		`{"build": {"dockerfile": "../linked/Dockerfile"}}`: {refused: true},
		`{"build": {"dockerfile": "../Dockerfile"}, "mounts": ["source=${localWorkspaceFolder}/Dockerfile,target=${containerWorkspaceFolder}/Dockerfile,type=bind"]}`: {refused: true},
		`{"features": {"../f": {}}, "image": "base"}`: {refused: true},
	} {
		d := workspace(t, text)
		name := filepath.Base(d.Folder)
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "devcontainer.json"), strings.ReplaceAll(text, "NAME", name))
		for file, is := range map[string]string{"data/x": "", "conf/a/nginx.conf": "", "conf/Dockerfile": "FROM base\n", "Dockerfile": "FROM base\n", ".env": "A=b\n", "f/devcontainer-feature.json": `{"id": "f"}`, ".devcontainer/x.env": "A=b\n", ".devcontainer/D": "FROM base\n"} {
			writeFile(t, filepath.Join(d.Folder, file), is)
		}
		if err := os.Symlink("conf", filepath.Join(d.Folder, "linked")); err != nil {
			t.Fatal(err)
		}
		plan, err := Merge(d)
		var boundary *BoundaryError
		if errors.As(err, &boundary) != row.refused || !row.refused && err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil {
			continue
		}
		var said map[string]any
		if err := json.Unmarshal(jsonc.Standard(plan.File.New), &said); err != nil {
			t.Fatal(err)
		}
		first := slices.Index(words(said["mounts"]), "source=${localWorkspaceFolder}/.devcontainer,target=${containerWorkspaceFolder}/.devcontainer,type=bind,readonly")
		if got := words(said["mounts"])[first+1:]; !slices.Equal(got, row.guards) {
			t.Errorf("%s: mounts in place %q", text, got)
		}
		writeFile(t, plan.File.Path, string(plan.File.New))
		if again, err := Merge(d); err != nil || !again.File.Same() {
			t.Errorf("%s: a second time changes it: %v", text, err)
		}
	}
}

// TestADockerfileThatWasReadStaysSo has the user trust a Dockerfile that somebody in the container could write otherwise.
func TestADockerfileThatWasReadStaysSo(t *testing.T) {
	d := workspace(t, `{"build": {"dockerfile": "../Dockerfile"}}`)
	d.Trust = append(d.Trust, filepath.Join(d.Folder, "Dockerfile"))
	writeFile(t, d.Trust[len(d.Trust)-1], "ARG X=unread\nFROM $X\n")
	plan, err := Merge(d)
	if err != nil || !strings.Contains(string(plan.File.New), "/Dockerfile,type=bind,readonly") {
		t.Errorf("%v, %+v", err, plan)
	}
}

// TestDevContainersOfOthers has settings in the shapes of public ones, with invented names.
func TestDevContainersOfOthers(t *testing.T) {
	for _, text := range []string{
		`{"name": "Web", "image": "base", "forwardPorts": [3000], "portsAttributes": {"3000": {"label": "web", "onAutoForward": "notify"}}, "postCreateCommand": "yarn install", "customizations": {"vscode": {"extensions": ["a.b"], "settings": {"x": 1}}}, "remoteUser": "node"}`,
		`{"image": "base", "mounts": ["source=${localWorkspaceFolderBasename}-modules,target=${containerWorkspaceFolder}/node_modules,type=volume"], "postCreateCommand": "chown node node_modules"}`,
		`{"image": "base", "mounts": [{"source": "crates-${devcontainerId}", "target": "/usr/local/crates", "type": "volume"}]}`,
		`{"image": "base", "mounts": ["source=${localEnv:HOME}${localEnv:USERPROFILE}/.gitconfig,target=/root/.gitconfig,type=bind,readonly"]}`,
		`{"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"VARIANT": "3-bookworm", "NODE_VERSION": "none", "TZ": "${localEnv:TZ:America/Los_Angeles}"}}, "settings": {"a.b": "/c"}, "extensions": ["a.b"], "remoteUser": "vscode"}`,
		`{"dockerFile": "../Dockerfile", "runArgs": ["--name=proj-dev", "--hostname=dev", "--init", "--ulimit", "core=-1", "--memory=4g", "--shm-size=1g", "--add-host=host.docker.internal:host-gateway"]}`,
		`{"image": "base", "runArgs": ["--env-file", ".devcontainer/devcontainer.env"], "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}"}`,
		`{"image": "base", "containerEnv": {"FOO": "${localEnv:FOO}", "NODE_OPTIONS": "--max-old-space-size=4096"}, "remoteEnv": {"PATH": "${containerEnv:PATH}:/x", "LOCAL": "${localWorkspaceFolder}"}, "remoteUser": "${localEnv:USER:vscode}"}`,
		`{"image": "base", "onCreateCommand": {"a": "x", "b": ["y", "z"]}, "updateContentCommand": "x", "postAttachCommand": {"server": "npm start"}, "shutdownAction": "none", "overrideCommand": false, "userEnvProbe": "loginInteractiveShell"}`,
		`{"image": "base", "mounts": ["source=${localWorkspaceFolder}/.cache,target=/home/vscode/.cache,type=bind,consistency=cached", "type=tmpfs,target=/scratch,tmpfs-size=1000000"], "capAdd": ["SYS_PTRACE"]}`,
		`{"image": "base", "features": {"./tools": {"version": "1"}}, "overrideFeatureInstallOrder": ["./tools"], "hostRequirements": {"cpus": 4, "memory": "8gb"}}`,
		`{"image": "base", "mounts": ["source=/srv/datasets,target=/data,type=bind,readonly"], "containerUser": "1000:1000"}`,
	} {
		d := workspace(t, text)
		const dockerfile = "ARG VARIANT=16\nFROM base\n# [Choice] the version \u2014 see the \u201cvariants\u201d\nRUN if [ \"${NODE_VERSION}\" != \"none\" ]; then echo; fi\n\nENV A=b \\\n    C=d\nCOPY --chown=a . /x\nFROM base AS dev\nUSER node\n"
		for file, is := range map[string]string{".devcontainer/Dockerfile": dockerfile, "Dockerfile": dockerfile, ".cache/x": "", ".devcontainer/devcontainer.env": "A=b\n",
			".devcontainer/tools/devcontainer-feature.json": `{"id": "tools", "version": "1.0.0", "name": "Tools", "options": {"version": {"type": "string", "default": "1"}}, "containerEnv": {"PATH": "/x:${PATH}"}, "installsAfter": ["ghcr.io/a/b"]}`} {
			writeFile(t, filepath.Join(d.Folder, file), is)
		}
		if _, err := Merge(d); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
