package bare

const repository = `git init -q r; cd r; echo one >f; git add f; git commit -qm one; `

// tools has git, ssh, package managers, compilers and programs that take the whole terminal.
var tools = []row{
	{name: "git commit", line: repository + `git log --oneline; git status -s; echo two >>f; git diff --stat; git commit -qam two; git show --stat --format=%s`, needs: "git"},
	{name: "git worktree", line: repository + `git worktree add -q ../w -b w; cd ../w; echo w >w; git add w; git commit -qm w; git worktree list | wc -l; git -C ../r log --oneline w | wc -l; git worktree remove ../w 2>&1; git branch`, needs: "git", modes: noTerminal},
	{name: "git submodule", line: repository + `cd ..; git init -q s; cd s; git -c protocol.file.allow=always submodule add -q ../r sub 2>&1; git commit -qm sub; git submodule status | wc -l; cd sub; echo x >x; git add x; git commit -qm x; git -C .. status -s`, needs: "git", modes: noTerminal},
	{name: "git hooks", line: repository + `printf '#!/bin/sh\necho hook $(basename $PWD)\nexit 1\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git commit --allow-empty -m two; echo $?`, needs: "git"},
	{name: "git stash, branches and rebase", line: repository + `git switch -qc b; echo b >b; git add b; git commit -qm b; git switch -q main; echo m >m; git add m; git commit -qm m; git rebase -q main b; git log --format=%s; echo s >>f; git stash -q; git stash list --format=%gs; git stash pop -q; git status -s`, needs: "git", modes: noTerminal},
	{name: "git gc", line: repository + `for i in 1 2 3; do echo $i >f; git commit -qam $i; done; git gc -q; ls .git/objects; git fsck; git maintenance run --quiet; echo $?`, needs: "git", modes: noTerminal},
	{name: "git gc in the background", line: repository + `git config gc.auto 1; for i in $(seq 40); do echo $i >f$i; done; git add .; git commit -qm many; for i in $(seq 100); do [ -e .git/gc.pid ] || break; sleep 0.05; done; git fsck; echo $?; rm -rf .git`, needs: "git", modes: noTerminal},
	{name: "git clone", line: repository + `cd ..; git clone -q file://$HOME/r c1; git clone -q r c2; git clone -q --depth 1 file://$HOME/r c3; git -C c1 commit -q --allow-empty -m c; git -C c1 push -q origin HEAD:b; git -C r branch; git bundle create -q b HEAD 2>&1; git -C r bundle create -q ../b main; git bundle verify -q b 2>&1; git clone -q b c4; ls c4`, needs: "git", modes: noTerminal},
	{name: "git with a daemon", line: repository + `cd ..; git daemon --base-path=$HOME --export-all --listen=127.0.0.1 --port=$PORT --reuseaddr 2>/dev/null & ` + up + `git ls-remote git://localhost:$PORT/r | wc -l; kill $!; wait`, needs: "git", modes: noTerminal},
	{name: "git signing by ssh", line: repository + `ssh-keygen -qt ed25519 -N '' -f ../k -C c; git config gpg.format ssh; git config user.signingkey ../k.pub; git commit -qS --allow-empty -m signed; echo "dev@allowed.test $(cat ../k.pub)" >../s; git config gpg.ssh.allowedSignersFile $HOME/s; git verify-commit HEAD 2>&1 | grep -c Good; cd; rm -rf k k.pub s r`, needs: "git ssh-keygen", modes: noTerminal},
	{name: "git in another's repository", line: `git -C /mnt status 2>&1 | head -1; git init -q r; git -C r status -s; git -C r config --get-all safe.directory; echo $?`, needs: "git"},
	{name: "git in an editor", line: repository + `GIT_EDITOR='sh -c "echo edited >\$0"' git commit -q --allow-empty; git log -1 --format=%s; EDITOR=false git commit --allow-empty; echo $?; git add -p </dev/null; git log | head -1 | cut -c1-6`, needs: "git", modes: terminals},
	{name: "ssh-keygen and the agent", line: `ssh-keygen -qt ed25519 -N '' -f k -C c; eval $(ssh-agent -s) >/dev/null; ssh-add -q k; ssh-add -l | wc -l; test -S $SSH_AUTH_SOCK && echo socket; ssh-agent -k >/dev/null; ssh-keygen -lf k | cut -d' ' -f1,3; echo x | ssh-keygen -q -Y sign -n file -f k 2>/dev/null | head -1; rm k k.pub`, needs: "ssh-keygen", modes: noTerminal},
	{name: "the settings of ssh", line: `ssh -G host.allowed.test | grep -E '^(user|hostname|port) '; ssh -V 2>&1 | cut -c1-7; mkdir -m 700 .ssh; echo 'Host x' >.ssh/config; chmod 600 .ssh/config; ssh -G x | head -1`, needs: "ssh"},
	{name: "sshd and ssh", line: `ssh-keygen -qt ed25519 -N '' -f h; ssh-keygen -qt ed25519 -N '' -f k; cp k.pub a; chmod 600 a; $(command -v sshd) -f /dev/null -h $HOME/h -o AuthorizedKeysFile=$HOME/a -o StrictModes=no -o UsePAM=no -o PidFile=$HOME/pid -p $PORT -o ListenAddress=127.0.0.1 -D 2>err & ` + up + `ssh -F none -p $PORT -i k -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR localhost 'echo in; exit 7'; echo $?; kill $!; wait; rm -f h* k* a pid err`, needs: "sshd ssh", modes: devAlone},
	{name: "npm run", line: `echo '{"name": "p", "version": "1.0.0", "scripts": {"hello": "echo hello $npm_lifecycle_event; exit 3"}}' >package.json; npm run -s hello; echo $?; npm pack -s; rm -rf .npm p-1.0.0.tgz`, needs: "npm", modes: devAlone},
	{name: "npm init, pack and test", long: true, line: `mkdir p; cd p; npm init -y >/dev/null; npm pkg set scripts.hello='echo hello $npm_lifecycle_event' scripts.test='exit 3'; npm run -s hello; npm test -s; echo $?; npm pack -s; npm ls; cd; rm -rf .npm`, needs: "npm", modes: devAlone},
	{name: "npm and a registry of its own", long: true, line: npmRegistry + `mkdir p; cd p; echo '{"dependencies": {"tiny": "1.0.0"}}' >package.json; npm install --no-audit --no-fund -s --registry http://localhost:$PORT/; node -p 'require("tiny")'; rm -rf node_modules; npm ci --no-audit --no-fund -s --registry http://localhost:$PORT/; ls node_modules; kill $!; wait; cd; rm -rf .npm p/package-lock.json w`, needs: "npm node", modes: devAlone},
	{name: "pnpm", line: `mkdir p l; cd p; echo '{"name": "l", "version": "1.0.0"}' >../l/package.json; echo '{"name": "p", "scripts": {"hello": "echo hello; exit 3"}, "dependencies": {"l": "file:../l"}}' >package.json; pnpm install --offline --silent; pnpm --silent run hello; echo $?; ls node_modules; pnpm ls --depth 0 | tail -1; cd; rm -rf .local/share .local/state/pnpm .cache .config/pnpm p/node_modules p/pnpm-lock.yaml`, needs: "node"},
	{name: "pnpm and a registry of its own", long: true, line: npmRegistry + `mkdir p; cd p; echo '{"dependencies": {"tiny": "1.0.0"}}' >package.json; pnpm install --silent --registry http://localhost:$PORT/; node -p 'require("tiny")'; stat -L -c %h node_modules/tiny/index.js; rm -rf node_modules; pnpm install --silent --offline --frozen-lockfile; ls node_modules; kill $!; wait; cd; rm -rf .local/share .local/state/pnpm .cache .config/pnpm p w`, needs: "node", modes: devAlone},
	{name: "yarn", line: `mkdir p l; cd p; echo '{"name": "l", "version": "1.0.0"}' >../l/package.json; echo '{"name": "p", "license": "MIT", "scripts": {"hello": "echo hello"}, "dependencies": {"l": "file:../l"}}' >package.json; yarnpkg install --offline -s; yarnpkg run -s hello; ls node_modules; cd; rm -rf .cache .yarn* .config/yarn .npm`, needs: "yarnpkg", modes: devAlone},
	{name: "pip and a virtual environment", line: wheel + `python3 -m venv v; v/bin/pip install -q --no-index --disable-pip-version-check ./tiny-1.0-py3-none-any.whl; v/bin/python -c 'import tiny; print(tiny.x)'; v/bin/pip list --disable-pip-version-check --format=freeze | grep tiny; . v/bin/activate; command -v python; v/bin/pip check --disable-pip-version-check; rm -rf v tiny* .cache`, modes: devAlone, long: true},
	{name: "pip", line: wheel + `python3 -m venv --without-pip v; python3 -m pip install -q --no-index --disable-pip-version-check --target t ./tiny-1.0-py3-none-any.whl; PYTHONPATH=t v/bin/python -c 'import tiny, sys; print(tiny.x, sys.prefix)'; . v/bin/activate; command -v python; rm -rf v t tiny* .cache`, needs: "pip", modes: devAlone},
	{name: "go", line: `mkdir -p .config/go/telemetry; echo off >.config/go/telemetry/mode; export GOTOOLCHAIN=local GOPROXY=off; go mod init m 2>&1; printf 'package m\nfunc F( ) { }\n' >m.go; gofmt -l .; go list; go list -f '{{.GoFiles}}'; go env GOOS CGO_ENABLED; go build ./nowhere; echo $?; rm -rf .config/go go`, needs: "go", modes: devAlone},
	{name: "go build and vet", long: true, line: `mkdir -p .config/go/telemetry; echo off >.config/go/telemetry/mode; mkdir m; cd m; printf 'module m\n' >go.mod; printf 'package main\nfunc main() { println("hello"); panic(1) }\n' >m.go; export GOFLAGS=-mod=mod GOTOOLCHAIN=local CGO_ENABLED=0 GOPROXY=off; go build -o ../x . && go vet .; ../x; echo $?; go env GOOS; cd; rm -rf x .config/go go`, needs: "go", modes: devAlone},
	{name: "rustc", line: `echo 'fn main() { println!("hello"); std::process::exit(3) }' >m.rs; rustc -C debuginfo=0 m.rs; ./m; echo $?; rm m`, needs: "rustc", modes: devAlone},
	{name: "cargo", long: true, line: `cargo init -q --vcs none --name m c; cd c; cargo build -q --offline; ./target/debug/m; cargo run -q --offline; cargo metadata --offline --format-version 1 --no-deps | head -c 12; cd; rm -rf .cargo c/target`, needs: "cargo", modes: devAlone},
	{name: "java", line: `printf 'public class M { public static void main(String[] a) { System.out.println("hello " + System.getProperty("user.name") + System.getProperty("user.home")); System.exit(3); } }' >M.java; java M.java; echo $?; rm -rf /tmp/hsperf*`, needs: "javac java", modes: devAlone},
	{name: "javac and java", long: true, line: `printf 'public class M { public static void main(String[] a) throws Exception { System.out.println("hello " + System.getProperty("user.name") + java.net.InetAddress.getLoopbackAddress()); System.exit(3); } }' >M.java; javac M.java; java -Xshare:auto M; echo $?; rm M.class; rm -rf /tmp/hsperf*`, needs: "javac java", modes: devAlone},
	{name: "mvn", long: true, line: `printf '<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version><packaging>pom</packaging></project>' >pom.xml; mvn -o -q validate; echo $?; rm -rf .m2 /tmp/hsperf*`, needs: "mvn", modes: devAlone},
	{name: "make in parallel", line: "printf 'all: a b c d\\na b c d:\\n\\t@sleep 0.1; echo $$PPID >/dev/null; echo made >$@\\nfail:\\n\\t@exit 3\\nsub:\\n\\t@+$(MAKE) -s --no-print-directory all\\n' >Makefile; make -j4 -s; make -s fail; echo $?; rm a b; make -j2 -s sub; ls", needs: "make"},
	{name: "gcc", line: `printf '#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("hello %%d\\n", getuid() == geteuid()); return 3; }' >m.c; gcc -pipe -o m m.c; ./m; echo $?; gcc m.c -o /nowhere/x 2>&1 | tail -1; rm m`, needs: "gcc", modes: noTerminal},
	{name: "vi", line: `TERM=vt100 vim.tiny -u NONE -i NONE -n f`, needs: "vim.tiny", keys: []string{"~", "ihello\x1b", "", ":wq\r"}},
	{name: "ex", line: `vim.tiny -u NONE -i NONE -es -c 'a|one' -c 'wq' f; printf 'one\ntwo\n' >g; ed -s g <<<$'1d\nw\nq'; cat g`, needs: "vim.tiny ed"},
	{name: "less", line: `seq 100 | less`, needs: "less", keys: []string{":\x1b[K", "G", "(END)", "q"}},
	{name: "nano", line: `nano -I f`, needs: "nano", draws: true, keys: []string{"Help", "hello\x18", "Save modified", "y", "File Name", "\r"}},
	{name: "top", line: `top -b -n1 | sed -n 1p | cut -c1-3; top -b -n1 -p $$ | tail -1 | awk '{ print $NF }'`, needs: "top"},
	{name: "watch", line: `watch -n 9 -t echo seen`, needs: "watch", draws: true, keys: []string{"seen", "\x03"}},
	{name: "script", line: `script -qec 'tty | cut -c1-8; exit 4' log; echo $?; grep -c pts log; rm log`, needs: "script"},
	{name: "expect", line: `expect -c 'spawn sh -c "read x; echo got \$x; exit 5"; send "word\r"; expect "got word"; catch wait r; exit [lindex $r 3]'; echo $?`, needs: "expect"},
	{name: "tmux", line: `export TMUX_TMPDIR=$HOME; tmux -f /dev/null new-session -d -x 80 -y 24 'echo inside >f; sleep 60'; for i in $(seq 100); do [ -s f ] && break; sleep 0.05; done; cat f; tmux ls -F '#S #{session_windows}'; tmux kill-server; rm -rf tmux-*`, needs: "tmux", modes: noTerminal},
	{name: "tmux on the terminal", line: `export TMUX_TMPDIR=$HOME; tmux -f /dev/null new-session 'sh -c "echo ready; read x; echo \$x >f"'; cat f; rm -rf tmux-*`, needs: "tmux", draws: true, keys: []string{"ready", "word\n"}},
	{name: "screen", line: `export SCREENDIR=$HOME/s; mkdir -m 700 s; screen -c /dev/null -dmS a sh -c 'echo inside >f; sleep 60'; for i in $(seq 100); do [ -s f ] && break; sleep 0.05; done; cat f; screen -ls | grep -c Detached; screen -S a -X quit; sleep 0.2; rm -rf s`, needs: "screen", modes: noTerminal},
	{name: "man", line: `man -w ls >/dev/null 2>&1; echo $?; printf '.TH X 1\n.SH NAME\nx - y\n' >x.1; man -P cat ./x.1 2>&1 | wc -l | awk '{ print ($1 > 0) }'`, needs: "man"},
	{name: "GNU parallel", line: `seq 6 | parallel -k -j3 echo; echo $?; rm -rf .parallel`, needs: "parallel", modes: devAlone},
	{name: "entr", line: `echo a >f; (sleep 0.4; echo b >f; sleep 0.4; kill -INT $(pgrep -P $$ entr)) & echo f | entr -pn cat f; wait`, needs: "entr", modes: noTerminal},
}

// up waits for a server at $PORT.
const up = `until (: </dev/tcp/127.0.0.1/$PORT) 2>/dev/null; do sleep 0.05; done; `

// npmPackage makes a package in the folder w.
const npmPackage = `mkdir -p w/package; echo '{"name": "tiny", "version": "1.0.0"}' >w/package/package.json; echo 'module.exports = "tiny"' >w/package/index.js; tar czf w/t.tgz -C w package; `

// npmServe starts a registry at $PORT with the package of npmPackage.
const npmServe = `cat >w/s.js <<'END'
const fs = require("fs"), port = +process.env.PORT
require("http").createServer((q, a) => q.url.endsWith(".tgz") ? a.end(fs.readFileSync("w/t.tgz")) : a.end(JSON.stringify({name: "tiny", "dist-tags": {latest: "1.0.0"},
	versions: {"1.0.0": {name: "tiny", version: "1.0.0", dist: {tarball: "http://localhost:" + port + "/tiny.tgz"}}}}))).listen(port, "127.0.0.1", () => fs.writeFileSync("w/up", ""))
END
node w/s.js & while ! [ -e w/up ]; do sleep 0.02; done; `

const npmRegistry = npmPackage + npmServe

// wheel makes a package of Python.
const wheel = `python3 -c 'import zipfile
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as z:
    z.writestr("tiny.py", "x = 42\n"); d = "tiny-1.0.dist-info/"
    z.writestr(d + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"); z.writestr(d + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"); z.writestr(d + "RECORD", "")'; `
