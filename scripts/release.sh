#!/usr/bin/env bash
# Writes a release of this commit into dist/: programs, packages, images, lists of their parts (SBOM), manual pages,
# completions, the dev container Feature, the GitHub Action and checksums. The version is the git tag of the commit,
# v0.2.0 for example; a commit without a tag gives 0.2.0-dev and its number.
#
#   scripts/release.sh [PLATFORM…]      default: linux/amd64 linux/arm64 darwin/arm64 darwin/amd64
#   scripts/release-check.sh            installs and uses each of them
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "$(git status --porcelain)" ]; then
	echo "release: error: there are files that are not committed" >&2
	echo "release: hint: git status, then commit or remove them" >&2
	exit 1
fi
version=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
version=${version#v}
version=${version:-0.2.0-dev+$(git rev-parse --short=12 HEAD)}
file=${version//+/.} # a plus sign stands in no name of a file or an image
platforms=("$@")
[ $# -gt 0 ] || platforms=(linux/amd64 linux/arm64 darwin/arm64 darwin/amd64)
epoch=$(git log -1 --format=%ct)
export CGO_ENABLED=0
rm -rf dist build/release
mkdir -p dist build/release/completion

# archive packs a folder, and the same files give the same bytes.
archive() { # name, folder, what of it
	tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$2" -c "${@:3}" | gzip -9n >"dist/$1"
}

make build
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/} name=egressd_${file}_${platform/\//_}
	echo "release: $platform"
	GOOS=$os GOARCH=$arch go build -buildvcs=true -trimpath -ldflags='-s -w' -o "dist/$name" ./cmd/egressd
	go tool -modfile=tools/go.mod cyclonedx-gomod bin -json -std -noserial -notimestamp -version "v$version" -output "dist/$name.cdx.json" "dist/$name" 2>/dev/null
	if [ "$os" = linux ]; then
		go run ./packaging/image -binary "dist/$name" -o "dist/egressd-image_${file}_$arch.tar" -tag "egressd:$file"
		VERSION=${version/-/\~} ARCH=$arch BINARY=dist/$name scripts/packages.sh
		cp build/packages/*.deb build/packages/*.rpm dist/
	fi
done

build/egressd man build/release/man
archive "egressd-man_$file.tar.gz" build/release man
for shell in bash zsh fish; do
	build/egressd completion "$shell" >"build/release/completion/egressd.$shell"
done
archive "egressd-completion_$file.tar.gz" build/release completion

# A dev container takes a Feature from an address only if the file has this name.
cp -r integrations/devcontainer/src/egressd build/release/feature
sed -i "s/\"version\": \"[^\"]*\"/\"version\": \"${version%%+*}\"/" build/release/feature/devcontainer-feature.json
archive devcontainer-feature-egressd.tgz build/release/feature .

cp -r integrations/github build/release/action
rm -f build/release/action/*.go
echo "$file" >build/release/action/version
archive "egressd-action_$file.tar.gz" build/release action
(cd dist && sha256sum -- * >SHA256SUMS)
ls -l dist
