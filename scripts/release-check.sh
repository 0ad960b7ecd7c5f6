#!/usr/bin/env bash
# Installs and uses each file of dist/, which scripts/release.sh wrote, and prints what it saw.
#
#   sudo scripts/release-check.sh [FILE-OF-A-ROOT.tar]      default: debootstrap makes a root of Debian
#
# It needs Debian or Ubuntu with debootstrap, rpm, bubblewrap, qemu-user-static, binutils, jq, docker.io, busybox-static, man-db.
# Programs run in roots without a network and without Go, as an ordinary user.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ] || [ ! -s dist/SHA256SUMS ]; then
	echo "release-check: error: it needs root, and a release in dist/" >&2
	echo "release-check: hint: make release && sudo make releasecheck" >&2
	exit 1
fi
export PATH="$PATH:/usr/sbin:/sbin"
dist=$PWD/dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
version=$(tar -xzOf dist/egressd-action_*.tar.gz action/version)
arch=$(go env GOARCH) # of this machine

ok() { printf 'ok: %s\n' "$*"; }
fail() {
	printf 'release-check: error: %s\n' "$*" >&2
	exit 1
}

# says has a command print a text.
says() { # the text, a command
	local out
	out=$("${@:2}" 2>&1) || true
	[[ $out == *"$1"* ]] || fail "${*:2}: no \"$1\" in: $out"
}

# prints_version has a command print the version of the release, for a machine.
prints_version() { # the machine, a command
	local out
	out=$("${@:2}")
	[[ $out == "egressd v$version "*" $1" && $out != *modified* ]] || fail "${*:2}: $out"
	echo "    $out"
}

# inside runs a command as an ordinary user in a root, without a network.
inside() { # the root, a command
	setpriv --reuid 1000 --regid 1000 --clear-groups bwrap --unshare-net --unshare-pid --bind "$1" / --proc /proc --dev /dev \
		--tmpfs /tmp --tmpfs /home --setenv HOME /home --setenv PATH /usr/local/bin:/usr/bin:/bin --chdir /home "${@:2}"
}

# used has an egressd that is installed in a root print its version, and deny a program's request.
used() { # the root, the path of egressd, the program
	prints_version "linux/$arch" inside "$1" "$2" --version
	says 'denied: evil.test' inside "$1" "$2" run --preset npm -- "${@:3}"
}

check_sums() {
	(cd dist && sha256sum --check --strict --quiet SHA256SUMS)
	[ "$(find dist -type f ! -name SHA256SUMS | wc -l)" -eq "$(wc -l <dist/SHA256SUMS)" ] || fail "a file without a checksum"
	ok "$(wc -l <dist/SHA256SUMS) checksums"
}

check_programs() {
	local a program machine list
	for a in amd64 arm64; do
		program=dist/egressd_${version}_linux_$a machine=
		[ "$a" = "$arch" ] || machine=qemu-$(sed 's/arm64/aarch64/; s/amd64/x86_64/' <<<"$a")-static
		list=$(readelf --wide --program-headers --sections "$program")
		[[ $list != *INTERP* && $list != *.symtab* ]] || fail "$program is not static and stripped"
		prints_version "linux/$a" $machine "$program" --version
		list=$(go version -m "dist/egressd_${version}_darwin_$a")
		grep -qP "^\tmod\tgithub.com/egressd/egressd\tv$version\t" <<<"$list" || fail "egressd_${version}_darwin_$a: $list"
	done
	mkdir -p "$work/bare/bin" "$work/bare"/{proc,dev,tmp,home,etc}
	cp "$(command -v busybox)" "$work/bare/bin/busybox"
	ln -s busybox "$work/bare/bin/nslookup"
	echo 'nameserver 192.0.2.53' >"$work/bare/etc/resolv.conf" # no request gets as far as that
	cp "dist/egressd_${version}_linux_$arch" "$work/bare/bin/egressd"
	used "$work/bare" /bin/egressd nslookup evil.test
	ok "programs: linux static and stripped, run on both machines; egressd run denies in a root with busybox alone"
}

check_deb() {
	cp "dist/egressd_${version//-/\~}_$arch.deb" "$work/debian/tmp/egressd.deb"
	chroot "$work/debian" dpkg --install /tmp/egressd.deb >/dev/null
	used "$work/debian" /usr/bin/egressd bash -c 'exec 3<>/dev/tcp/evil.test/80'
	says 'allow' inside "$work/debian" egressd check --config /etc/egressd/egressd.yaml https://pypi.org/
	says '_egressd' inside "$work/debian" bash -c '. /usr/share/bash-completion/completions/egressd; complete -p egressd'
	[ -s "$work/debian/usr/share/man/man1/egressd-run.1.gz" ] || fail "no manual page in the deb"
	chroot "$work/debian" dpkg --purge egressd >/dev/null
	[ ! -e "$work/debian/usr/bin/egressd" ] || fail "the deb leaves its program"
	ok "deb: installed into Debian, used, purged"
}

check_rpm() {
	local machine=x86_64
	[ "$arch" = amd64 ] || machine=aarch64
	rpm --root "$work/debian" --initdb
	rpm --root "$work/debian" --install --nodeps --ignoreos dist/egressd-"${version//-/\~}"-*."$machine".rpm
	says "egressd-${version//-/\~}" rpm --root "$work/debian" --query egressd
	used "$work/debian" /usr/bin/egressd bash -c 'exec 3<>/dev/tcp/evil.test/80'
	[ -s "$work/debian/usr/share/zsh/site-functions/_egressd" ] || fail "no completion for zsh in the rpm"
	rpm --root "$work/debian" --erase egressd
	[ ! -e "$work/debian/usr/bin/egressd" ] || fail "the rpm leaves its program"
	ok "rpm: installed, used, erased"
}

check_images() {
	local a layer machine program
	for a in amd64 arm64; do
		mkdir "$work/image-$a"
		tar -C "$work/image-$a" -xf "dist/egressd-image_${version}_$a.tar"
		[ "$(jq -r '.manifests[0].platform.architecture' "$work/image-$a/index.json")" = "$a" ] || fail "the image is not for $a"
		layer=$work/image-$a/$(jq -r '.[0].Layers[0]' "$work/image-$a/manifest.json")
		program=$work/image-$a/egressd machine=
		tar -xOf "$layer" usr/bin/egressd >"$program" && chmod +x "$program"
		[ "$a" = "$arch" ] || machine=qemu-$(sed 's/arm64/aarch64/; s/amd64/x86_64/' <<<"$a")-static
		prints_version "linux/$a" $machine "$program" --version
	done
	PROGRAM=dist/egressd_${version}_linux_$arch IMAGE=dist/egressd-image_${version}_$arch.tar NAME=egressd:$version scripts/newcomer.sh
	ok "images: OCI for both machines; under docker a request passes and another is denied"
}

check_sboms() {
	local f
	for f in dist/*.cdx.json; do
		jq -e --arg v "v$version" '.bomFormat == "CycloneDX" and .metadata.component.version == $v and
			([.components[].name] | index("github.com/open-policy-agent/opa") and index("std"))' "$f" >/dev/null || fail "$f"
	done
	ok "SBOM: $(jq '.components | length' "$f") parts of each program"
}

check_pages() {
	tar -C "$work" -xzf "dist/egressd-man_$version.tar.gz" man
	says 'egressd-run' man --local-file "$work/man/egressd-run.1"
	tar -C "$work" -xzf "dist/egressd-completion_$version.tar.gz" completion
	says '_egressd' bash -c '. "$1"; complete -p egressd' - "$work/completion/egressd.bash"
	ok "$(find "$work/man" -name '*.1' | wc -l) manual pages, completions"
}

check_feature() {
	local into=$work/debian/tmp/feature
	mkdir "$into"
	tar -C "$into" -xzf dist/devcontainer-feature-egressd.tgz
	[ "$(jq -r .version "$into/devcontainer-feature.json")" = "${version%%.dev*}" ] || fail "the version of the Feature"
	cp "dist/egressd_${version}_linux_$arch" "$into/egressd"
	chroot "$work/debian" /tmp/feature/install.sh
	prints_version "linux/$arch" inside "$work/debian" /usr/local/bin/egressd --version
	says 'IS NOT STARTED' inside "$work/debian" /usr/local/share/egressd/entrypoint
	ok "Feature: installed into Debian, and refuses a container that is not held"
}

check_action() {
	local releases=$work/releases/v$version
	mkdir -p "$releases" "$work/runner"
	cp "dist/egressd_${version}_linux_$arch" dist/SHA256SUMS "$releases"
	tar -C "$work" -xzf "dist/egressd-action_$version.tar.gz" action
	local install=(env "GITHUB_ACTION_PATH=$work/action" "GITHUB_PATH=$work/runner/path" "RUNNER_TEMP=$work/runner" "EGRESSD_RELEASES=file://$work/releases" "$work/action/install.sh")
	says "egressd v$version " "${install[@]}"
	[ "$(cat "$work/runner/path")" = "$work/runner/egressd/bin" ] || fail "the action's path"
	echo altered >>"$releases/egressd_${version}_linux_$arch"
	if "${install[@]}" >/dev/null 2>&1; then fail "the action installs an altered program"; fi
	ok "Action: downloads this release and verifies it; refuses an altered one"
}

check_sums
check_programs
check_sboms
check_pages
check_action
mkdir "$work/debian"
if [ $# -gt 0 ]; then tar -C "$work/debian" -xf "$1"; else debootstrap --variant=minbase stable "$work/debian" >/dev/null; fi
cp "$work/bare/etc/resolv.conf" "$work/debian/etc/resolv.conf"
check_deb
check_rpm
check_feature
check_images
echo "release-check: egressd $version is good"
