package bare

// fileRows has what programs do with files and file systems.
var fileRows = []row{
	{name: "permissions", line: `touch f; chmod 4755 f; chmod 2775 . ; stat -c '%a %u %g' f .; chmod u-s f`},
	{name: "a file without permissions", line: `echo x >f; chmod 000 f; cat f; echo $?`},
	{name: "hard links and symbolic ones", line: `echo x >a; ln a b; ln -s a c; ln -s /nowhere d; stat -c %h a; readlink -f c; cp -a . /tmp/copy; rm -r /tmp/copy/.local; ls /tmp/copy`},
	{name: "a hard link to another's file", line: `ln /etc/passwd p 2>&1; ln /bin/true t 2>&1; echo $?`},
	{name: "renames", line: `mkdir -p .cache/a .local/share .config; echo x >.cache/a/f; perl -e 'rename(".cache/a/f", ".local/share/f") or print "$!\n"; rename(".cache/a", ".config/a") or print "$!\n"; link(".local/share/f", ".config/f") or print "$!\n"'`},
	{name: "a rename into the temporary folder", line: `echo x >f; mv f /tmp/g; cat /tmp/g; perl -e 'rename("/tmp/g", "g") or print "$!\n"'`},
	{name: "one file system", line: `mkdir -p .local/state .config .cache; stat -c %d . .local .local/state .config .cache | sort -u | wc -l`},
	{name: "copies", line: `head -c 100000 /dev/zero >a; cp --reflink=auto a b; cp --sparse=always a c; cp -l a d; cp -p a e; cmp a b && du -k --apparent-size c`},
	{name: "sparse files", line: `truncate -s 10M f; fallocate -l 64k g; fallocate -p -o 0 -l 4096 g; stat -c %s f g; du -k f`},
	{name: "sendfile and copy_file_range", line: `head -c 70000 /dev/urandom >a; python3 -c 'import os
a, b = os.open("a", os.O_RDONLY), os.open("b", os.O_WRONLY | os.O_CREAT)
print(os.copy_file_range(a, b, 40000), os.sendfile(b, a, None, 40000))'; cmp a b`},
	{name: "extended attributes", line: `touch f; setfattr -n user.x -v 1 f && getfattr -d f; setfattr -n trusted.x -v 1 f`, needs: "setfattr"},
	{name: "access control lists", line: `touch f; mkdir d; setfacl -m g:1001:rw f && getfacl -n f; setfacl -d -m u::rwx d; getfacl -n d`, needs: "setfacl", differs: "ids", in: asDev},
	{name: "locks of files", line: `flock -n f sh -c 'flock -n f true; echo $?'; echo $?; python3 -c 'import fcntl; f = open("g", "w"); fcntl.lockf(f, fcntl.LOCK_EX); print("locked")'`},
	{name: "locks of open files, and leases", line: `python3 -c 'import fcntl, struct
f, g = open("f", "w+"), open("f", "r+"); lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0); fcntl.fcntl(f, fcntl.F_OFD_SETLK, lock)
try: fcntl.fcntl(g, fcntl.F_OFD_SETLK, lock); print("got it")
except OSError as e: print(e)
g.close(); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK); print(fcntl.fcntl(f, fcntl.F_GETLEASE))'`},
	{name: "files without a name, and two that change places", line: `python3 -c 'import ctypes, os
f = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(f, b"x"); os.link("/proc/self/fd/%d" % f, "a", follow_symlinks=True); open("b", "w").write("y")
c = ctypes.CDLL(None, use_errno=True); print(c.renameat2(-100, b"a", -100, b"b", 2), open("a").read(), c.renameat2(-100, b"a", -100, b"b", 1), ctypes.get_errno())'`},
	{name: "semaphores, and queues of POSIX", line: `ipcmk -S 3 | cut -d: -f1; ipcrm -a; python3 -c 'import _multiprocessing as m, ctypes, os
s = m.SemLock(1, 1, 1, "/s%d" % os.getpid(), True); print(s.acquire(), s.release()); l = ctypes.CDLL("librt.so.1"); q = l.mq_open(b"/q", os.O_CREAT | os.O_RDWR, 0o600, None); print(l.mq_send(q, b"hi", 2, 1), l.mq_unlink(b"/q"))'`},
	{name: "devices of the machine", line: `head -c0 /dev/kmsg; echo $?`, modes: []mode{{"root", false}}, differs: "devices"},
	{name: "inotify", line: `inotifywait -qt9 -e create --format '%e %f' . >seen & while ! grep -q inotify /proc/$!/fdinfo/* 2>/dev/null; do sleep 0.02; done; sleep 0.1; touch made; wait; cat seen`, needs: "inotifywait"},
	{name: "pipes with a name", line: `mkfifo p; cat p & echo x >p; wait; stat -c %F p`},
	{name: "device nodes", line: `mknod d c 1 3 2>&1; mknod b b 7 0 2>&1; mknod p p; ls`},
	{name: "sockets in the working directory", line: `socat -u UNIX-LISTEN:s,fork SYSTEM:cat & while ! [ -S s ]; do sleep 0.02; done; kill $!; wait; rm -f s; ls`, needs: "socat"},
	{name: "abstract sockets", line: `socat -u ABSTRACT-LISTEN:$HOME$PORT - & for i in 1 2 3 4 5 6 7 8 9; do echo x | socat - ABSTRACT-CONNECT:$HOME$PORT 2>/dev/null && break; sleep 0.1; done; wait`, needs: "socat"},
	{name: "shared memory", line: `echo x >/dev/shm/x$PORT; cat /dev/shm/x$PORT; rm /dev/shm/x$PORT; df /dev/shm | awk 'NR == 2 { print $1, $6 }'; ipcmk -M 100 | cut -d: -f1; ipcrm -a; ipcs -m | wc -l`},
	{name: "message queues", line: `perl -e 'use IPC::SysV qw(IPC_PRIVATE IPC_CREAT IPC_RMID S_IRUSR S_IWUSR); $q = msgget(IPC_PRIVATE, IPC_CREAT|S_IRUSR|S_IWUSR); msgsnd($q, pack("l! a*", 1, "hello"), 0) or print $!; msgrcv($q, $m, 10, 0, 0); print unpack("x[l!] a*", $m), "\n"; msgctl($q, IPC_RMID, 0)'`},
	{name: "tar", line: `mkdir d; echo x >d/f; ln -s f d/l; ln d/f d/h; tar czf a.tgz d; rm -r d; tar xzf a.tgz; tar tvf a.tgz | cut -c1-10; rm a.tgz`},
	{name: "tar with owners", line: `echo x >f; tar --owner=1234 --group=5678 --numeric-owner -cf a.tar f; rm f; tar xf a.tar; echo $?; stat -c %u:%g f; rm a.tar`},
	{name: "chown", line: `touch f; chown 1000:1001 f; echo $?; chown $(id -u):$(id -g) f; echo $?; stat -c %u:%g f`, differs: "ids", in: asDev},
	{name: "fakeroot", line: `fakeroot sh -c 'id -u; touch f; chown 5:6 f; stat -c %u:%g f; tar cf a.tar f; tar tvf a.tar | cut -c1-20'; echo $?; rm a.tar`, needs: "fakeroot"},
	{name: "chgrp to another group", line: `touch f; chgrp team f; echo $?; stat -c %G f; mkdir d; chmod g+s d; touch d/f; stat -c %A d`, differs: "ids", in: asDev},
	{name: "owners of the machine's files", line: `stat -c '%U:%G %u:%g' /etc/passwd /bin/true / /tmp /dev/null`, differs: "owners", in: asDev},
	{name: "rsync", line: `mkdir a; echo x >a/f; ln -s f a/l; rsync -a a/ b/; rsync -ai --delete a/ b/; ls -A b`, needs: "rsync"},
	{name: "find", line: `mkdir -p a/b; touch a/b/c; find . -type f -name c -exec sh -c 'echo $0' {} \; ; find / -maxdepth 1 -type d ! -name mnt | sort; find . -newer /etc/passwd -print0 | xargs -0 ls -d`},
	{name: "temporary files", line: `f=$(mktemp); d=$(mktemp -d); stat -c %a $f $d; rm -r $f $d; python3 -c 'import tempfile; print(tempfile.gettempdir()); tempfile.NamedTemporaryFile().write(b"x"); tempfile.TemporaryFile().write(b"x")'`},
	{name: "another's files", line: `echo x >/etc/passwd; echo $?; rm -f /bin/true; echo $?; touch /usr/x; ls -d /usr/x`, modes: devAlone},
	{name: "file systems", line: `df --output=source,target . /tmp; findmnt -no FSTYPE -T .; findmnt -no TARGET -T /usr`},
	{name: "mounts", line: `mount | wc -l; findmnt -rno TARGET | sort`, differs: "mounts"},
	{name: "mounting", line: `mkdir m; mount -t tmpfs none m; echo $?; umount m; echo $?`, differs: "privileges", in: asRoot},
	{name: "moving over a file", line: `echo a >f; echo b >g; mv g f; cat f; echo c >.f.tmp; sync .f.tmp; mv -f .f.tmp f; cat f`},
	{name: "long names and deep folders", line: `n=$(printf %0255d 0); touch $n; touch x$n 2>&1 | tail -c 20; for i in $(seq 30); do mkdir 0123456789; cd 0123456789; done; pwd -P | wc -c; cd ~; rm -r 0123456789`},
	{name: "an immutable file", line: `touch f; chattr +i f 2>&1 | tail -c 40; lsattr f 2>/dev/null | cut -c1-5; chattr -i f 2>/dev/null; rm -f f`},
	{name: "space that is reserved", line: `python3 -c 'import os; s = os.statvfs("."); print(s.f_bsize, s.f_namemax, s.f_flag)'`, differs: "mounts"},
	{name: "watching by polling", line: `(sleep 0.2; echo changed >f) & echo x >f; timeout 5 sh -c 'while grep -q x f; do sleep 0.02; done'; wait; tail -n1 f`},
	{name: "memory that is mapped", line: `python3 -c 'import mmap, os
with open("f", "wb") as f: f.write(b"x" * 4096)
f = open("f", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0] = 121; m.flush(); print(open("f", "rb").read(2)); p = mmap.mmap(-1, 4096, prot=7); print(len(p))'`},
	{name: "the trash", line: `echo x >f; gio trash f; echo $?; ls -A .local/share/Trash/files; rm -rf .local/share`, needs: "gio"},
	{name: "an ELF of one's own", line: `cp /bin/true own; ./own; echo $?; cp /bin/busybox bb 2>/dev/null || cp /bin/echo bb; ./bb echo hello; head -c 100 own >broken; chmod +x broken; ./broken; echo $?; rm own bb broken`},
	{name: "core files", line: `ulimit -c unlimited; bash -c 'kill -SEGV $$'; echo $?; rm -f core*`},
	{name: "what belongs to egressd", line: `ls -A /srv; echo x >>/mnt/policy.yaml; echo $?`, modes: devAlone, differs: "own"},
}
