package bare

// reported has what people met under other sandboxes and in containers: bubblewrap, sandbox-runtime, Apptainer, Podman,
// dev containers, Flatpak and the sandbox of Nix. Each row stands for a public report.
var reported = []row{
	// Files: what is mounted over a single file cannot be replaced or removed, and what is mounted apart takes no links.
	{name: "settings in the home that are replaced by a rename", line: `echo '{}' >.claude.json; mkdir -p .config/x; echo 1 >.config/x/s; python3 -c 'import os
for f in ".claude.json", ".config/x/s", ".config/top", ".netrc":
    open(f + ".tmp", "w").write("new\n"); os.replace(f + ".tmp", f)'; cat .claude.json .config/x/s .config/top`},
	{name: "a program that installs itself anew", line: `mkdir -p .local/bin .local/share/p; printf '#!/bin/sh\necho one\n' >.local/share/p/1; chmod +x .local/share/p/1; ln -s ../share/p/1 .local/bin/p; .local/bin/p; sed s/one/two/ .local/share/p/1 >.local/share/p/2; chmod +x .local/share/p/2; rm .local/bin/p; ln -s ../share/p/2 .local/bin/p; .local/bin/p; cp .local/share/p/1 .local/bin/q; .local/bin/q & wait; cp .local/share/p/2 .local/bin/.q; mv -f .local/bin/.q .local/bin/q; .local/bin/q`},
	{name: "a cache that is linked into a project", line: `mkdir -p .cache/uv/archive-v0 p/.venv/lib; python3 -c 'import errno, fcntl, os, tempfile
c = os.path.expanduser("~/.cache/uv"); l = open(c + "/.lock", "w"); fcntl.flock(l, fcntl.LOCK_EX | fcntl.LOCK_NB)
d = tempfile.mkdtemp(dir=c); open(d + "/m.py", "w").write("x = 42\n"); os.rename(d, c + "/archive-v0/k"); os.symlink("archive-v0/k", c + "/s"); s = c + "/s/m.py"; t = "p/.venv/lib/m.py"
try: fcntl.ioctl(os.open("p/clone", os.O_CREAT | os.O_WRONLY), 0x40049409, os.open(s, os.O_RDONLY)); print("cloned")
except OSError as e: print(e.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL) and e.errno != errno.EXDEV)
os.link(s, t); print(os.stat(t).st_nlink); os.remove("p/clone"); p = open("/tmp/uv-lock", "w"); fcntl.lockf(p, fcntl.LOCK_EX); os.remove("/tmp/uv-lock")'; PYTHONPATH=p/.venv/lib python3 -Bc 'import m; print(m.x)'`},
	{name: "a folder that moves between the cache, the share and a project", line: `mkdir -p .cache/a/b .local/share p; echo x >.cache/a/b/f; python3 -c 'import os; os.rename(".cache/a", ".local/share/a"); os.rename(".local/share/a", "p/a"); os.rename("p/a", ".config/a"); os.rename(".config/a", "a")'; cat a/b/f; node -e 'require("fs").renameSync("a", ".cache/c"); require("fs").linkSync(".cache/c/b/f", "p/h"); console.log(require("fs").statSync("p/h").nlink)'`, needs: "node"},

	// Git: files that a sandbox keeps or hides must not appear in a repository.
	{name: "git with settings of a worktree that are not there", flags: apart, before: repository + `git config extensions.worktreeConfig true`, line: `git status -s; echo x >>f; git commit -qam x; ls -A .git | grep config; git config --worktree core.sparseCheckout false; git config --worktree core.sparseCheckout; git status -s`, needs: "git"},
	{name: "git with a branch that follows another", flags: apart, before: repository + `git clone -q . ../c; cd ../c`, line: `git switch -qc x origin/main; git branch -vv --format='%(upstream)' | wc -l; git branch -q -D main; ls -A .git | grep lock; git config user.nick y; git status -sb`, needs: "git"},
	{name: "git add of everything", flags: apart, before: repository + `mkdir .vscode; echo '{}' >.vscode/settings.json; echo E=1 >.env`, line: `git add -A; git status -s; git stash -q; git stash pop -q; git diff --cached --stat | tail -1; git commit -qam all; git format-patch -q -1 HEAD; ls -A; find . -type c`, needs: "git"},
	{name: "git while another process locks it", before: repository + `(while ! [ -e over ]; do : >.git/config.lock; : >.git/index.lock; rm -f .git/*.lock; sleep 0.003; done; rm over) >/dev/null 2>&1 & true`, flags: apart, line: `ls f; touch over; while [ -e over ]; do sleep 0.02; done`, needs: "git", modes: devAlone},
	{name: "a machine whose mounts change meanwhile", before: `mkdir m; mount --bind m m; mount --make-shared m; mkdir m/from m/to; (for i in $(seq 400); do mount --bind m/from m/to; umount m/to; done) >/dev/null 2>&1 & true`, line: `echo started; ls m`, modes: []mode{{"root", false}}},
	{name: "sockets that come and go meanwhile", before: `python3 -c 'import os, socket, time
if os.fork(): os._exit(0)
end = time.time() + 2
while time.time() < end:
    s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen(); time.sleep(0.004); s.close(); os.remove("s")' >/dev/null 2>&1`, line: `echo started; sleep 2.2; ls`, modes: noTerminal},
	{name: "closed folders beside a socket that has lost its name", before: `python3 -c 'import os, socket, time
s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen(); os.remove("s")
if os.fork(): os._exit(0)
while not os.path.exists("over"): time.sleep(0.02)
os.remove("over")' >/dev/null 2>&1; mkdir -p d x/y; echo kept >d/f; chmod 000 d; cd x/y; chmod 000 .. .`, line: `pwd; ls; echo $?; cd ~; chmod 700 d x x/y; cat d/f; echo more >d/g; touch x/y/h over; while [ -e over ]; do sleep 0.02; done`, modes: noTerminal},

	// Signing: with keys and agents of its own.
	{name: "git signing by an agent of its own", line: repository + `eval $(ssh-agent -s) >/dev/null; ssh-keygen -qt ed25519 -N '' -f ../k -C c; ssh-add -q ../k; rm ../k; git config gpg.format ssh; git config user.signingkey "key::$(cat ../k.pub)"; git commit -qS --allow-empty -m signed; echo "dev@allowed.test $(cat ../k.pub)" >../s; git config gpg.ssh.allowedSignersFile ../s; git log -1 --format=%G?; kill $SSH_AGENT_PID; cd; rm -rf r k.pub s /tmp/.git_signing_key*`, needs: "git ssh-agent"},
	{name: "git signing by GnuPG", line: repository + `cd; mkdir -m 700 .gnupg; gpg --batch -q --passphrase '' --quick-gen-key dev@allowed.test ed25519 sign 2>/dev/null; cd r; git commit -qS --allow-empty -m signed; git log -1 --format=%G?; gpgconf --kill all; cd; rm -rf .gnupg r`, needs: "git gpg gpg-agent"},
	{name: "a home of GnuPG in the project", line: `export GNUPGHOME=$PWD/g; mkdir -m 700 g; gpg --batch -q --passphrase '' --quick-gen-key a@allowed.test ed25519 sign 2>/dev/null; echo x | gpg --batch -q --clearsign | gpg --batch --verify 2>&1 | grep -c Good; gpgconf --kill all; rm -rf g`, needs: "gpg gpg-agent"},

	// Users: what root may do, and what an ordinary user is told.
	{name: "tar that keeps owners", line: `echo x >f; tar --owner=0 --group=0 --numeric-owner -cf a.tar f; rm f; tar --same-owner -xf a.tar 2>/dev/null; echo $?; ls f; rm a.tar`},
	{name: "apt-get from a folder", line: `mkdir -p a/d/etc/preferences.d a/d/var/lib/dpkg a/d/var/cache/apt/archives/partial a/d/var/lib/apt/lists/partial a/r; chmod 755 . a a/r; : >a/d/var/lib/dpkg/status; : >a/r/Packages; echo "deb [trusted=yes] file:$HOME/a/r ./" >a/s; apt-get -q -o Dir=$HOME/a/d -o Dir::State::status=$HOME/a/d/var/lib/dpkg/status -o Dir::Etc::sourcelist=$HOME/a/s -o Dir::Etc::main=/dev/null -o Dir::Etc::parts=/dev/null -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=nobody -o Dir::Bin::Methods=/usr/lib/apt/methods update 2>&1 | grep -c '^[EW]:'; rm -rf a`, needs: "apt-get", modes: []mode{{"root", false}}},
	{name: "becoming another user", line: `python3 -c 'import os
if os.getuid() == 0: os.setgroups([65534, 1001]); os.setgid(1000); os.setuid(1000)
print(os.getresuid(), sorted(os.getgroups())[-1] > 0); open("/tmp/mine", "w")
try: os.setuid(0)
except OSError as e: print(e.errno)'; stat -c %u /tmp/mine`, modes: []mode{{"root", false}}},
	{name: "install with owners and modes", line: `echo x >f; install -m 640 -o $(id -u) -g $(id -g) f g; stat -c '%a %u:%g' g; install -o 0 -g 0 f h 2>/dev/null; echo $?; cp --preserve=all f i; cmp f i`},

	// Loopback, as programs find it.
	{name: "a server that takes IPv4 by IPv6", line: `python3 -c 'import socket
s = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True); p = s.getsockname()[1]
for h in "127.0.0.1", "::1", "::ffff:127.0.0.1", "localhost", "0.0.0.0", "127.0.0.9":
    c = socket.create_connection((h, p), 5); a, f = s.accept(); print(h, f[0], c.getpeername()[0]); c.close(); a.close()'`},
	{name: "a server on 127.0.0.1 by its mapped address", line: `python3 -c 'import socket
s = socket.create_server(("127.0.0.1", 0)); p = s.getsockname()[1]
c = socket.socket(socket.AF_INET6); c.connect(("::ffff:127.0.0.1", p)); print(s.accept()[1][0], c.getpeername()[0])
d = socket.socket(socket.AF_INET6); print(d.connect_ex(("::1", p)))'`},
	{name: "names of the machine itself", line: `python3 -c 'import socket
for n, f in ("localhost", 0), ("localhost", socket.AI_ADDRCONFIG), ("127.0.0.1", socket.AI_NUMERICHOST), ("::1", socket.AI_ADDRCONFIG), ("1:2:3:4:5:6:7:8", socket.AI_ADDRCONFIG), ("0", 0), ("127.1", 0), (None, socket.AI_PASSIVE), ("", socket.AI_PASSIVE):
    try: print(n, f, sorted({i[4][0] for i in socket.getaddrinfo(n, 80, flags=f, type=socket.SOCK_STREAM)}))
    except OSError as e: print(n, f, e.errno)'`},
	{name: "names below localhost", line: `python3 -m http.server -b 127.0.0.1 $PORT >log 2>&1 & ` + up + `curl -sSo /dev/null -w '%{http_code} %{remote_ip}\n' http://app.localhost:$PORT/; kill $!; rm log`, needs: "curl"},
	{name: "interfaces that browsers and Electron count", line: `node -e 'const i = Object.values(require("os").networkInterfaces()).flat(); console.log(i.some(a => !a.internal && a.family === "IPv4"))'; grep -c '^\(eth\|en\|ve\|[a-z]*[0-9]\)' /sys/class/net/*/uevent 2>/dev/null | wc -l | awk '{ print ($1 > 1) }'; python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("93.184.216.34", 80)); print(s.getsockname()[0].startswith("127."))'; cat /sys/class/net/e*/operstate 2>/dev/null | sort -u | wc -l`, needs: "node"},

	// A sign-in that opens a browser and waits for it on a port of its own.
	{name: "a sign-in with a browser of one's own", line: `cat >b <<'END'
#!/bin/sh
curl -sS "$(printf %s "$1" | sed 's/.*redirect=//')?code=7" >/dev/null
END
chmod +x b; BROWSER="$PWD/b %s" python3 -c 'import http.server, threading, webbrowser
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): print(self.path, flush=True); self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
s = http.server.HTTPServer(("localhost", 0), H); threading.Thread(target=webbrowser.open, args=("http://login.allowed.test/?redirect=http://localhost:%d/callback" % s.server_port,)).start(); s.handle_request()'; xdg-open 2>/dev/null; echo $?`, needs: "curl"},

	// Builders.
	{name: "cmake and ctest", long: true, line: `mkdir s; cd s; printf 'cmake_minimum_required(VERSION 3.13)\nproject(m C)\nadd_executable(m m.c)\nenable_testing()\nadd_test(NAME m COMMAND m)\nadd_test(NAME n COMMAND m x)\ninstall(TARGETS m)\n' >CMakeLists.txt; printf '#include <stdio.h>\nint main(int n, char **a) { puts("hello"); return n - 1; }\n' >m.c; cmake -S . -B b -G Ninja -DCMAKE_INSTALL_PREFIX=$HOME/i >/dev/null; cmake --build b >/dev/null; ./b/m; (cd b; ctest -j2 2>&1 | grep -o '[0-9]*% tests passed.*'); cmake --install b >/dev/null; ls ../i/bin; cd; rm -rf s i`, needs: "cmake ninja gcc", modes: devAlone},
}
