#!/usr/bin/env bash
# Builds build/packages/*.deb and *.rpm from build/egressd. With --check it also looks
# into them, installs the deb into an empty root, and runs what it installed.
#
#   VERSION=1.2.3 scripts/packages.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
export VERSION=${VERSION:-0.0.0~git$(git log -1 --format=%cd.%h --date=format:%Y%m%d)}
export BINARY=${BINARY:-build/egressd}
export ARCH=${ARCH:-$(go env GOARCH)} SOURCE_DATE_EPOCH=
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # so that the same commit gives the same bytes
out=build/packages

make_parts() {
	rm -rf "$out"
	mkdir -p "$out"/{completion,units}
	build/egressd init --print >"$out/egressd.yaml"
	build/egressd man "$out/man"
	gzip -9n "$out"/man/*.1
	for shell in bash zsh fish; do
		build/egressd completion $shell >"$out/completion/egressd.$shell"
	done
	build/egressd init systemd --config "$out/egressd.yaml" --program /usr/bin/egressd --output "$out/units" >/dev/null 2>&1
	sed -i "s|$PWD/$out/egressd.yaml|/etc/egressd/egressd.yaml|" "$out"/units/*
}

check_deb() {
	local deb=$1 root list
	list=$(dpkg-deb --fsys-tarfile "$deb" | tar -t)
	[ "$(dpkg-deb -f "$deb" Package)" = egressd ]
	[ "$(dpkg-deb -I "$deb" conffiles)" = /etc/egressd/egressd.yaml ]
	for path in usr/bin/egressd usr/lib/systemd/system/egressd.service usr/lib/systemd/system/egressd.socket usr/share/man/man1/egressd-run.1.gz \
		usr/share/bash-completion/completions/egressd usr/share/fish/vendor_completions.d/egressd.fish usr/share/zsh/vendor-completions/_egressd; do
		grep -qE "^(\./|/)?$path\$" <<<"$list" || { echo "packages: no $path in $deb" >&2; return 1; }
	done
	root=$(mktemp -d)
	mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root/etc/apparmor.d/abi"
	touch "$root/etc/apparmor.d/abi/4.0"
	touch "$root/var/lib/dpkg/status"
	dpkg --root="$root" --force-script-chrootless --force-depends --log=/dev/null -i "$deb" >/dev/null
	"$root/usr/bin/egressd" version
	"$root/usr/bin/egressd" check --config "$root/etc/egressd/egressd.yaml" pypi.org >/dev/null
	grep -q '^ExecStart=/usr/bin/egressd serve --config /etc/egressd/egressd.yaml$' "$root/usr/lib/systemd/system/egressd.service"
	[ -s "$root/etc/apparmor.d/egressd" ]
	dpkg --root="$root" --force-script-chrootless --log=/dev/null --purge egressd >/dev/null
	list=$(find "$root" -path "$root/var" -prune -o -name '*egressd*' -print)
	[ -z "$list" ] || { echo "packages: the deb leaves $list" >&2; return 1; }
	rm -rf "$root"
}

check_rpm() {
	local list path root left
	list=$(rpm -qpl "$1" 2>/dev/null)
	[ "$(rpm -qpc "$1" 2>/dev/null)" = /etc/egressd/egressd.yaml ]
	grep -qx /usr/bin/egressd <<<"$list"
	for path in /usr/share/zsh/site-functions/_egressd /usr/share/bash-completion/completions/egressd /usr/share/fish/vendor_completions.d/egressd.fish \
		/usr/share/man/man1/egressd-run.1.gz /usr/lib/systemd/system/egressd.service /usr/lib/systemd/system/egressd.socket; do
		grep -qx "$path" <<<"$list" || { echo "packages: no $path in $1" >&2; return 1; }
	done
	root=$(mktemp -d) # without a shell, so without the scripts; scripts/release-check.sh runs these
	rpm --root "$root" --initdb
	rpm --root "$root" --install --nodeps --ignoreos --noscripts "$1"
	"$root/usr/bin/egressd" version 2>/dev/null
	"$root/usr/bin/egressd" check --config "$root/etc/egressd/egressd.yaml" pypi.org >/dev/null
	rpm --root "$root" --erase --noscripts egressd
	left=$(find "$root" -path "$root/var" -prune -o -name '*egressd*' -print)
	[ -z "$left" ] || { echo "packages: the rpm leaves $left" >&2; return 1; }
	rm -rf "$root"
}

make_parts
for kind in deb rpm; do
	go tool -modfile=tools/go.mod nfpm package --config packaging/nfpm.yaml --packager "$kind" --target "$out/"
done
if [ "${1:-}" = --check ]; then
	check_deb "$out"/*.deb
	check_rpm "$out"/*.rpm
	echo "packages: good"
fi
