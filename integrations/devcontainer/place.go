package devcontainer

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/integrations/jsonc"
)

// By default the tool that starts a dev container mounts the root of the workspace's git repository at
// /workspaces/NAME. egressd mounts the settings read-only at ${containerWorkspaceFolder}/.devcontainer. Both mounts
// must show the same folder. From a writable parent folder, a program could replace .devcontainer; through a second
// writable mount, it could edit the settings.

// placed judges where the workspace is mounted.
func (c *checker) placed(said map[string]any) error {
	mount, isText := said[workspaceMount].(string)
	if said[workspaceMount] != nil && !isText {
		return c.breaks(workspaceMount, "it is no text", c.mountAlone())
	}
	if said["workspaceFolder"] == "" {
		return c.breaks("workspaceFolder", "it is empty, and tools ask git where the workspace is then", "leave it out")
	}
	root := gitRoot(c.Folder)
	if !isText && root != "" {
		return c.breaks(workspaceMount, "what is mounted is "+root+", the root of the git repository: in there somebody in the container can put another folder in the place of "+c.Folder+", with other settings",
			c.mountAlone()+", without the rest of the repository; or mv .devcontainer "+root)
	}
	at := []string{"/workspaces/" + filepath.Base(c.Folder)}
	if isText {
		if !c.mountsWorkspace(mount) {
			return nil
		}
		at = mountTargets(c.expanded(mount))
	}
	folder, _ := said["workspaceFolder"].(string)
	if folder == "" {
		folder = c.usualPlace(root)
	}
	for _, target := range at {
		if strange := unknownVariable().FindString(mount + folder); strange != "" || path.Clean(c.expanded(folder)) != path.Clean(target) {
			return c.breaks("workspaceFolder", fmt.Sprintf("it is %s, and the workspace is mounted at %s: the settings could be written there", folder, target), c.mountAlone())
		}
	}
	return nil
}

// usualPlace is the workspaceFolder of settings that name none.
func (c *checker) usualPlace(root string) string {
	below, ok := strings.CutPrefix(c.Folder, root+"/")
	switch {
	case root == "":
		return "/workspaces/" + filepath.Base(c.Folder)
	case ok:
		return path.Join("/workspaces", filepath.Base(root), below)
	}
	return "somewhere else" // behind a link, by which tools go in more than one way
}

// usualInside is where tools mount a workspace that is no part of a repository above it.
const usualInside = "/workspaces/${localWorkspaceFolderBasename}"

// place has the settings say what is mounted as the workspace, and where. Without that the tool asks git for the root of the
// repository, and a program in the container may have written another one into .git/config (core.worktree).
func (d *Options) place(at string, doc *jsonc.File, said map[string]any) error {
	folder, mount := usualInside, said[workspaceMount]
	if strings.ContainsAny(filepath.Base(d.Folder), ",\"\r\n$") {
		return &BoundaryError{at, workspaceMount, "no mount can have " + strconv.Quote(d.Folder) + " in it", "mv it to a folder with a plain name"}
	}
	if text, _ := mount.(string); len(mountTargets(text)) == 1 {
		folder = mountTargets(text)[0]
	}
	if said["workspaceFolder"] == nil {
		if err := d.set(at, doc, []string{"workspaceFolder"}, folder); err != nil {
			return err
		}
	}
	if mount != nil {
		return nil
	}
	return d.set(at, doc, []string{workspaceMount}, "source=${localWorkspaceFolder},target="+folder+",type=bind")
}

func (c *checker) mountAlone() string {
	at := "/workspaces/" + filepath.Base(c.Folder)
	return fmt.Sprintf(`"workspaceMount": "source=${localWorkspaceFolder},target=%s,type=bind", "workspaceFolder": %q`, at, at)
}

// mountsWorkspace reports whether a value of --mount has the workspace's own folder.
func (c *checker) mountsWorkspace(text string) bool {
	for _, source := range mountSources(c.expanded(text)) {
		if filepath.IsAbs(source) && hostfiles.ResolveLinks(source) == hostfiles.ResolveLinks(c.Folder) {
			return true
		}
	}
	return false
}

func mountTargets(text string) (all []string) {
	for field := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(strings.Trim(field, `"`)), "=")
		switch strings.ToLower(name) {
		case "target", "dst", "destination":
			all = append(all, value)
		}
	}
	return all
}

// unknownVariable is one whose value is not known before the container is there.
var unknownVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$\{(?:containerEnv|containerWorkspaceFolder|containerWorkspaceFolderBasename|devcontainerId)\b`)
})

// gitRoot returns the root of the git repository above a folder, with and without resolving links. It returns "" if
// the folder is the root itself, or if there is no repository.
func gitRoot(folder string) string {
	for _, in := range []string{folder, hostfiles.ResolveLinks(folder)} {
		for at := in; ; at = filepath.Dir(at) {
			if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
				if at != in {
					return at
				}
				break
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return ""
}
