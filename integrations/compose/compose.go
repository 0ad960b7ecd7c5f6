// Package compose makes an override file for Compose with egressd in front of services. It reads the Compose file, and
// refuses services that no network would hold.
package compose

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/sidecar"
	"github.com/egressd/egressd/internal/shell"
)

// A Compose is what an override file for Compose depends on.
type Compose struct {
	sidecar.Sidecar
	File      *File
	Settled   *File  // as Compose 2 reads File, which up.sh starts; nil: File itself
	Path      string // of the override file
	Workspace string // folder of the project
	Judges    bool   // the program judges each container, as egressd docker run does
	Together  bool   // services stay in the network default, too
	Named     ProjectName
	Again     []string // the command that made the files, which judges them once more

	// Variables are those by which programs find the proxy at an address.
	Variables func(proxy string) ([]integrations.Variable, error)
}

// Names of egressd's service, of its network to the world, and of the volume with its log.
const (
	selfService = "egressd"
	outside     = "egressd-out"
	state       = "egressd-state"
)

// Compose returns the override file by which the held services reach egressd and nothing
// else, and the policy. It takes Compose 1.27 or later.
func (c *Compose) Compose() (integrations.Set, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `# Puts egressd in front of services of %s. Each has a network of its own, from
# which egressd alone can be reached. It counts only where both files are given:
#   docker compose -f %s -f %s up
# Made by egressd init compose; the policy is %s.
`, filepath.Base(c.File.Path), filepath.Base(c.File.Path), filepath.Base(c.Path), c.PolicyPath())
	if c.File.Version != "" {
		fmt.Fprintf(&b, "version: %q\n", c.File.Version)
	}
	b.WriteString("services:\n")
	c.self(&b)
	for _, h := range c.Sandboxes {
		if err := c.service(&b, h); err != nil {
			return integrations.Set{}, err
		}
	}
	for i := range c.File.Services {
		if s := &c.File.Services[i]; s.held && !slices.Contains(c.heldNames(), s.Name) { // it has the network of a held one, or none
			fmt.Fprintf(&b, "  %s:\n    cap_drop: %s\n", s.Name, sidecar.Inline(sidecar.Dropped))
			s.writeGuards(&b)
		}
	}
	b.WriteString("networks:\n  " + outside + ": {}\n")
	for _, h := range c.Sandboxes {
		c.network(&b, networkName(h), fmt.Sprintf("    ipam:\n      config:\n        - {subnet: %q, ip_range: %q}\n", h.Subnet, h.Free()))
	}
	for _, name := range c.shared() {
		c.network(&b, name, "")
	}
	b.WriteString("volumes:\n  " + state + ": {}\n")
	return integrations.Set{Files: []integrations.Made{{Path: c.Path, Text: b.String(), Mode: 0o644}, c.Policy(), c.upScript(), c.Command(c.ScriptPath(), "label=com.docker.compose.service="+selfService)}, Notes: c.notes(), Readable: c.Folder}, nil
}

// up is the command that starts both files.
func (c *Compose) up() string {
	return fmt.Sprintf("docker compose -f %s -f %s up", filepath.Base(c.File.Path), filepath.Base(c.Path))
}

// Judged are copies of both files, and of .env, in the folder of the policy, which no service can write. up.sh starts these: a
// service that runs may write its own between the judging and the start. With Compose 2, the first copy is what Compose has made
// of the file, and Compose reads no other file for it.
func (c *Compose) Judged(set integrations.Set) (all []integrations.Made) {
	file := cmp.Or(c.Settled, c.File)
	all = append(all, integrations.Made{Path: filepath.Join(c.Folder, judgedFile), Text: string(file.Text), Mode: 0o600})
	all = append(all, integrations.Made{Path: filepath.Join(c.Folder, judgedEnv), Text: file.Env(), Mode: 0o600})
	for _, f := range set.Files {
		if f.Path == c.Path {
			all = append(all, integrations.Made{Path: filepath.Join(c.Folder, judgedOverride), Text: f.Text, Mode: 0o600})
		}
	}
	return all
}

const judgedFile, judgedOverride, judgedEnv = "judged.yaml", "judged.egressd.yaml", "judged.env"

// Env is what Compose gets of the file .env.
func (c *File) Env() string { return c.env.passedOn(string(c.Text), c.composed) }

// ScriptPath is where up.sh is.
func (c *Compose) ScriptPath() string { return filepath.Join(c.Folder, "up.sh") }

// upScript starts both files, once egressd has judged them again: a service may have changed them. egressd init compose
// fails there if the override file has changed, and keeps copies of what it judged. "up.sh down" takes away what those copies started.
func (c *Compose) upScript() integrations.Made {
	text := fmt.Sprintf(`#!/bin/sh
# docker compose up for services of %[1]s, once egressd has judged its files again: up.sh [OPTION…]. up.sh down ends them.
# Made by egressd init compose.
set -eu
compose=docker-compose
if docker compose version >/dev/null 2>&1; then compose="docker compose"; fi
if [ "${1:-}" = down ]; then
	exec $compose %[3]s --env-file %[6]s -f %[4]s -f %[5]s "$@"
fi
%[2]sexec %[7]s$compose %[3]s --env-file %[6]s -f %[4]s -f %[5]s up "$@"
`, filepath.Base(c.File.Path), c.prepared(), c.Named.options(filepath.Dir(c.File.Path)),
		shell.Quote(filepath.Join(c.Folder, judgedFile)), shell.Quote(filepath.Join(c.Folder, judgedOverride)),
		shell.Quote(filepath.Join(c.Folder, judgedEnv)), c.judgingWords())
	return integrations.Made{Path: c.ScriptPath(), Text: text, Mode: 0o755}
}

// prepared are lines of a script that judge the files again, and the networks that are there.
func (c *Compose) prepared() string {
	var again []string
	for _, word := range c.Again {
		again = append(again, shell.Quote(word))
	}
	return fmt.Sprintf(`%s >/dev/null
unset COMPOSE_FILE COMPOSE_ENV_FILES
for network in%s; do
	made=$(docker network inspect -f '{{.Internal}}' "$network" 2>/dev/null) || continue
	[ "$made" = true ] || {
		echo "egressd: error: the network $network is there, and leads out" >&2
		echo "egressd: hint: docker compose -p ${COMPOSE_PROJECT_NAME:-%s} down, and this once more" >&2
		exit 1
	}
done
# BuildKit's client would run git in the project, by a configuration that services may write.
export BUILDX_GIT_INFO=false BUILDX_GIT_LABELS=false
`, strings.Join(again, " "), c.sharedWords(), c.Named.Name)
}

// DevSettingsPath is where the settings of the dev container are that devcontainer.sh starts.
func (c *Compose) DevSettingsPath() string { return filepath.Join(c.Folder, "devcontainer.json") }

// JudgedFiles are the files that up.sh starts.
func (c *Compose) JudgedFiles() []string {
	return []string{filepath.Join(c.Folder, judgedFile), filepath.Join(c.Folder, judgedOverride)}
}

// DevScript is the dev container CLI for a service that is held: it starts what up.sh starts, by the same front of the engine. settings
// are those of a workspace folder as they were judged.
func (c *Compose) DevScript(folder, settings string) []integrations.Made {
	which := "--workspace-folder " + shell.Quote(folder) + " --override-config " + shell.Quote(c.DevSettingsPath())
	text := fmt.Sprintf(`#!/bin/sh
# The dev container CLI for a service of %[1]s: devcontainer.sh [up [OPTION…]], devcontainer.sh exec COMMAND…
# Made by egressd init compose. The settings are devcontainer.json beside this file, and not those of the project.
set -eu
what=${1:-up}
[ $# = 0 ] || shift
case $what in
up) ;;
exec)
	set -- devcontainer exec %[2]s "$@"
	;;
*)
	echo "egressd: error: $what: devcontainer.sh has up and exec" >&2
	echo "egressd: hint: %[3]s up" >&2
	exit 2
	;;
esac
export %[5]s="${%[5]s:-%[6]s}"
if [ "$what" = up ]; then
%[4]sset -- %[7]sdevcontainer up %[2]s "$@"
fi
# A label of an image may name any other variable of yours (localEnv), and the container would get it.
exec env -i PATH="$PATH" HOME="$HOME" USER="${USER-}" TERM="${TERM-}" LANG="${LANG-}" TMPDIR="${TMPDIR-}" \
	XDG_CONFIG_HOME="${XDG_CONFIG_HOME-}" XDG_STATE_HOME="${XDG_STATE_HOME-}" XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR-}" \
	DOCKER_HOST="${DOCKER_HOST-}" DOCKER_CONTEXT="${DOCKER_CONTEXT-}" DOCKER_CONFIG="${DOCKER_CONFIG-}" \
	BUILDX_GIT_INFO=false BUILDX_GIT_LABELS=false COMPOSE_ENV_FILES=%[8]s %[5]s="$%[5]s" "$@"
`, filepath.Base(c.File.Path), which, c.DevScriptPath(), c.prepared(), projectVariable, c.Named.Name, c.judgingWords(), shell.Quote(filepath.Join(c.Folder, judgedEnv)))
	return []integrations.Made{{Path: c.DevSettingsPath(), Text: settings, Mode: 0o644}, {Path: c.DevScriptPath(), Text: text, Mode: 0o755}}
}

// DevScriptPath is where devcontainer.sh is.
func (c *Compose) DevScriptPath() string { return filepath.Join(c.Folder, "devcontainer.sh") }

// judgingWords begin the command that starts Compose: egressd has each container judged that the engine creates and starts for it.
func (c *Compose) judgingWords() string {
	if !c.Judges {
		return ""
	}
	words := fmt.Sprintf("%s docker compose --policy %s --workspace %s --image %s", shell.Quote(c.Program), shell.Quote(c.Folder), shell.Quote(c.Workspace), shell.Quote(c.Image))
	for i := range c.File.Services {
		if s := &c.File.Services[i]; s.held {
			words += " --held " + shell.Quote(s.Name)
		}
	}
	return words + " -- \\\n\t"
}

// sharedWords are the names that the engine has for the networks of the file that held services are in, as words of a shell.
func (c *Compose) sharedWords() (words string) {
	for _, name := range c.shared() {
		if given := c.File.givenName(c.File.text.Networks, name); given != "" {
			words += " " + shell.Quote(given)
		} else {
			words += fmt.Sprintf(` "${%s:-%s}"%s`, projectVariable, c.Named.Name, shell.Quote("_"+name))
		}
	}
	return words
}

func networkName(h sidecar.SandboxNetwork) string { return "egressd-" + h.Name }

func (c *Compose) self(b *strings.Builder) {
	fmt.Fprintf(b, `  %s:
    image: %q
    pull_policy: never
    read_only: true
    user: "65532:65532"
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    stop_grace_period: 15s
`, selfService, c.Image)
	command := c.Environment()
	fmt.Fprintf(b, "    labels: {%s: %q}\n    environment: {%s: %q}\n", sidecar.Label, inCompose(c.Folder), command.Name, inCompose(command.Value))
	b.WriteString("    sysctls:\n")
	for _, s := range sidecar.Sysctls {
		fmt.Fprintf(b, "      %s: %q\n", s.Name, s.Value)
	}
	fmt.Fprintf(b, "    volumes:\n      - {type: bind, source: %q, target: /etc/egressd, read_only: true}\n", inCompose(c.Folder))
	fmt.Fprintf(b, "      - {type: volume, source: %s, target: /var/lib/egressd}\n", state)
	fmt.Fprintf(b, "    healthcheck:\n      test: %s\n      interval: 2s\n      timeout: 10s\n      retries: 15\n", sidecar.Inline(append([]string{"CMD"}, sidecar.Healthy...)))
	fmt.Fprintf(b, "    networks:\n      %s: {}\n", outside)
	for _, h := range c.Sandboxes {
		fmt.Fprintf(b, "      %s: {ipv4_address: %q}\n", networkName(h), h.Self())
	}
}

// service is what is added to a service that is held.
func (c *Compose) service(b *strings.Builder, h sidecar.SandboxNetwork) error {
	vars, err := c.Variables(h.Proxy())
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "  %s:\n    depends_on: {%s: {condition: service_healthy}}\n    networks:\n      %s: {}\n", h.Name, selfService, networkName(h))
	if c.inDefault(h.Name) {
		b.WriteString("      default: {}\n")
	}
	// Docker's resolver in the container forwards unknown names to this address.
	fmt.Fprintf(b, "    dns: [%q]\n    dns_search: [\".\"]\n    cap_drop: %s\n    environment:\n", h.Self(), sidecar.Inline(sidecar.Dropped))
	for _, v := range vars {
		if strings.EqualFold(v.Name, "no_proxy") || v.Name == "npm_config_noproxy" {
			v.Value = strings.Trim(v.Value+","+strings.Join(c.neighbours(h.Name), ","), ",")
		}
		fmt.Fprintf(b, "      %s: %q\n", v.Name, inCompose(v.Value))
	}
	c.File.Service(h.Name).writeGuards(b)
	return nil
}

// network is a network that leads nowhere.
func (c *Compose) network(b *strings.Builder, name, more string) {
	fmt.Fprintf(b, "  %s:\n    internal: true\n    driver: bridge\n    driver_opts:\n", name)
	for _, o := range []integrations.Variable{{Name: sidecar.OptionBridge, Value: c.Bridge(name)}, {Name: sidecar.OptionInhibit, Value: "true"}, {Name: sidecar.OptionIsolated, Value: "isolated"}} {
		fmt.Fprintf(b, "      %s: %q\n", o.Name, o.Value)
	}
	b.WriteString(more)
}

func (c *Compose) heldNames() (all []string) {
	for _, h := range c.Sandboxes {
		all = append(all, h.Name)
	}
	return all
}

// inDefault reports whether a service stays in the network that those have who name
// none.
func (c *Compose) inDefault(name string) bool {
	return c.Together && len(c.File.Service(name).Networks) == 0
}

// networksOf are the networks of a service that are not its own alone.
func (c *Compose) networksOf(s *Service) []string {
	switch {
	case s.Shares():
		return nil
	case len(s.Networks) > 0:
		return s.Networks
	case c.Together || !slices.Contains(c.heldNames(), s.Name):
		return []string{"default"}
	}
	return nil
}

// shared are the networks of the file that held services stay in: an override file can
// add networks to a service, and take none away.
func (c *Compose) shared() (all []string) {
	for _, h := range c.Sandboxes {
		all = append(all, c.networksOf(c.File.Service(h.Name))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// neighbours are the services that a held one shares a network with.
func (c *Compose) neighbours(name string) (all []string) {
	mine := c.networksOf(c.File.Service(name))
	for i := range c.File.Services {
		s := &c.File.Services[i]
		if s.Name != name && slices.ContainsFunc(c.networksOf(s), func(n string) bool { return slices.Contains(mine, n) }) {
			all = append(all, s.Name)
		}
	}
	return all
}

func inCompose(text string) string { return strings.ReplaceAll(text, "$", "$$") }
