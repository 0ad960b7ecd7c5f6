#!/usr/bin/env bash
# Runs a script in a network of its own. All but the working directory is read-only in it, also the
# files by which a step sets variables of those after it. What it prints gives the runner no
# commands: masks would hide what later steps say of it.
set -euo pipefail
dir=$RUNNER_TEMP/egressd
export XDG_STATE_HOME=$dir/state
mkdir -p "$XDG_STATE_HOME"
restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [ "$(cat $restricted 2>/dev/null || echo 0)" = 1 ]; then
	sudo sysctl -q kernel.apparmor_restrict_unprivileged_userns=0
fi
flags=()
if [ "${EGRESSD_FAIL_ON_DENY:-false}" = true ]; then
	flags+=(--fail-on-deny)
fi
script=$EGRESSD_SCRIPT
unset EGRESSD_SCRIPT GITHUB_ENV GITHUB_PATH GITHUB_OUTPUT GITHUB_STATE GITHUB_STEP_SUMMARY
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "::stop-commands::$token"
# What a shell starts beside itself ignores SIGINT, and would have the script ignore it.
(trap - INT QUIT; exec "$dir/bin/egressd" run --config "$EGRESSD_POLICY" --fs "${flags[@]}" -- bash --noprofile --norc -eo pipefail -c "$script") <&0 &
pid=$!
trap 'kill -TERM "$pid" 2>/dev/null || true' INT TERM
code=0
wait "$pid" || code=$?
while kill -0 "$pid" 2>/dev/null; do # a signal has ended the wait
	code=0
	wait "$pid" || code=$?
done
printf '\n::%s::\n' "$token"
exit "$code"
