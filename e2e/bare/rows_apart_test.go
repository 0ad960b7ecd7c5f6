package bare

// apart are the flags of rows whose lines run in a project, and keep to it and to the temporary folder. They share the folder of begin.
var apart = []string{"--fs", "--share", "/srv"}

// inProject makes the folder in which a line runs.
const inProject = `mkdir p; cd p`

// apartRows has what programs do in a working directory that is all they may change.
var apartRows = []row{
	{name: "files", flags: apart, before: inProject, line: `mkdir -p a/b; echo x >a/b/f; ln a/b/f a/h; ln -s b/f a/l; stat -c %h a/h; mv a/b a/c; cat a/c/f; cp -a a d; rm -r a; ls -R; chmod 4700 d/c/f; truncate -s 1M s; stat -c '%a %s %b' s d/c/f`},
	{name: "saving by renames", flags: apart, before: inProject + `; echo one >f; ln f g`, line: `echo two >.f.tmp; sync .f.tmp; mv -f .f.tmp f; cat f g; python3 -c 'import os, tempfile
t = tempfile.NamedTemporaryFile("w", dir=".", delete=False); t.write("three\n"); t.flush(); os.fsync(t.fileno()); os.replace(t.name, "f"); d = os.open(".", os.O_RDONLY); os.fsync(d)'; cat f; sed -i s/three/four/ f; perl -pi.bak -e 's/four/five/' f; ls; stat -c '%a %h' f`},
	{name: "renames from the temporary folder", flags: apart, before: inProject, line: `f=$(mktemp); echo x >$f; mv $f f; cat f; d=$(mktemp -d); touch $d/g; mv $d e; ls e; python3 -c 'import os, shutil, tempfile
d = tempfile.mkdtemp(); open(d + "/h", "w").write("h\n"); shutil.move(d + "/h", "h"); os.rmdir(d)'; cat h; git init -q r; rm -rf r`},
	{name: "vim with swap, backup and undo files", flags: apart, before: inProject + `; printf 'one\ntwo\n' >f; mkdir .u`, line: `vim.tiny -u NONE -i NONE -N -es -c 'set backup writebackup backupcopy=no swapfile' -c 's/one/ONE/' -c 'w' -c '2s/two/TWO/' -c 'preserve' -c 'wq' f; ls -A; cat f f~; vim.tiny -u NONE -i NONE -N -es -c 'set backupcopy=yes' -c '$d' -c 'wq' f; stat -c %h f`, needs: "vim.tiny"},
	{name: "vi on the terminal", flags: apart, before: inProject, line: `TERM=vt100 vim.tiny -u NONE -i NONE f`, needs: "vim.tiny", keys: []string{"~", "ihello\x1b", "", ":wq\r"}},
	{name: "ed, sed and patch", flags: apart, before: inProject + `; seq 3 >f`, line: `ed -s f <<<$'2d\nw\nq'; cp f g; sed -i '1s/1/one/' g; diff -u f g >d; patch -s f d; cat f; sort -o f f; ls`, needs: "ed patch"},
	{name: "sockets", flags: apart, before: inProject, line: `socat UNIX-LISTEN:s SYSTEM:'echo hello' & for i in $(seq 100); do socat -t1 - UNIX-CONNECT:s </dev/null 2>/dev/null && break; sleep 0.05; done; wait; python3 -c 'import socket
a = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); a.bind("d"); b = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); b.sendto(b"x", "d"); print(a.recv(9))'; rm -f s d; ls`, needs: "socat"},
	{name: "pipes with a name, and locks", flags: apart, before: inProject, line: `mkfifo q; cat q & echo x >q; wait; flock -n l sh -c 'flock -n l true; echo $?'; echo $?; rm q`},
	{name: "SQLite with a log of its own", flags: apart, before: inProject + `; sqlite3 f 'pragma journal_mode=wal; create table t(x)'`, line: `sqlite3 f 'insert into t values(1); select count(*) from t'; python3 -c 'import sqlite3, os
a, b = sqlite3.connect("f"), sqlite3.connect("f"); a.execute("insert into t values(2)"); print(b.execute("select count(*) from t").fetchall(), sorted(os.listdir("."))); a.commit(); print(b.execute("select count(*) from t").fetchall())'; sqlite3 f 'pragma wal_checkpoint(truncate); pragma integrity_check'; ls`, needs: "sqlite3"},
	{name: "memory that is mapped", flags: apart, before: inProject, line: `python3 -c 'import mmap, os
with open("f", "wb") as f: f.write(b"x" * 4096)
f = open("f", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0] = 121; m.flush(); print(open("f", "rb").read(2)); os.posix_fallocate(f.fileno(), 0, 8192); print(os.stat("f").st_size)'`},
	{name: "permissions and times", flags: apart, before: inProject + `; touch f; chmod 640 f`, line: `stat -c '%a %u %g' f .; chmod 2775 .; umask 027; touch -d @0 g; stat -c '%a %Y' g; stat -c %a .; find . -newer g | sort; rm g`},
	{name: "inotify", flags: apart, before: inProject, line: `inotifywait -qt9 -e create --format '%e %f' . >seen & while ! grep -q inotify /proc/$!/fdinfo/* 2>/dev/null; do sleep 0.02; done; sleep 0.1; touch made; wait; cat seen`, needs: "inotifywait"},
	{name: "git", flags: apart, before: repository + `true`, line: `echo two >>f; git commit -qam two; git branch b; git stash list; echo x >>f; git stash -q; git stash pop -q; git status -s; git log --oneline | wc -l; git gc -q; git fsck; git worktree list | wc -l`, needs: "git"},
	{name: "git in a folder of the working tree", flags: apart, before: repository + `mkdir sub; echo s >sub/s; git add .; git commit -qm sub; cd sub`, line: `echo t >t; git add t; git commit -qm t; git status -s; git log --format=%s; git rev-parse --show-prefix; git diff HEAD~ --stat`, needs: "git"},
	{name: "git in a linked worktree", flags: apart, before: repository + `git worktree add -q ../w -b w; cd ../w`, line: `echo w >w; git add w; git commit -qm w; git branch x; git tag v1; echo y >>f; git stash -q; git stash pop -q; git commit -qam y; git log --format=%s; git status -sb; git -C ../r log --oneline -1 w | wc -l`, needs: "git"},
	{name: "git rebase in a linked worktree", flags: apart, before: repository + `echo m >m; git add m; git commit -qm m; git worktree add -q ../w -b w HEAD~; cd ../w; echo w >w; git add w; git commit -qm w`, line: `git rebase -q main; git log --format=%s; git reset -q --hard HEAD~; git reflog | wc -l; git cherry-pick w@{1} >/dev/null; git merge -q main; git status -s`, needs: "git"},
	{name: "git in a submodule", flags: apart, before: repository + `cd ..; git init -q s; cd s; git -c protocol.file.allow=always submodule add -q ../r sub 2>&1; git commit -qm sub; cd sub`, line: `echo x >x; git add x; git commit -qm x; git log --format=%s; git status -s; git rev-parse --show-superproject-working-tree | wc -l`, needs: "git"},
	{name: "git above a submodule", flags: apart, before: repository + `cd ..; git init -q s; cd s; git -c protocol.file.allow=always submodule add -q ../r sub 2>&1; git commit -qm sub`, line: `cd sub; echo x >x; git add x; git commit -qm x; cd ..; git add sub; git commit -qm up; git submodule status | cut -c1; git submodule foreach -q 'git log --format=%s'; git status -s`, needs: "git"},
	{name: "git with hooks and a template", flags: apart, before: repository + `printf '#!/bin/sh\necho hook >&2\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit`, line: `git commit -q --allow-empty -m two; git config --local user.nick n; git config --get user.nick; git init -q .; git clone -q . c; ls c; rm -rf c`, needs: "git"},
	{name: "make", flags: apart, before: inProject, line: "printf 'all: a b\\na b:\\n\\t@echo made >$@\\nclean:\\n\\t@rm -f a b\\n' >Makefile; make -j2 -s; ls; make -s clean; ls", needs: "make"},
	{name: "npm ci", flags: apart, long: true, modes: devAlone, before: npmPackage + `mkdir p; mv w p; cd p; echo '{"dependencies": {"tiny": "1.0.0"}}' >package.json`, line: npmServe + `npm install --no-audit --no-fund -s --registry http://localhost:$PORT/; rm -rf node_modules; npm ci --no-audit --no-fund -s --registry http://localhost:$PORT/; ls node_modules; node -p 'require("tiny")'; kill $!; wait; rm -rf ~/.npm w node_modules package-lock.json`, needs: "npm node"},
	{name: "pnpm", flags: apart, modes: devAlone, before: inProject, line: `mkdir l; echo '{"name": "l", "version": "1.0.0"}' >l/package.json; echo '{"name": "p", "scripts": {"hello": "echo hello; exit 3"}, "dependencies": {"l": "link:./l"}}' >package.json; pnpm install --offline --silent --config.store-dir=$PWD/store; pnpm --silent run hello; echo $?; readlink node_modules/l; rm -rf node_modules store pnpm-lock.yaml`, needs: "node"},
	{name: "a virtual environment of Python", flags: apart, modes: devAlone, before: inProject, line: wheel + `python3 -m venv --without-pip v; python3 -m pip install -q --no-index --no-cache-dir --disable-pip-version-check --target t ./tiny-1.0-py3-none-any.whl; PYTHONPATH=t v/bin/python -c 'import tiny; print(tiny.x)'; rm -rf v t tiny*`, needs: "pip"},
	{name: "gcc", flags: apart, before: inProject, line: `echo 'int main(void) { return 3; }' >m.c; gcc -o m m.c; ./m; echo $?; rm m`, needs: "gcc"},
	{name: "another's files", flags: apart, before: inProject, modes: devAlone, line: `echo x >/etc/passwd; echo $?; touch /usr/x; ls -d /usr/x`, differs: "fs"},
	{name: "changes to the home", flags: apart, before: inProject, line: `echo x >~/kept; cat ~/kept`, differs: "fs"},
	{name: "the trash", flags: apart, before: inProject, modes: devAlone, line: `echo x >f; gio trash f; echo $?`, needs: "gio", differs: "fs"},
	{name: "a rename out of the project", flags: apart, before: inProject, line: `echo x >f; perl -e 'rename("f", "../f") or print "$!\n"'`, differs: "fs"},
}
