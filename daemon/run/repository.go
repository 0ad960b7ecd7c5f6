package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
)

// A repository is the part of a git repository that lies outside of a working directory, and that git writes to when it
// is used there.
type repository struct {
	work    string
	shared  []string            // that the program may change anyway
	folders []string            // that the program may change
	inner   []string            // what lies in these and is shared anew, the outer ones first
	closed  []string            // those of inner in which it may make nothing: git outside makes there what it obeys
	kept    []string            // what lies in these, and it may not: git outside executes what they say
	before  map[string][]string // names in repositories of other working trees, when the program started
	partly  string              // the top of the working tree, if the working directory is a folder in it; else empty
	held    []heldPath          // see hold
	said    []*os.File          // settings as they were when the program started
	start   time.Time           // when it was looked at
}

// submodulesDepth is how deep submodules in submodules are looked for.
const submodulesDepth = 4

// repositoryOf looks for the repository of a working directory, which has no symbolic links. The program may have written
// anything there in an earlier run, such as a .git that names a folder of somebody else's. So a folder outside
// counts only if the folder itself names the working tree, or contains it.
func repositoryOf(work, home string, shared []string) (*repository, error) {
	r := &repository{work: work, shared: append([]string{work}, shared...), before: map[string][]string{}, start: time.Now()}
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
//
// The program cannot change files that git outside executes or follows: settings, hooks, submodules of other working
// trees, and the pointers to their repositories.
func (r *repository) add(dir, own string) {
	r.folders = append(r.folders, dir)
	r.keepSettings(dir)
	r.keepTrees(dir, own)
	if own == "" && r.partly == "" {
		return // .git, which says where dir is, lies in the working directory
	}
	r.keepCommon(dir)
	if own == "" {
		r.keepModules(filepath.Join(dir, "modules"), submodulesDepth)
		return
	}
	r.keepEmpty(filepath.Join(dir, "modules"))
	r.kept = append(r.kept, existing(dir, "HEAD", "index")...)
	r.before[dir] = namesIn(dir)
}

// keepTrees keeps what a repository has for linked working trees, but for what the program's own needs. Git outside makes the folder of
// a new working tree while the program runs, with commondir in it, which says whose settings count there: so the program cannot
// change such a folder, nor make one.
func (r *repository) keepTrees(dir, own string) {
	worktrees := filepath.Join(dir, "worktrees")
	r.closeFolder(worktrees)
	for _, name := range namesIn(worktrees) {
		tree := filepath.Join(worktrees, name)
		if !isPlainFolder(tree) {
			continue // what egressd makes below would lie where a link leads
		}
		r.inner = append(r.inner, tree)
		r.kept = append(r.kept, existing(tree, "commondir", "gitdir")...)
		if usesWorktreeSettings(dir) {
			r.keepEmptyFile(filepath.Join(tree, "config.worktree"))
		}
		if tree == own {
			if r.partly != "" {
				r.keepModules(filepath.Join(own, "modules"), submodulesDepth)
			}
			continue
		}
		r.keepEmpty(filepath.Join(tree, "modules"))
		r.before[tree] = namesIn(tree)
	}
}

// closeFolder has the program make nothing in a folder. One that is missing is made.
func (r *repository) closeFolder(folder string) {
	if made := os.Mkdir(folder, 0o777); isPlainFolder(folder) {
		r.inner, r.closed = append(r.inner, folder), append(r.closed, folder)
		r.hold(folder, made == nil)
	}
}

// keepSettings keeps the settings and hooks of a repository.
func (r *repository) keepSettings(dir string) {
	r.keepEmpty(filepath.Join(dir, "hooks"))
	r.kept = append(r.kept, existing(dir, "config")...)
	r.keepText(filepath.Join(dir, "config"))
	if usesWorktreeSettings(dir) {
		r.keepEmptyFile(filepath.Join(dir, "config.worktree"))
	}
}

// keepText notes what a file of settings says. The kernel lets git outside put another one in its place, and no longer keeps that one
// from the program.
func (r *repository) keepText(path string) {
	if f, err := os.Open(path); err == nil {
		r.said = append(r.said, f)
	}
}

// replaced returns the paths of settings that were replaced by others while the program ran.
func (r *repository) replaced() (paths []string) {
	for _, f := range r.said {
		was, err := f.Stat()
		is, missing := os.Stat(f.Name())
		if err != nil || missing == nil && os.SameFile(was, is) {
			continue
		}
		before, _ := io.ReadAll(f)
		after, _ := os.ReadFile(f.Name())
		if !bytes.Equal(before, after) {
			paths = append(paths, f.Name())
		}
	}
	slices.Sort(paths)
	return paths
}

// usesWorktreeSettings reports whether git reads config.worktree in a repository (extensions.worktreeConfig).
func usesWorktreeSettings(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "config"))
	return strings.Contains(strings.ToLower(string(text)), "worktreeconfig")
}

// keepModules keeps the settings of the repositories of submodules, whose working trees git outside looks into.
func (r *repository) keepModules(folder string, depth int) {
	r.closeFolder(folder)
	for _, name := range namesIn(folder) {
		dir := filepath.Join(folder, name)
		switch {
		case depth == 0 || !isPlainFolder(dir):
		case looksLikeGit(dir):
			r.inner = append(r.inner, dir)
			r.keepCommon(dir)
			r.keepSettings(dir)
			r.keepModules(filepath.Join(dir, "modules"), depth-1)
		default:
			r.keepModules(dir, depth-1) // a name with a slash
		}
	}
}

// itself is what commondir has of a repository whose settings are its own.
const itself = ".\n"

// keepCommon keeps a program from making commondir in a repository: git outside would at once take the settings of the folder that it
// names. The kernel protects existing files only, so keepCommon writes the default contents. The run that is the last to
// release it removes it; one that stays changes nothing.
func (r *repository) keepCommon(dir string) {
	path := filepath.Join(dir, "commondir")
	if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		_, _ = f.WriteString(itself)
		f.Close()
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return // this user cannot make it either
	}
	r.kept = append(r.kept, path)
	r.hold(path, string(text) == itself)
}

// A heldPath is what stands in a repository while programs run. All runs that need it hold a lock.
type heldPath struct {
	file *os.File
	was  os.FileInfo
	ours bool // the last run removes it, if nobody has written to it
}

func (r *repository) hold(path string, ours bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	was, err := f.Stat()
	if err != nil || syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
		f.Close()
		return
	}
	r.held = append(r.held, heldPath{f, was, ours})
}

// release removes what no other run holds, unless processes of the program may go on: they could make these paths anew.
func (r *repository) release(goOn bool) {
	if r == nil {
		return
	}
	for _, h := range slices.Backward(r.held) {
		if is, err := os.Lstat(h.file.Name()); err == nil && h.ours && !goOn && os.SameFile(is, h.was) && (is.IsDir() || is.Size() == h.was.Size()) && syscall.Flock(int(h.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.Remove(h.file.Name()) // of folders, an empty one
		}
		h.file.Close()
	}
}

// keepEmptyFile is keepEmpty for a file.
func (r *repository) keepEmptyFile(path string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		f.Close()
	}
	if isFile(path) {
		r.kept = append(r.kept, path)
		r.keepText(path)
		r.hold(path, err == nil)
	}
}

// keepEmpty keeps a folder as it is. One that is missing is made, empty, so that the program cannot make it.
func (r *repository) keepEmpty(folder string) {
	err := os.Mkdir(folder, 0o777)
	if isFolder(folder) {
		r.kept = append(r.kept, folder)
		r.hold(folder, err == nil)
	}
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

func existing(dir string, names ...string) (paths []string) {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
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

// madeByGit are names that git makes in the repository of a linked working tree, and executes nothing of.
var madeByGit = []string{"packed-refs", "FETCH_HEAD", "ORIG_HEAD", "shallow", "gc.pid", "gc.log", "logs", "hooks", "info", "modules", "config", "HEAD", "index"}

// made returns the paths of what else the program has made in repositories of other working trees.
func (r *repository) made() (paths []string) {
	for dir, before := range r.before {
		for _, name := range namesIn(dir) {
			if !slices.Contains(before, name) && !slices.Contains(madeByGit, name) && !strings.HasSuffix(name, ".lock") {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

const (
	linksMost  = 5       // links that are named
	linksFiles = 1 << 20 // files that links looks at
)

// links returns symbolic links of the program's that lead out of what it may change. Git outside writes to where they lead: the log of a
// branch, for example.
func (r *repository) links() (paths []string) {
	for _, folder := range r.folders {
		seen := 0
		_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
			if seen++; len(paths) == linksMost || seen == linksFiles {
				if seen == linksFiles {
					paths = append(paths, folder)
				}
				return fs.SkipAll
			}
			switch {
			case err != nil:
				return nil
			case e.IsDir() && (filepath.Dir(path) == filepath.Join(folder, "objects") || slices.Contains(r.kept, path)):
				return fs.SkipDir // git writes there what the name says; or the program nothing
			case e.Type() == fs.ModeSymlink && r.isLateLink(path):
				paths = append(paths, path)
			}
			return nil
		})
	}
	return paths
}

// isLateLink reports whether a link was made since the program started, and leads out of what it may change.
func (r *repository) isLateLink(path string) bool {
	var link syscall.Stat_t
	if syscall.Lstat(path, &link) != nil || time.Unix(link.Ctim.Unix()).Before(r.start) {
		return false
	}
	target, err := os.Readlink(path)
	if err == nil && !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return err == nil && !r.isShared(filepath.Clean(target))
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

// sayMade warns of what git outside would obey.
func (r *runner) sayMade() {
	if r.repository == nil {
		return
	}
	for _, path := range r.repository.made() {
		fmt.Fprintf(r.talk, "egressd: warning: the program made %s; look at it before you use git there\n", printable.Text(path))
	}
	for _, path := range r.repository.links() {
		fmt.Fprintf(r.talk, "egressd: warning: the program made %s, by which git writes elsewhere; remove it before you use git there\n", printable.Text(path))
	}
	for _, path := range r.repository.replaced() {
		fmt.Fprintf(r.talk, "egressd: warning: %s was replaced while the program ran, which could change it from then on; look at it before you use git there\n", printable.Text(path))
	}
}
