// Package docker makes scripts for docker run with egressd in front of containers.
package docker

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/sidecar"
	"github.com/egressd/egressd/internal/shell"
)

// A Docker is egressd in front of containers of docker run, without Compose.
type Docker struct {
	sidecar.Sidecar
	Judges    bool                                                // the program judges each container, as egressd docker run does
	Variables func(proxy string) ([]integrations.Variable, error) // as in compose.Compose
}

// Docker returns a script that makes the networks and starts egressd, for each sandbox one that
// is docker run in its network, and the policy.
func (d *Docker) Docker() (integrations.Set, error) {
	up := path.Join(d.Folder, "up.sh")
	set := integrations.Set{Files: []integrations.Made{d.Policy(), {Path: up, Text: d.up(), Mode: 0o755}, d.Command(up, "name=^/"+d.container()+"$")}}
	for _, h := range d.Sandboxes {
		vars, err := d.Variables(fmt.Sprintf("%s:%d", anyNetwork, sidecar.ProxyPort))
		if err != nil {
			return integrations.Set{}, err
		}
		set.Files = append(set.Files, integrations.Made{Path: d.runPath(h), Text: d.runScript(h, vars), Mode: 0o755})
	}
	set.Readable = d.Folder
	if !d.Pinned() {
		set.Notes = append(set.Notes, "make image && docker load -i build/egressd-image.tar, and then this once more with --yes: the engine does not have "+d.Image+" yet, whose ID is to be in the scripts")
	}
	set.Notes = append(set.Notes,
		up+" starts egressd; with down as its argument it takes all of this away",
		d.runPath(d.Sandboxes[0])+" IMAGE COMMAND is docker run for a container that is held",
		d.CommandPath()+" log, and why, allow, answer, status, is egressd in its container; for a running container, as root: egressd doctor --container NAME")
	return set, nil
}

func (d *Docker) container() string                       { return "egressd-" + d.Project }
func (d *Docker) network(h sidecar.SandboxNetwork) string { return d.container() + "-" + h.Name }
func (d *Docker) outside() string                         { return d.container() + "-out" }
func (d *Docker) runPath(h sidecar.SandboxNetwork) string {
	return path.Join(d.Folder, "run-"+h.Name+".sh")
}

// networks are all of all sandboxes.
func (d *Docker) networks() (all []sidecar.SandboxNetwork) {
	for _, h := range d.Sandboxes {
		all = append(all, h.Networks()...)
	}
	return all
}

func options(flag string, a ...string) (s string) {
	for _, one := range a {
		s += " " + flag + " " + one
	}
	return s
}

// up is a script for a POSIX shell that can be run again. It waits by itself: docker run has
// health checks for a shell only, and the image has none.
func (d *Docker) up() string {
	var b strings.Builder
	fmt.Fprintf(&b, `#!/bin/sh
# Starts egressd in front of containers: up.sh, or up.sh down. Made by egressd init docker.
set -eu
if [ "${1:-}" = down ]; then
	docker rm -f %s >/dev/null 2>&1 || true
`, d.container())
	for _, n := range d.networks() {
		fmt.Fprintf(&b, "\tdocker network rm %s\n", d.network(n))
	}
	fmt.Fprintf(&b, "\texec docker network rm %s\nfi\n", d.outside())
	fmt.Fprintf(&b, `fail() {
	echo "egressd: error: $1" >&2
	echo "egressd: hint: $2" >&2
	exit 1
}
image=$(docker image inspect -f '{{.Id}}' %s) || fail 'the engine does not have the image' 'make image && docker load -i build/egressd-image.tar'
made() { docker network inspect "$1" >/dev/null 2>&1; }
closed() { [ "$(docker network inspect -f '{{.Internal}}' "$1")" = true ] || fail "the network $1 is not egressd's: it leads out" "docker network rm $1"; }
made %s || docker network create %s >/dev/null
`, shell.Quote(d.Image), d.outside(), d.outside())
	fmt.Fprintf(&b, `cell() { # NETWORK SUBNET GATEWAY RANGE BRIDGE RESERVED RESERVED RESERVED: the one address that is left is for one container
	made "$1" || docker network create --internal --subnet "$2" --gateway "$3" --ip-range "$4"%s \
		--aux-address a="$6" --aux-address b="$7" --aux-address c="$8" "$1" >/dev/null
	closed "$1"
}
`, options("-o", sidecar.OptionBridge+`="$5"`, sidecar.OptionInhibit+"=true", sidecar.OptionIsolated+"=isolated"))
	for _, n := range d.networks() {
		fmt.Fprintf(&b, "cell %s %s %s %s %s %s\n", d.network(n), n.Subnet, n.Subnet.Addr().Next(), n.Free(), d.Bridge(d.network(n)), strings.Trim(fmt.Sprint(n.Reserved()), "[]"))
	}
	var set []string
	for _, s := range sidecar.Sysctls {
		set = append(set, s.Name+"="+s.Value)
	}
	fmt.Fprintf(&b, `docker rm -f %[1]s >/dev/null 2>&1 || true
container=$(docker create --name %[1]s --network %[2]s --restart unless-stopped --read-only --user 65532:65532 \
	--cap-drop ALL --security-opt no-new-privileges%[3]s \
	--label %[5]s -e %[6]s \
	-v %[4]s:/etc/egressd:ro -v %[1]s-state:/var/lib/egressd "$image")
`, d.container(), d.outside(), options("--sysctl", set...), shell.Quote(d.Folder),
		shell.Quote(sidecar.Label+"="+d.Folder), shell.Quote(d.Environment().Name+"="+d.Environment().Value))
	for _, n := range d.networks() {
		fmt.Fprintf(&b, "docker network connect --ip %s %s \"$container\"\n", n.Self(), d.network(n))
	}
	fmt.Fprintf(&b, `docker start "$container" >/dev/null
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
	if docker exec "$container" %[1]s >/dev/null 2>&1; then
		exec docker exec "$container" %[1]s
	fi
	sleep 1
done
docker logs "$container" >&2
exit 1
`, strings.Join(sidecar.Healthy, " "))
	return b.String()
}

// runScript is docker run for a sandbox; what it is given goes on behind. It takes a network without a container. Of two
// scripts that take the same one at once, the engine refuses the second.
func (d *Docker) runScript(h sidecar.SandboxNetwork, vars []integrations.Variable) string {
	var b strings.Builder
	all := h.Networks()
	fmt.Fprintf(&b, `#!/bin/sh
# docker run for a container that reaches egressd and nothing else: run-%[1]s.sh [OPTION…] IMAGE [COMMAND…]
# Made by egressd init docker.
set -eu
fail() {
	echo "egressd: error: $1" >&2
	echo "egressd: hint: $2" >&2
	exit 125
}
tried=0
while :; do
	[ $tried -lt %[2]d ] || fail 'all %[2]d networks of %[1]s have a container' 'docker stop one of them, or egressd init docker with another name'
	n=$((($$ + tried) %% %[2]d + 1))
	tried=$((tried + 1))
	case $(docker network inspect -f ' {{range .Containers}}{{.Name}} {{end}}' %[3]s-$n) in
	' %[4]s ') break ;;
	*' %[4]s '*) ;;
	*) fail 'egressd does not run' %[5]s ;;
	esac
done
case $n in
`, h.Name, len(all), d.network(h), d.container(), shell.Quote(path.Join(d.Folder, "up.sh")))
	for i, n := range all {
		fmt.Fprintf(&b, "%d) self=%s ;;\n", i+1, n.Self())
	}
	run := "docker run"
	if d.Judges {
		fmt.Fprintf(&b, "esac\negressd=%s\n[ -x \"$egressd\" ] || egressd=egressd\n", shell.Quote(cmp.Or(d.Program, "egressd")))
		run = fmt.Sprintf(`"$egressd" docker run --behind %s-$n --policy %s --sandbox %s`, d.network(h), shell.Quote(d.Folder), h.Name)
	} else {
		b.WriteString("esac\n")
	}
	fmt.Fprintf(&b, `exec %s --network %s-$n --dns $self --dns-search .%s \
`, run, d.network(h), options("--cap-drop", sidecar.Dropped...))
	for _, v := range vars {
		fmt.Fprintf(&b, "\t-e %s \\\n", strings.ReplaceAll(shell.Quote(v.Name+"="+v.Value), anyNetwork, `'"$self"'`))
	}
	b.WriteString("\t\"$@\"\n")
	return b.String()
}

// anyNetwork stands for egressd's address in variables, until a script has chosen the network.
const anyNetwork = "192.0.2.1"
