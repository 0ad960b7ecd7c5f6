package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
)

// gitPlaces are variables by which git writes to a folder that nothing in the working tree names.
var gitPlaces = []string{"GIT_DIR", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}

// versions are the folders in which other programs than git keep versions. The file pointer in such a folder names the folder
// that has the versions instead.
var versions = []struct{ program, folder, pointer string }{
	{"Mercurial", ".hg", "sharedpath"},
	{"Sapling", ".sl", "sharedpath"},
	{"Jujutsu", ".jj", "repo"},
	{"Jujutsu", ".jj", "repo/store/git_target"},
	{"Subversion", ".svn", ""},
	{"Breezy", ".bzr", ""},
	{"Pijul", ".pijul", ""},
	{"Darcs", "_darcs", ""},
}

// refuseElsewhere returns an error if a program that keeps versions of the working directory writes outside of what the program may
// change: --fs would lose it without a word.
func (r *repository) refuseElsewhere(home string) error {
	for _, name := range gitPlaces {
		value := os.Getenv(name)
		if value != "" && !filepath.IsAbs(value) {
			value = filepath.Join(r.work, value)
		}
		if err := r.refuseOutside("git", value, "as "+name+" says"); err != nil {
			return err
		}
	}
	for _, of := range versions {
		top := folderWith(r.work, of.folder)
		if top == "" || home != "" && hostpaths.Within(home, top) {
			continue
		}
		dir := filepath.Join(top, of.folder)
		named := namedIn(filepath.Join(dir, of.pointer), "")
		git := namedIn(filepath.Join(named, "store", "git_target"), "") // of Jujutsu
		if !isFolder(filepath.Join(named, "store")) && !looksLikeGit(named) {
			named = "" // a program of an earlier run may have named anything
		}
		if !looksLikeGit(git) {
			git = ""
		}
		for _, path := range []string{dir, named, git} {
			if err := r.refuseOutside(of.program, path, "for "+top); err != nil {
				return err
			}
		}
	}
	store := r.largeFiles(home)
	if store != "" && !isFolder(filepath.Join(store, "objects")) {
		return hint.Misused(fmt.Errorf("--fs: git lfs would begin to write to %s, as lfs.storage says: its files would be lost", store), "mkdir -p "+shell.Word(filepath.Join(store, "objects"))+", if git lfs is to write there")
	}
	return r.refuseOutside("git lfs", store, "as lfs.storage says")
}

// refuseOutside returns an error if something is at path and the program may not change it.
func (r *repository) refuseOutside(program, path, why string) error {
	real, err := filepath.EvalSymlinks(path)
	if path == "" || err != nil || r.isShared(real) {
		return nil
	}
	return hint.Misused(fmt.Errorf("--fs: %s writes to %s, %s: commits would be lost", program, real, why),
		"egressd run --fs --share "+shell.Word(real)+" -- COMMAND, if that repository is yours; or cd to the top of the project")
}

// largeFiles returns the folder in which git lfs keeps the files of the working tree, if settings name one, else "".
func (r *repository) largeFiles(home string) (store string) {
	top := workingTree(r.work)
	if top == "" || !hasLine(filepath.Join(top, ".gitattributes"), "filter=lfs") {
		return ""
	}
	files := []string{"/etc/gitconfig"}
	if home != "" {
		settings := os.Getenv("XDG_CONFIG_HOME")
		if settings == "" {
			settings = filepath.Join(home, ".config")
		}
		files = append(files, filepath.Join(settings, "git", "config"), filepath.Join(home, ".gitconfig"))
	}
	dir := filepath.Join(top, ".git")
	if isFile(dir) {
		dir = namedIn(dir, "gitdir: ")
	}
	if common := namedIn(filepath.Join(dir, "commondir"), ""); common != "" {
		dir = common
	}
	for _, file := range append(files, filepath.Join(dir, "config")) {
		text, _ := os.ReadFile(file)
		section := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				section = strings.ToLower(strings.Trim(line, "[] \t"))
			}
			key, value, _ := strings.Cut(line, "=")
			if value = strings.Trim(strings.TrimSpace(value), `"`); section == "lfs" && strings.EqualFold(strings.TrimSpace(key), "storage") {
				store = value // the last one counts
			}
		}
	}
	if rest, ok := strings.CutPrefix(store, "~/"); ok {
		store = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(store) {
		return "" // in the repository
	}
	return store
}

func hasLine(file, with string) bool {
	text, _ := os.ReadFile(file)
	return strings.Contains(string(text), with)
}
