package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// A workshop has a git repository with a submodule and two linked working trees, in a home.
type workshop struct {
	*world.Daemon
	t    *testing.T
	home string
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	d := world.NewDaemon(t, world.RunPolicy)
	w := &workshop{d, t, filepath.Join(d.Dir, "home")}
	if err := os.MkdirAll(w.home, 0o755); err != nil {
		t.Fatal(err)
	}
	w.git("", `git config --global user.email a@b.test; git config --global user.name A
git config --global protocol.file.allow always; git config --global init.defaultBranch main
git init -q part; (cd part; echo s >s; git add s; git commit -qm s)
git init -q repo; cd repo; mkdir sub; echo a >f; echo b >sub/g; git add .; git commit -qm one
git submodule -q add ../part part; git commit -qm part; git pack-refs --all
git worktree add -q ../tree; git worktree add -q ../other; cd ../tree; git submodule -q update --init
git init -q --separate-git-dir ../apart.git ../separate; mkdir ../secret; echo key >../secret/key`)
	return w
}

// git runs a script outside, in a folder of the home, and returns what it printed.
func (w *workshop) git(folder, script string) string {
	w.t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = filepath.Join(w.home, folder)
	cmd.Env = append(os.Environ(), "HOME="+w.home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// inside runs a script under egressd run --fs in a folder of the home.
func (w *workshop) inside(user, folder, script string, flags ...string) *ran {
	w.t.Helper()
	cmd := jailed(w.t.Context(), w.Daemon, user, append([]string{"--fs"}, flags...), "sh", "-c", script)
	cmd.Dir = filepath.Join(w.home, folder)
	cmd.Env = append(cmd.Env, "HOME="+w.home, "PWD="+cmd.Dir)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = w.World.Gateway.Run(cmd) // the code says it
	return &ran{out: out.String(), talk: talk.String(), code: codeOf(cmd.ProcessState)}
}

// TestRunFSKeepsCommits has git write to repositories that lie outside of the working directory.
func TestRunFSKeepsCommits(t *testing.T) {
	for user := range world.Users {
		w := newWorkshop(t)
		for _, row := range []struct{ says, folder, script, outside, want string }{
			{"a worktree", "tree", "echo x >f; git commit -qam work; git branch agent", "git log -1 --format=%s agent; git branch --list agent --format='%(refname:short)'", "work\nagent"},
			{"a packed reference", "tree", "git branch -qD agent; git pack-refs --all; git tag t; git gc -q", "git branch --list agent; git tag", "t"},
			{"a stash", "tree", "echo y >f; git stash -q; git stash list | wc -l", "git stash list --format=%gs | cut -c1-3", "WIP"},
			{"a rebase", "tree", "git commit -q --allow-empty -m two; git commit -q --allow-empty -m three; git rebase -q --root", "git log -1 --format=%s", "three"},
			{"a submodule of it", "tree/part", "echo z >s; git commit -qam inner", "git log -1 --format=%s", "inner"},
			{"a subfolder", "repo/sub", "echo x >g; git commit -qam below", "git log -1 --format=%s; git status --short", "below"},
			{"a submodule", "repo/part", "echo v >s; git commit -qam module", "git log -1 --format=%s", "module"},
			{"a working tree whose repository is named", "separate", "git commit -q --allow-empty -m named", "git log -1 --format=%s", "named"},
		} {
			t.Run(user+"/"+row.says, func(t *testing.T) {
				flags := []string{}
				if row.folder == "separate" {
					flags = []string{"--share", filepath.Join(w.home, "apart.git")}
				}
				r := w.inside(user, row.folder, row.script, flags...)
				if got := w.git(row.folder, row.outside); r.code != 0 || got != row.want {
					t.Errorf("exit %d, %q, want %q: %s", r.code, got, row.want, r.talk)
				}
			})
		}
	}
}

// TestRunFSSharesNoOtherRepository has a program write what git outside would execute, and a .git that names folders of
// others.
func TestRunFSSharesNoOtherRepository(t *testing.T) {
	for user := range world.Users {
		w := newWorkshop(t)
		before := w.git("repo", "cat .git/config .git/HEAD; ls .git/hooks; cat .git/worktrees/other/*dir")
		r := w.inside(user, "tree", `G=$HOME/repo/.git; git config core.fsmonitor evil && echo set; git config --worktree core.fsmonitor evil
for n in nest plain; do echo 'for f in config hooks/pre-commit HEAD worktrees/other/commondir worktrees/other/modules/x modules/part/config; do
	echo evil >>$G/$f; mv $G/$f $G/moved; rm -rf $G/$f; done; mv $G/hooks $G/old; mv $G/modules $G/old; mv $G $G-old; umount -l $G/config; mount -o remount,bind,rw $G/hooks' >/tmp/$n; done
export G; unshare -Urm sh /tmp/nest; sh /tmp/plain; mkdir $G/rebase-merge`)
		if after := w.git("repo", "cat .git/config .git/HEAD; ls .git/hooks; cat .git/worktrees/other/*dir"); after != before {
			t.Errorf("%s: was %q, and is %q", user, before, after)
		}
		if left := w.git("repo", "ls -A .git"); strings.Contains(left, "rebase-merge") || strings.Contains(left, ".lock") || strings.Contains(r.out, "set") {
			t.Errorf("%s: in the repository there is %q; printed %q", user, left, r.out)
		}
		for _, named := range []string{"../secret", "../repo/.git/worktrees/other", "../repo/.git", "../apart.git", "/etc"} {
			t.Run(user+"/"+named, func(t *testing.T) {
				w.git("tree", "mkdir -p ../project; echo 'gitdir: "+named+"' >../project/.git")
				r := w.inside(user, "project", "touch "+named+"/made; echo ran")
				if made := w.git("project", "ls -d "+named+"/made || true"); !strings.Contains(made, "cannot access") {
					t.Errorf("it was written: %q", made)
				}
				if named != "/etc" && (r.code != 125 || !strings.Contains(r.talk, "--share ")) {
					t.Errorf("exit %d, %s", r.code, r.talk)
				}
			})
		}
	}
}

// TestRunFSRefusesToLoseVersions has programs keep versions where nothing of git in the working directory says so. It writes the pointers
// of Mercurial, Jujutsu and Subversion as these write them.
func TestRunFSRefusesToLoseVersions(t *testing.T) {
	w := newWorkshop(t)
	w.git("", `mkdir -p hg/.hg/store hg/below share/.hg svn/.svn svn/below jj/.jj/repo/store space/.jj forged/.hg plain large store/objects; git init -q jj
printf %s "$HOME/hg/.hg" >share/.hg/sharedpath; printf %s "$HOME/secret" >forged/.hg/sharedpath; printf ../../../.git >jj/.jj/repo/store/git_target; printf ../../jj/.jj/repo >space/.jj/repo
git init -q --bare dots.git; git init -q large; git -C large config lfs.storage "$HOME/store"; echo '*.bin filter=lfs -text' >large/.gitattributes`)
	for _, row := range []struct {
		folder   string
		variable string
		share    []string // in the order in which they are named; none: nothing is refused
	}{
		{folder: "hg"},
		{folder: "hg/below", share: []string{"hg/.hg"}},
		{folder: "share", share: []string{"hg/.hg"}},
		{folder: "forged"}, // which names no repository, so nothing is told to share it
		{folder: "svn"},
		{folder: "svn/below", share: []string{"svn/.svn"}},
		{folder: "jj"},
		{folder: "space", share: []string{"jj/.jj/repo", "jj/.git"}},
		{folder: "plain"},
		{folder: "plain", variable: "GIT_DIR=../dots.git", share: []string{"dots.git"}},
		{folder: "tree", variable: "GIT_DIR=" + filepath.Join(w.home, "repo/.git/worktrees/tree")},
		{folder: "tree", variable: "GIT_OBJECT_DIRECTORY=" + filepath.Join(w.home, "dots.git/objects"), share: []string{"dots.git/objects"}},
		{folder: "large", share: []string{"store"}},
	} {
		t.Run(row.folder+" "+row.variable, func(t *testing.T) {
			run := func(flags []string) *ran {
				return w.inside("user", row.folder, "echo ran", flags...)
			}
			if row.variable != "" {
				name, value, _ := strings.Cut(row.variable, "=")
				t.Setenv(name, value)
			}
			var flags []string
			for _, folder := range row.share {
				path := filepath.Join(w.home, folder)
				if r := run(flags); r.code != 125 || r.out != "" || !strings.Contains(r.talk, "--share "+path+" ") {
					t.Errorf("%s: exit %d, %q, %s", folder, r.code, r.out, r.talk)
				}
				flags = append(flags, "--share", path)
			}
			if r := run(flags); r.code != 0 || r.out != "ran\n" {
				t.Errorf("with %q: exit %d, %s", flags, r.code, r.talk)
			}
		})
	}
}

// TestRunFSLeavesGitOutsideItsSettings has a program give git outside other settings, from a linked working tree and from a
// subfolder, while git outside is used.
func TestRunFSLeavesGitOutsideItsSettings(t *testing.T) {
	const settings = `mkdir -p evil/refs evil/objects; cp $HOME/repo/.git/config evil/config
git config -f evil/config core.fsmonitor "touch $HOME/evil.ran; false"
echo "$PWD/evil" >$HOME/repo/.git/commondir; echo "$PWD/evil" >$HOME/repo/.git/modules/part/commondir
for d in . worktrees/tree worktrees/other modules/part; do cp evil/config $HOME/repo/.git/$d/config.worktree; cp evil/config $HOME/repo/.git/$d/config; done
rm -rf evil; echo over`
	for user := range world.Users {
		for _, folder := range []string{"tree", "repo/sub"} {
			for _, extension := range []string{"", "git config extensions.worktreeConfig true; git -C part config extensions.worktreeConfig true"} {
				w := newWorkshop(t)
				w.git("repo", "true;"+extension)
				if r := w.inside(user, folder, settings); r.code != 0 || r.out != "over\n" {
					t.Errorf("%s in %s: exit %d, %q, %s", user, folder, r.code, r.out, r.talk)
				}
				for _, outside := range []string{"repo", "tree", "other", "repo/part"} {
					w.git(outside, "git status >/dev/null")
				}
				if left := w.git("", "ls evil.ran repo/.git/commondir repo/.git/modules/part/commondir 2>/dev/null || true"); left != "" {
					t.Errorf("%s in %s, %q: %q", user, folder, extension, left)
				}
			}
		}
	}
}

// TestRunFSKeepsWhatTwoRunsShare has one of two runs in linked working trees end first.
func TestRunFSKeepsWhatTwoRunsShare(t *testing.T) {
	w := newWorkshop(t)
	first := jailed(t.Context(), w.Daemon, "user", []string{"--fs"}, "sh", "-c", "echo begun; read x; echo evil >$HOME/repo/.git/commondir; echo over")
	first.Dir, first.Env = filepath.Join(w.home, "tree"), append(first.Env, "HOME="+w.home)
	var out world.Output
	first.Stdout = &out
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.World.Gateway.Start(first); err != nil {
		t.Fatal(err)
	}
	world.WaitFor(t, "the program", func() bool { return strings.HasPrefix(out.String(), "begun\n") })
	if r := w.inside("user", "other", "git commit -q --allow-empty -m two"); r.code != 0 {
		t.Errorf("exit %d, %s", r.code, r.talk)
	}
	w.git("repo", "git status")
	in.Close()
	_ = first.Wait()
	if left := w.git("repo", "cat .git/commondir 2>/dev/null || true"); left != "" || out.String() != "begun\nover\n" {
		t.Errorf("printed %q, left %q", out.String(), left)
	}
}

// TestRunFSKeepsWhatGitOutsideMakes has git outside make a linked working tree and replace its settings and hooks while a program
// runs that gives git other ones at each moment: while git holds the lock, which becomes the settings, and afterwards.
func TestRunFSKeepsWhatGitOutsideMakes(t *testing.T) {
	const evil = `echo begun; read x; cd "$(git rev-parse --git-common-dir)"; common=$PWD; cd $OLDPWD; mkdir evil evil/refs evil/objects
run="touch $HOME/evil.ran"; echo 'ref: refs/heads/new' >evil/HEAD; cp $common/config evil/config; git config -f evil/config core.fsmonitor "$run; false"
printf '#!/bin/sh\n%s\n' "$run" >evil/hook; chmod +x evil/hook; cd $common
exec 9>/dev/null; (: >>config.lock) && exec 9>>config.lock && echo opened; rm -f config.lock && echo unlocked; mv config.lock evil && echo moved
[ $TREE != tree ] || { : >HEAD.lock; mv HEAD.lock HEAD && echo headed; rm HEAD.lock; }
echo ready; read x; cat $OLDPWD/evil/config >&9
for f in config config.worktree; do cat $OLDPWD/evil/config >$f && echo wrote; cp $OLDPWD/evil/config new && mv new $f && echo replaced; ln $OLDPWD/evil/config $f; ln -sf $OLDPWD/evil/config $f; done
rm -rf hooks; mkdir hooks; cp $OLDPWD/evil/hook hooks/post-commit && echo hooked; ln -s $OLDPWD/evil hooks
echo "$OLDPWD/evil" >commondir && echo common; echo "$OLDPWD/evil" >worktrees/new/commondir && echo common; ln -s $OLDPWD/evil worktrees/link && echo made
touch worktrees/new/config.worktree && echo added; [ ! -d modules/fresh ] || cp $OLDPWD/evil/config modules/fresh/config; mkdir modules/more 2>/dev/null && echo moduled
ln -s $HOME/secret/key logs/away && echo away; ln logs/HEAD logs/other && echo linked; mkfifo logs/fifo && echo queued
cd $OLDPWD; rm -rf evil/refs; git commit -q --allow-empty -m inside; git branch added; git branch -qD added; echo over`
	for user := range world.Users {
		for _, row := range []struct{ folder, outside string }{
			{"tree", "git worktree add -q ../new -b new"},
			{"repo/sub", "git worktree prune && git worktree add -q ../new -b new; git submodule -q add --name fresh ../part fresh"},
			{"repo/part", "git worktree add -q ../new -b new"},
		} {
			w := newWorkshop(t)
			inside := jailed(t.Context(), w.Daemon, user, []string{"--fs"}, "sh", "-c", evil)
			inside.Dir = filepath.Join(w.home, row.folder)
			inside.Env = append(inside.Env, "HOME="+w.home, "PWD="+inside.Dir, "TREE="+row.folder)
			var out, talk world.Output
			inside.Stdout, inside.Stderr = &out, &talk
			in, err := inside.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := w.World.Gateway.Start(inside); err != nil {
				t.Fatal(err)
			}
			says := func(line string) {
				world.WaitFor(t, line, func() bool { return strings.HasSuffix(out.String(), line+"\n") })
			}
			repo := strings.TrimSuffix(row.folder, "/sub")
			if repo == "tree" {
				repo = "repo"
			}
			says("begun")
			git := `cd "$(git rev-parse --git-common-dir)"; `
			w.git(repo, row.outside+"; "+git+"cp config config.lock") // as git config does
			_, _ = in.Write([]byte("\n"))
			says("ready")
			w.git(repo, git+"git config -f config.lock extensions.worktreeConfig true; mv config.lock config; git config a.b c; rm -rf hooks; mkdir hooks")
			in.Close()
			_ = inside.Wait()
			if out.String() != "begun\nready\nover\n" {
				t.Errorf("%s in %s: %q, %s", user, row.folder, out.String(), talk.String())
			}
			for _, folder := range []string{filepath.Join(repo, "../new"), repo} {
				w.git(folder, "git status >/dev/null; git commit -q --allow-empty -m outside; git branch outside-$$; git gc -q")
			}
			if left := w.git("", "ls evil.ran 2>/dev/null || true"); left != "" {
				t.Errorf("%s in %s: git outside ran what the program said", user, row.folder)
			}
			if got := w.git(repo, "git config a.b; git config extensions.worktreeConfig; git fsck --strict 2>&1 | grep -v dangling || true"); got != "c\ntrue" {
				t.Errorf("%s in %s: the repository says %q", user, row.folder, got)
			}
			if got := w.git(row.folder, "git log -3 --format=%s"); !strings.Contains(got, "inside") {
				t.Errorf("%s in %s: the commit is not there: %q", user, row.folder, got)
			}
		}
	}
}
