package devcontainer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDevContainerIsMountedWhereItsSettingsAre, since those are mounted read-only there, and there
// alone.
func TestDevContainerIsMountedWhereItsSettingsAre(t *testing.T) {
	const alone = `"workspaceMount": "source=${localWorkspaceFolder},target=/w/${localWorkspaceFolderBasename},type=bind"`
	for _, row := range []struct {
		git      string // where a repository begins, from the workspace
		settings string
		refused  string // what is said of it
	}{
		{"", `{}`, ""},
		{".git/config", `{}`, ""},
		{"../.git/config", `{}`, "the root of the git repository"},
		{"../../.git", `{}`, "the root of the git repository"}, // a worktree
		{"../.git/config", `{"workspaceFolder": "/workspaces/sub"}`, "the root of the git repository"},
		{"../.git/config", `{` + alone + `, "workspaceFolder": "/w/sub"}`, ""},
		{"../.git/config", `{` + alone + `, "workspaceFolder": "/w/${localWorkspaceFolderBasename}/"}`, ""},
		{"../.git/config", `{"workspaceMount": "source=${localWorkspaceFolder}/..,target=/w,type=bind", "workspaceFolder": "/w/sub"}`, "somebody in the container could change"},
		{"../.git/config", `{"workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/sub,type=bind"}`, "it is /workspaces/pkg/sub"},
		{"../.git/config", `{"workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/pkg/sub,type=bind", "workspaceFolder": ""}`, "it is empty"},
		{"../.git/config", `{"workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/pkg/sub,type=bind"}`, ""},
		{"", `{"workspaceFolder": "/workspaces/sub"}`, ""},
		{"", `{"workspaceFolder": "/workspaces/sub/app"}`, "is mounted at /workspaces/sub"},
		{"", `{` + alone + `}`, "is mounted at /w/sub"},
		{"", `{` + alone + `, "workspaceFolder": "/w/sub/app"}`, "is mounted at /w/sub"},
		{"", `{` + alone + `, "workspaceFolder": "/w/sub${devcontainerId}"}`, "is mounted at /w/sub"},
		{"", `{"workspaceMount": "type=bind,target=/a,target=/w,source=${localWorkspaceFolder}", "workspaceFolder": "/w"}`, "is mounted at /a"},
		{"", `{"workspaceMount": "", "workspaceFolder": "/w"}`, ""},
		{"", `{"workspaceMount": "source=code,target=/w,type=volume", "workspaceFolder": "/x"}`, ""},
		{"", `{"workspaceMount": {"source": "${localWorkspaceFolder}", "target": "/x", "type": "bind"}, "workspaceFolder": "/w"}`, "it is no text"},
	} {
		d := workspace(t, "{}")
		d.Folder = filepath.Join(d.Folder, "pkg", "sub")
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "devcontainer.json"), row.settings)
		if row.git != "" {
			writeFile(t, filepath.Join(d.Folder, row.git), "")
		}
		_, err := Merge(d)
		var boundary *BoundaryError
		if row.refused == "" && err != nil || row.refused != "" && (!errors.As(err, &boundary) || !strings.Contains(boundary.Problem, row.refused) || boundary.Instead == "") {
			t.Errorf("%s, with %q: %v", row.settings, row.git, err)
		}
	}
}

// TestDevContainerOfALooseEngine has an engine in which a program can put other settings in the place of these.
func TestDevContainerOfALooseEngine(t *testing.T) {
	d := workspace(t, `{"image": "base"}`)
	d.Machine.Loose = true
	var refused *BoundaryError
	if _, err := Merge(d); !errors.As(err, &refused) || refused.Setting != "the engine" {
		t.Errorf("%v", err)
	}
}

// TestDevContainerBehindALinkIsOfItsRepository has the workspace be called by a link into one.
func TestDevContainerBehindALinkIsOfItsRepository(t *testing.T) {
	d := workspace(t, "{}")
	writeFile(t, filepath.Join(d.Folder, ".git", "config"), "")
	sub := filepath.Join(d.Folder, "sub")
	writeFile(t, filepath.Join(sub, ".devcontainer", "devcontainer.json"), "{}")
	d.Folder = filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(sub, d.Folder); err != nil {
		t.Fatal(err)
	}
	if _, err := Merge(d); err == nil || !strings.Contains(err.Error(), "the root of the git repository") {
		t.Errorf("%v", err)
	}
}
