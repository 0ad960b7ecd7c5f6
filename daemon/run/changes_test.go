package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/sandbox/folder"
)

// TestWhatGitObeysCannotBeChanged goes by the names of gitrepository-layout(5), and by names that git, editors and file systems without
// case could take for these.
func TestWhatGitObeysCannotBeChanged(t *testing.T) {
	dir := t.TempDir()
	rights := func(a *folder.Area, path string) folder.Right {
		for name := range strings.SplitSeq(path, "/") {
			if a.Names != nil {
				a = a.Names(name)
			}
		}
		return a.Right
	}
	one, common := gitFolder(dir, false), commonFolder("own", gitFolder(dir, false))
	for _, row := range []struct {
		names       string
		one, common folder.Right // in the folder of one working tree, and in that of all
	}{
		{"config config.lock config.worktree config.worktree.lock CONFIG Config con\ufb01g config~ .config.swp sedXXXXXX config.tmp", folder.Closed, folder.Closed},
		{"hooks hooks/pre-commit HOOKS commondir COMMONDIR gitdir modules modules/new modules/new/config worktrees worktrees/new worktrees/new/commondir remotes branches description", folder.Closed, folder.Closed},
		{"worktrees/other/HEAD worktrees/other/index worktrees/other/gitdir worktrees/other/config.worktree worktrees/other/rebase-merge/git-rebase-todo", folder.Closed, folder.Closed},
		{"HEAD index index.lock ORIG_HEAD MERGE_MSG COMMIT_EDITMSG .COMMIT_EDITMSG.swp COMMIT_EDITMSG~ BISECT_LOG RENAMED-REF next-index-12.lock rebase-merge/done sequencer/todo", folder.Free, folder.Closed},
		{"objects/ab/c refs/heads/x logs/HEAD info/exclude packed-refs packed-refs.lock packed-refs.new gc.pid.lock shallow.lock lfs/objects/x", folder.Free, folder.Free},
		{"worktrees/other/logs/HEAD", folder.Free, folder.Free},
		{"worktrees/other/HEAD.lock", folder.Own, folder.Own},
		{"worktrees/own/HEAD worktrees/own/index.lock worktrees/own/logs/HEAD", folder.Closed, folder.Free},
		{"worktrees/own/config.worktree worktrees/own/commondir worktrees/own/gitdir worktrees/own/modules/part", folder.Closed, folder.Closed},
	} {
		for name := range strings.FieldsSeq(row.names) {
			if got := rights(common, name); got != row.common {
				t.Errorf("all: %s: %v, want %v", name, got, row.common)
			}
			if got := rights(one, name); got != row.one && !strings.HasPrefix(name, "worktrees/own/") {
				t.Errorf("one: %s: %v, want %v", name, got, row.one)
			}
		}
	}
}
