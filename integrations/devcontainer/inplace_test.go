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
		`{"image": "base", "runArgs": ["--env-file=${localWorkspaceFolder}/.env"]}`:                                                                                                           {guards: []string{in(".env")}},
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
