#!/usr/bin/env bash
# Puts egressd into a folder of its own, and that into the PATH of later steps.
set -euo pipefail
dir=$RUNNER_TEMP/egressd
mkdir -p "$dir/bin"
if [ -n "${EGRESSD_BINARY:-}" ]; then
	install -m 0755 "$EGRESSD_BINARY" "$dir/bin/egressd"
else
	version=$(cat "$GITHUB_ACTION_PATH/version" 2>/dev/null || echo "${EGRESSD_VERSION:-}")
	if [ -z "$version" ]; then
		echo "egressd: error: this copy of the action names no release" >&2
		echo "egressd: hint: use the action of a release, or set version or binary" >&2
		exit 1
	fi
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) echo "egressd: error: there is no release for $(uname -m)" >&2 && exit 1 ;;
	esac
	name=egressd_${version}_linux_$arch from=${EGRESSD_RELEASES:-https://github.com/egressd/egressd/releases/download}/v$version
	curl -fsSL --retry 3 -o "$dir/$name" "$from/$name"
	curl -fsSL --retry 3 -o "$dir/SHA256SUMS" "$from/SHA256SUMS"
	(cd "$dir" && grep " $name\$" SHA256SUMS | sha256sum --check --strict)
	install -m 0755 "$dir/$name" "$dir/bin/egressd"
fi
echo "$dir/bin" >>"$GITHUB_PATH"
"$dir/bin/egressd" version
