package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox/folder"
)

// A repository is the part of a git repository that lies outside of a working directory, and that git writes to when it
// is used there.
type repository struct {
	work    string
	shared  []string // that the program may change anyway
	folders []string // that egressd serves to the program, see changes.go
	areas   []*folder.Area
	objects []string // what of these is shared without being served, for speed: git outside obeys nothing there
	partly  string   // the top of the working tree, if the working directory is a folder in it; else empty
}

// submodulesDepth is how deep submodules in submodules are looked for.
const submodulesDepth = 4

// repositoryOf looks for the repository of a working directory, which has no symbolic links. The program may have written
// anything there in an earlier run, such as a .git that names a folder of somebody else's. So a folder outside
// counts only if the folder itself names the working tree, or contains it.
func repositoryOf(work, home string, shared []string) (*repository, error) {
	r := &repository{work: work, shared: append([]string{work}, shared...)}
	top := workingTree(work)
	if top == "" {
		return r, nil
	}
	if home != "" && hostpaths.Within(home, top) {
		return r, nil // a repository of settings, not of this project
	}
	if !r.isShared(top) {
		r.partly = top
	}
	return r, errors.Join(r.addTree(top), r.addSubmodules(top, submodulesDepth))
}

func (r *repository) isShared(path string) bool {
	return slices.ContainsFunc(slices.Concat(r.shared, r.folders), func(folder string) bool { return hostpaths.Within(path, folder) })
}

// addTree adds what belongs to the working tree at top.
func (r *repository) addTree(top string) error {
	dir, err := filepath.EvalSymlinks(filepath.Join(top, ".git"))
	if err != nil {
		return nil // git does not find it either
	}
	if isFile(dir) {
		dir = namedIn(dir, "gitdir: ")
	}
	switch {
	case dir == "", r.isShared(dir):
	case dir == filepath.Join(top, ".git"), isModule(dir, top):
		r.add(dir, "")
	case isWorktree(dir, top):
		r.add(filepath.Dir(filepath.Dir(dir)), dir)
	default:
		return unknownRepository(top, dir)
	}
	return nil
}

func unknownRepository(top, dir string) error {
	return hint.Misused(fmt.Errorf("--fs: git in %s writes to %s, which does not name that working tree: commits would be lost", top, dir),
		"egressd run --fs --share "+dir+" -- COMMAND, if that repository is yours")
}

// namedIn returns the folder that a file of git names, without symbolic links, or "" if there is none.
func namedIn(file, lead string) string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) > 4<<10 {
		return ""
	}
	path, ok := strings.CutPrefix(strings.TrimRight(string(text), "\r\n"), lead)
	if !ok || path == "" {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(file), path)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return ""
	}
	return path
}

// isWorktree reports whether dir is the folder of a linked working tree at top, in the repository two folders above.
func isWorktree(dir, top string) bool {
	common := filepath.Dir(filepath.Dir(dir))
	back := namedIn(filepath.Join(dir, "gitdir"), "")
	return filepath.Base(filepath.Dir(dir)) == "worktrees" && back == filepath.Join(top, ".git") && looksLikeGit(common)
}

// isModule reports whether dir is the repository of the submodule at top.
func isModule(dir, top string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil || !looksLikeGit(dir) {
		return false
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.TrimSpace(key) != "worktree" {
			continue
		}
		tree := strings.Trim(strings.TrimSpace(value), `"`)
		if !filepath.IsAbs(tree) {
			tree = filepath.Join(dir, tree)
		}
		return hostpaths.Real(tree) == top
	}
	return false
}

func looksLikeGit(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs", "config"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// add adds a repository; own is the folder of the working tree's own in it, or empty.
func (r *repository) add(dir, own string) {
	area := gitFolder(dir, r.partly == "")
	if own != "" {
		area = commonFolder(filepath.Base(own), gitFolder(own, r.partly == ""))
	}
	r.folders, r.areas = append(r.folders, dir), append(r.areas, area)
	if objects := filepath.Join(dir, "objects"); isPlainFolder(objects) {
		r.objects = append(r.objects, objects)
	}
}

// serveFolder serves one of the folders of the repository by a descriptor of /dev/fuse.
func (r *runner) serveFolder(place, device int) error {
	return folder.Serve(r.repository.folders[place], r.repository.areas[place], device)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// isPlainFolder is isFolder, and false for a symbolic link.
func isPlainFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// addSubmodules adds the repositories of submodules that lie in the working directory.
func (r *repository) addSubmodules(top string, depth int) error {
	text, err := os.ReadFile(filepath.Join(top, ".gitmodules"))
	if err != nil || depth == 0 {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.TrimSpace(key) != "path" {
			continue
		}
		tree := filepath.Join(top, strings.Trim(strings.TrimSpace(value), `"`))
		real, err := filepath.EvalSymlinks(tree)
		if err != nil || real != tree || !hostpaths.Within(tree, r.work) || tree == r.work {
			continue
		}
		if err := errors.Join(r.addTree(tree), r.addSubmodules(tree, depth-1)); err != nil {
			return err
		}
	}
	return nil
}

func namesIn(dir string) (names []string) {
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// sayRepository says what the program may change beside the working directory.
func (r *runner) sayRepository() {
	if r.repository == nil || len(r.repository.folders) == 0 {
		return
	}
	for _, folder := range r.repository.folders {
		fmt.Fprintf(r.talk, "egressd: git: %s is shared, but for its settings and hooks\n", printable.Text(folder))
	}
	if top := r.repository.partly; top != "" {
		fmt.Fprintf(r.talk, "egressd: warning: of the working tree %s only this folder is shared: changes to its other files are lost at the end\n", printable.Text(top))
	}
}

// workingTree returns the nearest folder, dir or above it, that has a .git; "" if there is none.
func workingTree(dir string) string { return folderWith(dir, ".git") }

// folderWith returns the nearest folder, dir or above it, that has a file or folder of this name; "" if there is none.
func folderWith(dir, name string) string {
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}
