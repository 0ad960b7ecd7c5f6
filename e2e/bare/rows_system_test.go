package bare

// system has the machine, its processes and its network.
var system = []row{
	{name: "the machine", line: `uname -srm; hostname; nproc; getconf PAGESIZE; lscpu | head -1; uptime -p >/dev/null; free | wc -l; arch`, needs: "lscpu"},
	{name: "names of users and groups", line: `getent passwd dev root 0 1000; getent group team; getent hosts localhost; getent services https; getent protocols tcp; getent networks`},
	{name: "the machine's own name", line: `getent hosts "$(hostname)"; getent ahosts "$(hostname)" | wc -l; hostname -f; hostname -i`, differs: "hosts"},
	{name: "setting the machine's name", line: `hostname other; echo $?`, modes: devAlone},
	{name: "own processes", line: `sleep 9 & until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.02; done; pgrep -P $$ sleep | wc -l; pkill -P $$ sleep; wait $!; echo $?; ps -o comm= -p $$`},
	{name: "processes of others", line: `ps -e | wc -l | awk '{ print ($1 > 8) }'`, differs: "pids"},
	{name: "signals to others", line: `kill -0 1 2>&1 | sed 's/line [0-9]*//'`, modes: devAlone},
	{name: "namespaces", line: `readlink /proc/self/ns/net /proc/self/ns/pid | cut -d: -f1; lsns -t user -no NS | wc -l | awk '{ print ($1 > 0) }'`},
	{name: "a user namespace", line: `unshare -Ur id -u; echo $?`, differs: "privileges", in: asRoot},
	{name: "a namespace of mounts", line: `unshare -Urm sh -c 'mount -t tmpfs none /opt; echo $?'`, differs: "sandboxes"},
	{name: "bubblewrap", line: `bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all true; echo $?`, needs: "bwrap", differs: "sandboxes"},
	{name: "chroot", line: `chroot / true; echo $?`},
	{name: "privileges", line: `grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status`, differs: "privileges"},
	{name: "setpriv", line: `setpriv --no-new-privs id -u; setpriv --reuid=1000 --clear-groups id -u; echo $?`},
	{name: "strace", line: `strace -f -e trace=execve -o out sh -c true; echo $?; grep -c execve out; rm out; strace -c true 2>&1 | tail -1 | awk '{ print $NF }'`, needs: "strace"},
	{name: "gdb", line: `sleep 60 & gdb -q -nx -batch -p $! -ex 'print 6*7' 2>&1 | grep '^\$1'; kill $!; gdb -q -nx -batch -ex run -ex 'print $_exitcode' --args sh -c 'exit 3' 2>&1 | grep '^\$1'`, needs: "gdb", modes: devAlone},
	{name: "lsof and fuser", line: `exec 3>f; lsof -w -a -p $$ -d 3 -Fn | tail -1; ls -l /proc/$$/fd/3 | sed 's/.*-> //'`, needs: "lsof"},
	{name: "limits of others", line: `sleep 9 & prlimit --nofile=50 -p $!; echo $?; prlimit --nofile -p $! -o SOFT --noheadings; kill $!`, differs: "limits"},
	{name: "real-time priorities", line: `chrt -f 1 true; echo $?; ulimit -r`},
	{name: "the kernel's settings", line: `sysctl -n kernel.hostname net.ipv4.ip_forward 2>&1 | wc -l; cat /proc/sys/kernel/pid_max | grep -c .; cat /proc/sys/kernel/random/boot_id | wc -c`},
	{name: "the clock", line: `date -s @0 2>&1 | head -1; date +%Y; cat /proc/uptime | wc -w`},
	{name: "systemd", line: `systemd-run --user true; echo $?; systemctl is-system-running; echo $?; systemd-detect-virt >/dev/null; loginctl 2>&1 | head -1`, needs: "systemd-run"},
	{name: "the journal", line: `logger -s hello 2>&1; echo $?`},
	{name: "D-Bus", line: `dbus-run-session -- dbus-send --session --print-reply=literal --dest=org.freedesktop.DBus / org.freedesktop.DBus.GetNameOwner string:org.freedesktop.DBus; echo $?; busctl --user list 2>&1 | head -1`, needs: "dbus-run-session"},
	{name: "keys of the kernel", line: `keyctl show 2>&1 | head -1; python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(248, b"user", b"k", b"x", 1, -3) > 0)'`, differs: "calls"},
	{name: "io_uring", line: `python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(425, 8, ctypes.create_string_buffer(240)) > 0, ctypes.get_errno())'`, differs: "calls"},
	{name: "memory of others", line: `sleep 60 & python3 -c 'import sys; open("/proc/%s/mem" % sys.argv[1], "rb"); print("opened")' $!; kill $!`},
	{name: "a terminal's input", line: `python3 -c 'import fcntl, termios
try: fcntl.ioctl(0, termios.TIOCSTI, b"x"); print("typed")
except OSError as e: print(e)'`, modes: terminals, differs: "calls"},
	{name: "interfaces", line: `ip -br link | awk '{ print $1 }'; ip -4 -br addr show lo | awk '{ print $1, $3 }'; ip route | wc -l`, differs: "network"},
	{name: "is there a way out", line: `ip route get 93.184.216.34 | grep -c dev; ip -6 route get 2606:2800:220:1::1 | grep -c dev; ip route show default | wc -l`},
	{name: "connections that listen", line: `socat TCP-LISTEN:$PORT - & while ! ss -tlnH "sport = :$PORT" | grep -q LISTEN; do sleep 0.02; done; ss -tlnpH "sport = :$PORT" | grep -c socat; kill $!; wait`, needs: "socat"},
	{name: "ping", line: `ping -c1 -W1 127.0.0.1 2>&1 | grep -c 'bytes from'; ping -c1 -W1 93.184.216.34 2>&1 | grep -c 'bytes from'`, needs: "ping", differs: "icmp"},
	{name: "curl to a server of its own", line: `mkdir w; echo page >w/p; python3 -m http.server -d w -b 127.0.0.1 $PORT 2>/dev/null & ` + up + `curl -sS http://localhost:$PORT/p; curl -sSo /dev/null -w '%{http_code} %{remote_ip}\n' http://127.0.0.1:$PORT/none; kill $!; wait`, needs: "curl"},
	{name: "wget from a server of its own", line: `mkdir w; echo page >w/p; python3 -m http.server -d w -b :: $PORT 2>/dev/null & ` + up + `wget -q -O got http://localhost:$PORT/p; wget -qO- "http://[::1]:$PORT/p"; kill $!; wait; cat got`, needs: "wget"},
	{name: "a server at ::1 alone", line: `python3 -m http.server -b ::1 $PORT >log 2>&1 & until (: </dev/tcp/::1/$PORT) 2>/dev/null; do sleep 0.05; done; curl -sSo /dev/null -w '%{http_code} %{remote_ip}\n' http://localhost:$PORT/; curl -4sS http://localhost:$PORT/; echo $?; kill $!; wait; rm log`, needs: "curl"},
	{name: "a WebSocket to oneself", line: `node -e 'const h = require("http"), c = require("crypto"), s = h.createServer()
s.on("upgrade", (q, k) => { k.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + c.createHash("sha1").update(q.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64") + "\r\n\r\n"); k.on("data", d => k.end(Buffer.from([0x81, 2, 0x68, 0x69]))) })
s.listen(0, "localhost", () => require("net").connect(s.address().port, "localhost").on("data", d => { console.log(d.toString("latin1").slice(-2)); if (d.length < 9) process.exit(3) }).on("connect", function () { this.write("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\n\r\n"); setTimeout(() => this.write("x"), 100) }))'; echo $?`, needs: "node"},
	{name: "netcat", line: `nc -lN 127.0.0.1 $PORT <<<answer >got & for i in $(seq 50); do nc -z 127.0.0.1 $PORT 2>/dev/null && break; sleep 0.05; done; wait; nc -z 127.0.0.1 $PORT; echo $?`, needs: "nc"},
	{name: "datagrams to oneself", line: `python3 -c 'import socket
for f, a in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    s = socket.socket(f, socket.SOCK_DGRAM); s.bind((a, 0)); s.sendto(b"hello", s.getsockname()); print(s.recv(9))'`},
	{name: "multicast on loopback", line: `python3 -c 'import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 0)); p = s.getsockname()[1]
s.setsockopt(0, 35, struct.pack("4s4s", socket.inet_aton("239.1.2.3"), socket.inet_aton("127.0.0.1"))); s.setsockopt(0, 32, socket.inet_aton("127.0.0.1"))
s.settimeout(3); s.sendto(b"x", ("239.1.2.3", p)); print(s.recv(9))'`, differs: "multicast"},
	{name: "ports below 1024", line: `timeout 0.3 socat TCP-LISTEN:97,bind=127.0.0.1 - ; echo $?`, needs: "socat", modes: []mode{{"root", false}}},
	{name: "a port that is taken", line: `python3 -c 'import socket
a = socket.create_server(("127.0.0.1", 0)); p = a.getsockname()[1]
for h in "127.0.0.1", "", "127.0.0.2":
    try: socket.create_server((h, p), reuse_port=False); print("free")
    except OSError as e: print(e)' | sed 's/[0-9]\{4,\}/N/g'`},
	{name: "a host that is allowed", line: `curl -sS http://a.allowed.test/ | sed 's/ from.*//'; getent hosts a.allowed.test | wc -l; curl -sSo /dev/null -w '%{http_code}\n' http://a.allowed.test/x`, needs: "curl", modes: noTerminal},
	{name: "the address of a host", line: `getent ahostsv4 a.allowed.test | head -1 | awk '{ print $1 }'`, modes: noTerminal, differs: "addresses"},
	{name: "a host that refuses", line: `timeout 9 bash -c '</dev/tcp/refuses.allowed.test/80' 2>/dev/null; echo $?`, modes: devAlone, differs: "handshakes"},
	{name: "a name that does not exist", line: `getent hosts nx.allowed.test; echo $?; curl -sS http://nx.allowed.test/; echo $?`, needs: "curl", modes: noTerminal, differs: "names"},
	{name: "dig", line: `dig +short localhost; dig +noall +comments a.allowed.test | grep -o 'status: [A-Z]*'; dig +short MX a.allowed.test`, needs: "dig", modes: noTerminal},
	{name: "docker without an engine", line: `docker version --format '{{.Client.Os}}'; docker ps; echo $?`, needs: "docker", modes: devAlone},
	{name: "openssl", line: `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k -out c -subj /CN=localhost 2>/dev/null; openssl s_server -quiet -key k -cert c -accept 127.0.0.1:$PORT -www >/dev/null 2>&1 & ` + up + `curl -sS --cacert c https://localhost:$PORT/ 2>/dev/null | grep -o s_server; kill $!; wait 2>/dev/null; rm k c`, needs: "openssl curl"},
	{name: "GnuPG", line: `gpg --batch -q --passphrase '' --quick-gen-key dev@allowed.test ed25519 sign 2>/dev/null; echo x | gpg --batch -q --clearsign | gpg --batch --verify 2>&1 | grep -c 'Good signature'; gpgconf --kill all; rm -rf .gnupg`, needs: "gpg gpg-agent", modes: noTerminal},
	{name: "what is left behind", line: `setsid sh -c 'trap "echo asked >&2; exit" TERM; while :; do sleep 0.05; done' </dev/null >/dev/null 2>err & sleep 0.2; echo over`, modes: devAlone, differs: "left"},
}
