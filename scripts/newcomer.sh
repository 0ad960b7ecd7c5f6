#!/usr/bin/env bash
# The way of somebody who is new: from a built image to the first request of a container that
# passes and the first that does not. Prints what a person types, and counts it.
#
#   make image && sudo scripts/newcomer.sh
#
# PROGRAM, IMAGE and NAME are those of a release, if set.
# Docker's engine runs in namespaces of this script's own, and so does the world.
set -euo pipefail
cd "$(dirname "$0")/.."

export PROGRAM=${PROGRAM:-build/egressd} IMAGE=${IMAGE:-build/egressd-image.tar} NAME=${NAME:-egressd:latest}
if [ -z "${NEWCOMER:-}" ]; then
	[ "$(id -u)" -eq 0 ] || { echo "newcomer: hint: sudo scripts/newcomer.sh" >&2; exit 1; }
	[ -s "$IMAGE" ] || { echo "newcomer: hint: make image" >&2; exit 1; }
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	NEWCOMER=$work unshare --mount --net --pid --fork --cgroup --kill-child "$0"
	exit
fi

# The world: every address answers on port 80, and one is a name server.
world() {
	exec python3 - <<'PYTHON'
import socket, struct, threading

def names():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("9.9.9.53", 53))
    while True:
        q, whence = s.recvfrom(4096)
        end = 12
        while q[end]:
            end += 1 + q[end]
        a = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("93.184.216.34") if q[end + 1:end + 3] == b"\0\1" else b""
        s.sendto(q[:2] + b"\x81\x80\0\1" + struct.pack(">H", 1 if a else 0) + b"\0\0\0\0" + q[12:end + 5] + a, whence)

threading.Thread(target=names, daemon=True).start()
with socket.create_server(("0.0.0.0", 80)) as s:
    while True:
        c, _ = s.accept()
        c.recv(4096)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n")
        c.close()
PYTHON
}

prepare() {
	mount --make-rprivate / && mount -t proc proc /proc
	ip link set lo up
	unshare --net sleep infinity &
	far=$!
	while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	ip link add out type veth peer name far netns $far
	ip addr add 10.98.0.1/30 dev out && ip link set out up && ip route add default via 10.98.0.2
	nsenter -t $far --net sh -c 'ip link set lo up; ip addr add 10.98.0.2/30 dev far; ip link set far up; ip route add local 0.0.0.0/0 dev lo table main'
	export -f world
	nsenter -t $far --net bash -c world &
	echo "nameserver 9.9.9.53" >"$NEWCOMER/resolv.conf"
	mount --bind "$NEWCOMER/resolv.conf" /etc/resolv.conf
	mount -t tmpfs none /run
	mount -t cgroup2 none /sys/fs/cgroup
	export HOME=$NEWCOMER/home DOCKER_HOST=unix://$NEWCOMER/docker.sock DOCKER_RAMDISK=
	unset XDG_CONFIG_HOME XDG_STATE_HOME
	mkdir -p "$HOME" "$NEWCOMER/image/bin"
	dockerd --data-root "$NEWCOMER/data" --exec-root /run/docker --pidfile /run/docker.pid --host "$DOCKER_HOST" \
		--exec-opt native.cgroupdriver=cgroupfs >"$NEWCOMER/log" 2>&1 &
	for _ in $(seq 300); do docker version >/dev/null 2>&1 && break; sleep 0.1; done
	docker version >/dev/null || { cat "$NEWCOMER/log" >&2; exit 1; }
	cp "$(command -v busybox)" "$NEWCOMER/image/bin/busybox"
	ln -s busybox "$NEWCOMER/image/bin/wget"
	tar -C "$NEWCOMER/image" -c . | docker import --change 'ENV PATH=/bin' - alpine >/dev/null
}

typed=0 letters=0
# type prints a command as a person types it, runs it, and has it succeed or not, as is to be.
type_() {
	want=$1 line=$2 said=$3
	typed=$((typed + 1)) letters=$((letters + ${#line}))
	printf '$ %s\n' "$line"
	code=0
	out=$(bash -c "$line" 2>&1) || code=$?
	printf '%s\n' "$out" | grep -v -E '^(\+|---|@@)' || true
	if [ $((code != 0)) -ne "$want" ] || [[ $out != *"$said"* ]]; then
		echo "newcomer: error: exit code $code, and it should have said: $said" >&2
		exit 1
	fi
}

prepare
began=$(date +%s%N)
type_ 0 "docker load -i $IMAGE" "Loaded image: $NAME"
image=" --image $NAME"
[ "$NAME" != egressd:latest ] || image=
type_ 0 "$PROGRAM init docker$image --allow example.com" 'wrote '
type_ 0 '~/.config/egressd/docker/local/up.sh' 'egressd listens'
type_ 0 '~/.config/egressd/docker/local/run-agent.sh --rm alpine wget -qO- http://example.com/' 'hello'
type_ 1 '~/.config/egressd/docker/local/run-agent.sh --rm alpine wget -qO- http://evil.test/' '403 Blocked by egressd'
took=$((($(date +%s%N) - began) / 1000000))
~/.config/egressd/docker/local/egressd log
~/.config/egressd/docker/local/up.sh down >/dev/null
echo "newcomer: $typed commands, $letters characters, $((took / 1000)).$((took % 1000 / 100)) s"
