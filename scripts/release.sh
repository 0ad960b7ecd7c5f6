#!/usr/bin/env bash
# Writes a release of this commit into dist/: programs, packages, images, manual pages, completions, the dev container
# Feature, the GitHub Action and checksums. The version is the git tag of the commit, v0.1.0 for example;
# a commit without a tag gives 0.1.0-dev and its number.
#
#   scripts/release.sh [PLATFORM…]      default: linux/amd64 linux/arm64 darwin/arm64 darwin/amd64
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
version=${version#v}
version=${version:-0.1.0-dev+$(git rev-parse --short=12 HEAD)}
file=${version//+/.} # a plus sign stands in no name of a file or an image
platforms=("$@")
[ $# -gt 0 ] || platforms=(linux/amd64 linux/arm64 darwin/arm64 darwin/amd64)
epoch=$(git log -1 --format=%ct)
export CGO_ENABLED=0
rm -rf dist
mkdir -p dist

# archive packs a folder, and the same files give the same bytes.
archive() { # name, folder, what of it
	tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$2" -c "${@:3}" | gzip -9n >"dist/$1.tar.gz"
}

make build
build/egressd man build/man >/dev/null
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/} name=egressd_${file}_${platform/\//_}
	echo "release: $platform"
	GOOS=$os GOARCH=$arch go build -trimpath -ldflags='-s -w' -o "dist/$name" ./cmd/egressd
	if [ "$os" = linux ]; then
		go run ./packaging/image -binary "dist/$name" -o "dist/egressd-image_${file}_$arch.tar" -tag "egressd:$file"
		VERSION=${version/-/\~} ARCH=$arch BINARY=dist/$name scripts/packages.sh
		cp build/packages/*.deb build/packages/*.rpm dist/
	fi
done

archive "egressd-man_$file" build man
mkdir -p build/completion
for shell in bash zsh fish; do
	build/egressd completion "$shell" >"build/completion/egressd.$shell"
done
archive "egressd-completion_$file" build completion
archive "egressd-devcontainer-feature_$file" integrations/devcontainer/src egressd
rm -rf build/action && cp -r integrations/github build/action && rm -f build/action/*.go
echo "$file" >build/action/version
archive "egressd-action_$file" build action
(cd dist && sha256sum -- * >SHA256SUMS)
ls -l dist
