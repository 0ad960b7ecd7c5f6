package run

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/egressd/egressd/sandbox/folder"
)

// The files and folders of a repository that a program may change (gitrepository-layout(5)). Git outside obeys the others: settings,
// hooks, and links between working trees and repositories. The lists name harmless files, since git outside or an editor may
// write new settings under any name before it renames the file.

var closed, free, own = &folder.Area{}, &folder.Area{Right: folder.Free}, &folder.Area{Right: folder.Own}

// commonNames are what git writes to in a repository for all of its working trees.
var commonNames = []string{"objects", "refs", "logs", "info", "lfs", "rr-cache", "lost-found", "packed-refs", "packed-refs.new", "packed-refs.lock", "shallow", "shallow.lock", "gc.pid", "gc.pid.lock", "gc.log", "gc.log.lock"}

// ownNames are what git writes to for one working tree, beside ownFiles.
var ownNames = []string{"index", "index.lock", "rebase-merge", "rebase-apply", "sequencer", "addp-hunk-edit.diff"}

// ownFiles are references and messages: HEAD, ORIG_HEAD, MERGE_MSG, BISECT_LOG. No name is one that git obeys in another case, for
// file systems without case. Then other forms of the index, and what editors put beside a message.
var ownFiles = regexp.MustCompile(`^(HEAD|[A-Z]+([_-][A-Z]+)+)(\.lock)?$|^(next-index-|index\.stash\.|sharedindex[._]|shallow_)[0-9A-Za-z.]+$|^[.#]?[A-Z]+_(EDIT)?MSG[.~#a-z]*$`)

// headLock is what git gc makes to keep others away from the HEAD of another working tree, which it does not change.
const headLock = "HEAD.lock"

// gitFolder returns the area of the folder that git has for one working tree. With modules, the program may make repositories of
// submodules there. Git outside may remove the folder and give its name to another working tree, which is not the program's.
func gitFolder(dir string, modules bool) *folder.Area {
	is, err := os.Stat(dir)
	if err != nil {
		return closed
	}
	below := free
	if !modules {
		below = moduleFolder(filepath.Join(dir, "modules"), submodulesDepth)
	}
	others := otherTrees(nil)
	return &folder.Area{Only: is, Names: func(name string) *folder.Area {
		switch {
		case name == "modules":
			return below
		case name == "worktrees":
			return others
		case slices.Contains(commonNames, name), slices.Contains(ownNames, name), ownFiles.MatchString(name):
			return free
		}
		return closed
	}}
}

// commonFolder returns the area of a repository with linked working trees. One of these trees is the program's.
func commonFolder(tree string, treeFolder *folder.Area) *folder.Area {
	trees := otherTrees(map[string]*folder.Area{tree: treeFolder})
	return &folder.Area{Names: func(name string) *folder.Area {
		switch {
		case name == "worktrees":
			return trees
		case slices.Contains(commonNames, name):
			return free
		case name == headLock:
			return own
		}
		return closed
	}}
}

// otherTrees returns the area of the folder worktrees. Git outside makes the folder of a new working tree there, with commondir in it, which says whose
// settings count: the program makes none. In those of other working trees, git gc shortens the logs.
func otherTrees(known map[string]*folder.Area) *folder.Area {
	other := &folder.Area{Names: func(name string) *folder.Area {
		switch name {
		case "logs":
			return free
		case headLock:
			return own
		}
		return closed
	}}
	return &folder.Area{Names: func(name string) *folder.Area {
		if area := known[name]; area != nil {
			return area
		}
		return other
	}}
}

// moduleFolder returns the area of a folder of repositories of submodules. The program cannot change a repository that git outside adds
// meanwhile.
func moduleFolder(dir string, depth int) *folder.Area {
	known := map[string]*folder.Area{}
	for _, name := range namesIn(dir) {
		path := filepath.Join(dir, name)
		switch {
		case depth == 0 || !isPlainFolder(path):
		case looksLikeGit(path):
			known[name] = gitFolder(path, false)
		default:
			known[name] = moduleFolder(path, depth-1) // a name with a slash
		}
	}
	return &folder.Area{Names: func(name string) *folder.Area {
		if area := known[name]; area != nil {
			return area
		}
		return closed
	}}
}
