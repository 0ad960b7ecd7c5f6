#!/bin/sh
# After removal, and not after an upgrade: dpkg says what it does, rpm how many are left.
set -e
root=${DPKG_ROOT:-}
case "$1" in
remove | purge | 0)
	if [ -z "$root" ] && [ -e /etc/apparmor.d/egressd ] && [ -d /sys/kernel/security/apparmor ] && command -v apparmor_parser >/dev/null; then
		apparmor_parser --remove /etc/apparmor.d/egressd || true
	fi
	rm -f "$root/etc/apparmor.d/egressd"
	;;
esac
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
