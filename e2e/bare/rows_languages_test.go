package bare

// languages has programs in interpreters, and servers with a localhost of their own.
var languages = []row{
	{name: "Python: processes", line: `python3 -c 'import subprocess, sys, os
print(subprocess.run(["sh", "-c", "exit 3"]).returncode, subprocess.run(["kill", "-9", str(subprocess.Popen(["sleep", "9"]).pid)]).returncode)
p = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True); print(p.communicate(b"hello"))
try: subprocess.run(["sleep", "9"], timeout=0.1)
except subprocess.TimeoutExpired as e: print("late")
print(os.waitstatus_to_exitcode(os.system("exit 5")))'`},
	{name: "Python: multiprocessing", line: `cat >m.py <<'END'
import multiprocessing as m
from multiprocessing import shared_memory
def f(x): return x * x
if __name__ == "__main__":
    for how in "fork", "spawn", "forkserver":
        with m.get_context(how).Pool(2) as p: print(how, p.map(f, range(4)))
    s = shared_memory.SharedMemory(create=True, size=10); s.buf[0] = 7; print(s.buf[0]); s.close(); s.unlink()
    q = m.Queue(); p = m.Process(target=q.put, args=(1,)); p.start(); print(q.get()); p.join(); l = m.Lock(); l.acquire(); print(p.exitcode)
END
python3 m.py; rm -rf __pycache__`, modes: noTerminal},
	{name: "Python: asyncio", line: `python3 -c 'import asyncio
async def main():
    async def serve(r, w): w.write(await r.readline()); w.close()
    s = await asyncio.start_server(serve, "localhost", 0); print(sorted(x.family.name for x in s.sockets))
    r, w = await asyncio.open_connection("localhost", s.sockets[0].getsockname()[1]); w.write(b"hello\n"); print(await r.read())
    p = await asyncio.create_subprocess_shell("echo child; exit 2", stdout=-1); print(await p.communicate(), p.returncode)
    print(await asyncio.get_running_loop().run_in_executor(None, sum, [1, 2]))
asyncio.run(main())'; echo $?`},
	{name: "Python: names and addresses", line: `python3 -c 'import socket
for h in "localhost", "127.0.0.1", "::1", socket.gethostname(), "ip6-localhost":
    try: print(sorted({(f.name, a[0]) for f, _, _, _, a in socket.getaddrinfo(h, 80)}))
    except OSError as e: print(e)
print(socket.getfqdn("localhost"), socket.gethostbyname(socket.gethostname()), socket.getnameinfo(("127.0.0.1", 80), 0)[0])'`, differs: "hosts"},
	{name: "Python: addresses are public", line: `python3 -c 'import socket, ipaddress
print([ipaddress.ip_address(a[4][0]).is_global for a in socket.getaddrinfo("a.allowed.test", 80, type=socket.SOCK_STREAM)][0])'`, modes: noTerminal},
	{name: "Python: who runs it", line: `python3 -c 'import os, pwd, grp, getpass
try: print(os.getlogin())
except OSError as e: print(e)
print(pwd.getpwuid(os.getuid()).pw_name, getpass.getuser(), os.path.expanduser("~"), os.getresuid(), os.getresgid(), grp.getgrgid(os.getgid()).gr_name)'`},
	{name: "Python: groups", line: `python3 -c 'import os; print(os.getgroups())'`, differs: "groups", in: asDev},
	{name: "Python: locales", line: `python3 -c 'import locale, sys; print(locale.setlocale(locale.LC_ALL, ""), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdin.isatty())'`},
	{name: "Python: calls of Linux", line: `python3 -c 'import os, select, signal, socket, fcntl, resource
print(os.memfd_create("m") > 0, os.pidfd_open(os.getpid()) > 0, os.eventfd(0) > 0, select.epoll().fileno() > 0, len(os.sched_getaffinity(0)) > 0)
a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [0]); print(len(socket.recv_fds(b, 9, 2)[1])); print(resource.getrlimit(resource.RLIMIT_NOFILE), os.getpriority(0, 0))
r, w = os.pipe(); print(fcntl.fcntl(r, 1032)); signal.setitimer(signal.ITIMER_REAL, 0.05); signal.signal(14, lambda *x: print("alarm")); signal.pause()
print(os.get_terminal_size() if os.isatty(1) else None, os.getloadavg()[0] >= 0, os.cpu_count() > 0)'`},
	{name: "Python: kinds of sockets", line: `python3 -c 'import socket
for n in "AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_CAN", "AF_TIPC", "AF_BLUETOOTH":
    try: socket.socket(getattr(socket, n), socket.SOCK_RAW if n in ("AF_NETLINK", "AF_PACKET") else socket.SOCK_SEQPACKET if n == "AF_ALG" else socket.SOCK_STREAM); print(n)
    except OSError as e: print(n, e.errno)'`, differs: "sockets"},
	{name: "Python: a terminal of its own", line: `python3 -c 'import pty, os
print(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", "test -t 0 && echo tty; exit 4"])))'`},
	{name: "Python: curses", line: `python3 -c 'import curses
curses.wrapper(lambda s: (s.addstr(2, 2, "hello"), s.refresh(), s.getch()))'`, keys: []string{"hello", "q"}},
	{name: "Python on the terminal", line: `python3 -q`, keys: []string{">>> ", "6*7\n", "42", "", ">>> ", "exit(3)\n"}},
	{name: "Python: a secret", line: `python3 -c 'import getpass; print(len(getpass.getpass()))'`, keys: []string{"Password: ", "word\n"}},
	{name: "Python: Ctrl-C", line: `python3 -c $'import sys, time\nsys.tracebacklimit = 0 # where it was is chance\nprint("begun", flush=True)\nwhile True: time.sleep(0.1)'`, keys: []string{"begun", "\x03"}},
	{name: "Node: processes", line: `node -e 'const c = require("child_process"); const r = c.spawnSync("sh", ["-c", "exit 3"]); console.log(r.status, c.execSync("echo hello").toString()); c.spawn("sleep", ["9"]).on("exit", (a, b) => console.log(a, b)).kill()'`, needs: "node", modes: noTerminal},
	{name: "Node: fork and send", line: `echo 'process.on("message", m => { process.send(m + 1); process.disconnect() })' >c.js; node -e 'const c = require("child_process").fork("c.js"); c.on("message", m => console.log(m)); c.send(1)'; node -e 'console.log(typeof process.send, process.env.NODE_CHANNEL_FD)'`, needs: "node", modes: noTerminal},
	{name: "Node: a cluster and threads", line: `cat >m.js <<'END'
const cluster = require("cluster"), http = require("http"), { Worker } = require("worker_threads")
if (cluster.isPrimary) {
	const w = cluster.fork()
	w.on("listening", a => http.get("http://localhost:" + a.port, r => r.on("data", d => { console.log(d.toString()); w.kill() })))
	w.on("exit", (c, s) => { console.log(c, s); new Worker("console.log('thread')", { eval: true }) })
} else http.createServer((q, r) => r.end("worker")).listen(+process.env.PORT)
END
node m.js`, needs: "node", modes: devAlone},
	{name: "Node: the machine", line: `node -e 'const os = require("os"), fs = require("fs"); console.log(os.userInfo().username, os.userInfo().homedir, os.hostname() != "", os.tmpdir(), os.cpus().length, os.networkInterfaces().lo[0].address, process.stdout.isTTY, process.stdin.isTTY, os.availableParallelism()); fs.cpSync("/etc/hosts", "h"); fs.renameSync("h", "i"); fs.rmSync("i"); require("dns").lookup("localhost", { all: true }, (e, a) => console.log(e, a))'`, needs: "node"},
	{name: "Node: watching", line: `node -e 'const fs = require("fs"); fs.mkdirSync("d"); const w = fs.watch("d", (e, f) => { console.log(e, f); w.close() }); setTimeout(() => fs.writeFileSync("d/f", "x"), 100)'`, needs: "node", modes: noTerminal},
	{name: "Node: fetch from itself", line: `node -e 'const s = require("http").createServer((q, r) => r.end("hello")).listen(0, async () => { console.log(await (await fetch("http://localhost:" + s.address().port)).text()); s.close() })'`, needs: "node", modes: noTerminal},
	{name: "Node: a test", line: `echo 'require("node:test")("one", () => {}); require("node:test")("two", () => { throw 1 })' >t.js; node --test --test-reporter=tap t.js | grep -E '^# (pass|fail)'; echo ${PIPESTATUS[0]}`, needs: "node", modes: devAlone},
	{name: "Node on the terminal", line: `NO_COLOR=1 NODE_REPL_HISTORY= TERM=dumb node -i`, needs: "node", keys: []string{"> ", "6*7\n", "42", "", "> ", ".exit\n"}},
	{name: "Ruby", line: `ruby -e 'puts Process.uid == Process.euid, Dir.home, IO.popen("echo child").read; pid = fork { exit 3 }; Process.wait pid; puts $?.exitstatus; require "socket"; s = TCPServer.new("localhost", 0); Thread.new { s.accept.puts "hello" }; puts TCPSocket.new("localhost", s.addr[1]).gets; trap("USR1") { puts "usr1" }; Process.kill("USR1", $$); sleep 0.1; require "etc"; puts Etc.getpwuid.name, Etc.nprocessors > 0; $stdout.flush; Process.kill("TERM", $$); sleep 9'`, needs: "ruby"},
	{name: "PHP", line: `mkdir w; echo '<?php echo "hello ", get_current_user(), PHP_SAPI;' >w/i.php; php -S 127.0.0.1:$PORT -t w >/dev/null 2>&1 & ` + up + `curl -sS http://127.0.0.1:$PORT/i.php; kill $!; wait; php -r 'echo posix_getuid() == posix_geteuid(), gethostbyname("localhost"), sys_get_temp_dir(), PHP_EOL; exit(3);'; echo $?`, needs: "php curl", modes: noTerminal},
	{name: "Perl", line: `perl -MPOSIX -MIO::Socket::INET -MTime::HiRes=ualarm,sleep -e '$|=1; print getpwuid($<), " ", (uname())[0], "\n"; if (!($p = fork)) { exit 3 } waitpid $p, 0; print $? >> 8, "\n"; $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1"); print gethostbyname("localhost") ? "named\n" : "not\n"; print -t STDIN ? "tty\n" : "no tty\n"; $SIG{ALRM} = sub { print "alarm\n"; exit 4 }; ualarm 50000; sleep 9'`, needs: "perl"},
	{name: "Lua", line: `lua5.4 -e 'print(os.getenv("HOME"), io.popen("echo child"):read()); os.exit(3)'; echo $?`, needs: "lua5.4"},
	{name: "awk and friends", line: `seq 5 | awk '{ s += $1; print | "sort -r" } END { close("sort -r"); print s; "id -u" | getline x; print x == ENVIRON["X"]; exit 3 }'; echo $?; seq 3 | sed -n '2w f'; cat f; echo '2^10' | bc 2>/dev/null || echo 1024`},
	{name: "PostgreSQL", line: `LC_ALL=C initdb -D d -A trust -N -U dev >log 2>&1; echo $?; pg_ctl -D d -w -s -l log -o "-p $PORT -k $HOME -c listen_addresses=localhost -c fsync=off" start; psql -h localhost -p $PORT -U dev -Atc 'select 6*7' postgres; psql -h $HOME -p $PORT -U dev -Atc 'select current_user' postgres; pg_ctl -D d -s -m fast stop; echo $?; rm -rf d log`, needs: "initdb pg_ctl psql", modes: noTerminal},
	{name: "Redis", line: `redis-server --port $PORT --bind 127.0.0.1 --unixsocket $HOME/s --save '' --daemonize no >log 2>&1 & ` + up + `until [ -S s ]; do sleep 0.02; done; redis-cli -p $PORT set a 1; redis-cli -s s get a; redis-cli -s s shutdown nosave; wait; rm log; ls`, needs: "redis-server redis-cli", modes: noTerminal},
	{name: "SQLite", line: `sqlite3 f 'pragma journal_mode=wal; create table t(x); insert into t values(1); select count(*) from t'; sqlite3 f .schema; sqlite3 f 'select 1' & sqlite3 f 'select 1'; wait; python3 -c 'import sqlite3; print(sqlite3.connect("f").execute("select x from t").fetchall())'`, needs: "sqlite3"},
	{name: "SQLite on the terminal", line: `sqlite3`, needs: "sqlite3", keys: []string{"sqlite> ", "select 6*7;\n", "42", "", "sqlite> ", ".exit 3\n"}},
	{name: "Chromium", line: `echo '<script>document.write("online " + navigator.onLine)</script>' >p.html; python3 -m http.server -b 127.0.0.1 $PORT >/dev/null 2>&1 & ` + up + `timeout 50 chromium --headless --no-sandbox --disable-gpu --no-first-run --user-data-dir=/tmp/c --dump-dom http://localhost:$PORT/p.html 2>/dev/null | grep -o 'online [a-z]*$\|online [a-z]*<'; kill $!; wait; rm -rf /tmp/* .pki .cache`, needs: "chromium curl", modes: devAlone},
	{name: "Playwright", long: true, line: `echo '<title>t</title><input id=i><script>fetch("/q").then(r => document.title = r.status + " " + navigator.onLine)</script>' >p.html; python3 -m http.server -b 127.0.0.1 $PORT >/dev/null 2>&1 & ` + up + `NODE_PATH=/media timeout 60 node -e 'require("playwright-core").chromium.launch({executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"]}).then(async b => {
	const p = await b.newPage(); await p.goto("http://localhost:" + process.env.PORT + "/p.html"); await p.fill("#i", "typed"); await p.waitForFunction(() => document.title != "t")
	console.log(await p.title(), await p.inputValue("#i"), (await p.screenshot()).length > 100); await b.close() })'; echo $?; kill $!; wait; rm -rf /tmp/* .pki .cache .config/chromium`, needs: "node chromium", modes: devAlone},
}
