#!/usr/bin/env bash
# Puts egressd into a folder of its own, and that into the PATH of later steps.
set -euo pipefail
dir=$RUNNER_TEMP/egressd
mkdir -p "$dir/bin"
if [ -n "${EGRESSD_BINARY:-}" ]; then
	install -m 0755 "$EGRESSD_BINARY" "$dir/bin/egressd"
else
	(cd "$GITHUB_ACTION_PATH/../.." && CGO_ENABLED=0 go build -trimpath -o "$dir/bin/egressd" ./cmd/egressd)
fi
echo "$dir/bin" >>"$GITHUB_PATH"
"$dir/bin/egressd" version
