#!/bin/sh
# After installation. The AppArmor profile needs a parser that knows its version.
set -e
root=${DPKG_ROOT:-}
if [ -e "$root/etc/apparmor.d/abi/4.0" ] && [ ! -e "$root/etc/apparmor.d/egressd" ]; then
	cp "$root/usr/share/egressd/apparmor/egressd" "$root/etc/apparmor.d/egressd"
	if [ -z "$root" ] && [ -d /sys/kernel/security/apparmor ] && command -v apparmor_parser >/dev/null; then
		apparmor_parser --replace --write-cache /etc/apparmor.d/egressd || echo "egressd: the AppArmor profile was not loaded" >&2
	fi
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart egressd.service || true # after an upgrade; one that does not run stays so
fi
