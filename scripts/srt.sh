#!/usr/bin/env bash
# Runs programs in srt (npm: @anthropic-ai/sandbox-runtime), whose settings send them
# to the one port of egressd serve, and srt itself under egressd run, against hosts in
# a network namespace. It installs srt into a folder of its own; beside that it needs
# root, bwrap, socat, rg, ssh and curl.
set -euo pipefail
cd "$(dirname "$0")/.."
for command in bwrap socat rg ssh curl npm; do
	command -v "$command" >/dev/null || {
		echo "srt: missing: $command" >&2
		echo "srt: hint: as root, apt-get install bubblewrap socat ripgrep openssh-client curl npm" >&2
		exit 1
	}
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder" # srt is run as somebody else, too
npm install --no-fund --no-audit --loglevel=error --prefix "$folder" "@anthropic-ai/sandbox-runtime@${SRT_VERSION:-0.0.83}" >&2
CGO_ENABLED=0 go build -trimpath -o "$folder/egressd" ./cmd/egressd # somebody else runs that, too
EGRESSD=$folder/egressd EGRESSD_E2E_SRT=$folder/node_modules/.bin/srt go test -tags srt -count=1 -v -run 'TestSRT' ./e2e/run
