#!/bin/sh
# Before removal, and not before an upgrade: a service without its program would fail for ever.
set -e
case "$1" in
remove | 0)
	if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now egressd.socket egressd.service || true
	fi
	;;
esac
