package sidecar

import (
	"fmt"
	"path"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/internal/shell"
)

// Label marks egressd's container with the path of its policy folder, by which the wrapper finds it under any name.
const Label = "egressd.policy"

// adminSocket is where egressd's container has the operator's socket: in the volume, beside the log.
const adminSocket = "/var/lib/egressd/admin.sock"

// CommandPath is where the wrapper is on the host.
func (s *Sidecar) CommandPath() string { return path.Join(s.Folder, "egressd") }

// Command returns the wrapper: a script with which the host runs egressd's commands in the container. egressd
// cannot write its own policy there, so the wrapper writes what allow --save and deny --save print. up is the
// command that starts the container.
func (s *Sidecar) Command(up string) integrations.Made {
	q := shell.Quote
	text := fmt.Sprintf(`#!/bin/sh
# egressd of %s, from the host: egressd log, egressd why ID, egressd allow HOST, egressd questions, egressd status.
# allow --save and deny --save change %s.
set -eu
container=$(docker ps -q --filter label=%s)
if [ -z "$container" ]; then
	echo "egressd: error: its container does not run" >&2
	echo "egressd: hint: "%s >&2
	exit 1
fi
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal=-t; fi
case " $* " in
*" --save "*) ;;
*) exec docker exec -i $terminal "$container" /usr/bin/egressd "$@" ;;
esac
policy=%s
trap 'rm -f "$policy.new"' EXIT
docker exec "$container" /usr/bin/egressd "$@" --print >"$policy.new"
chmod 644 "$policy.new"
mv "$policy.new" "$policy"
docker exec "$container" /usr/bin/egressd reload
`, s.Project, s.PolicyPath(), q(Label+"="+s.Folder), q(up), q(s.PolicyPath()))
	return integrations.Made{Path: s.CommandPath(), Text: text, Mode: 0o755}
}

// Environment has egressd print commands that work on the host, where only the wrapper reaches it.
func (s *Sidecar) Environment() integrations.Variable {
	return integrations.Variable{Name: shell.ProgramVariable, Value: s.CommandPath()}
}
