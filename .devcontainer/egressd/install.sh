#!/bin/sh
# Installs the entrypoint of egressd's Feature, and egressd where it lies beside this
# file; else it has to be mounted at /usr/local/bin/egressd. Downloads nothing.
set -eu
cd "$(dirname "$0")"
fail() {
	echo "egressd: error: $1" >&2
	echo "egressd: hint: $2" >&2
	exit 1
}

mode=${MODE:-proxy} socket=${SOCKET:-/run/egressd/enter.sock}
case $mode in
proxy | transparent) ;;
*) fail "mode is $mode" '"mode": "proxy", or "transparent"' ;;
esac
case $socket in
/*) ;;
*) fail "socket $socket is no full path" '"socket": "/run/egressd/enter.sock"' ;;
esac
case $socket in
*[!A-Za-z0-9/._-]*) fail "socket has characters that a shell would read" '"socket": "/run/egressd/enter.sock"' ;;
esac

into=/usr/local/share/egressd
mkdir -p "$into" /usr/local/bin
cp entrypoint hold "$into/"
chmod 0755 "$into" "$into/entrypoint" "$into/hold"
printf 'mode=%s\nsocket=%s\n' "$mode" "$socket" >"$into/settings"
if [ -f egressd ]; then
	cp egressd /usr/local/bin/egressd
	chmod 0755 /usr/local/bin/egressd
fi
# What programs are to trust, where the policy has egressd look into TLS, is written
# here by whoever the container is started as.
: >"$into/ca.pem"
chown "${_CONTAINER_USER:-root}" "$into/ca.pem"
