//go:build linux

package sandboxes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/dockerrun"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// Where a container has what is egressd's.
const (
	containerCommand = "/.egressd/egressd"
	containerSocket  = "/.egressd/enter.sock"
	containerRoom    = "/.egressd/tmp" // for the bundle of authorities, also where all else is read-only
)

func newDocker() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "docker",
		Short: "Run containers whose only network is egressd",
		Args:  cli.NoArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDockerRun())
	return cmd
}

func newDockerRun() *cobra.Command {
	return &cobra.Command{
		Use:   "run [--socket PATH] [FLAGS OF DOCKER RUN] IMAGE [COMMAND] [ARGUMENT…]",
		Short: "Run a container whose only network is egressd",
		Long: `Run is docker run --network none with egressd as the network. It starts the image's
program through egressd enter, which attaches the container's network to the
running egressd serve. It works with every image and needs no more rights than
docker. Terminal, signals and exit codes are docker's.

If the program runs as root and the image has no health check, all traffic is
captured; the container gets NET_ADMIN and NET_RAW, and gives them up before the
program starts. Otherwise egressd is a proxy on 127.0.0.1:3128, set by variables, and a
program that ignores it has no network.

Flags that would give the container another way out are refused, and so are flags
that egressd does not know; the error says what to type instead.`,
		Example: `  egressd docker run --rm -it node:22 npm test
  egressd docker run --socket /run/egressd/web/enter.sock --name web IMAGE`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			return exits.AsSandbox(dockerRun(cmd.ErrOrStderr(), args))
		},
	}
}

// dockerRun returns only where docker was not started.
func dockerRun(stderr io.Writer, args []string) error {
	socket := ""
	for len(args) > 0 && (args[0] == "--socket" || strings.HasPrefix(args[0], "--socket=")) {
		value, given := strings.CutPrefix(args[0], "--socket=")
		if args = args[1:]; !given && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		socket = value
	}
	c, err := dockerrun.Parse(args)
	if refused, ok := errors.AsType[*dockerrun.RefusedError](err); ok {
		return hint.Misused(err, refused.Instead)
	}
	if err != nil {
		return err
	}
	socket = hostpaths.Real(socketPath(socket))
	if err := checkSocketAndEngine(c, socket); err != nil {
		return err
	}
	docker, err := exec.LookPath("docker")
	if err != nil {
		return hint.Failed(errors.New("there is no command docker"), "apt install docker.io, or docker-ce-cli")
	}
	image, err := imageOf(docker, c, stderr)
	if err != nil {
		return err
	}
	argv, err := image.command(c)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return hint.Failed(err, "egressd docker run, from a file")
	}
	err = syscall.Exec(docker, slices.Concat([]string{"docker"}, dockerArguments(c, image, hostpaths.Real(own), socket, argv)), os.Environ())
	return hint.Failed(fmt.Errorf("start docker: %w", err), "docker version")
}

func dockerArguments(c *dockerrun.Command, image *dockerImage, own, socket string, argv []string) []string {
	args := slices.Concat([]string{"run"}, c.Flags, []string{
		"--network", "none", "--dns", "127.0.0.1", "--pull", "never",
		"--mount", bindMount(own, containerCommand) + ",readonly",
		"--mount", bindMount(socket, containerSocket),
		"--mount", "type=tmpfs,destination=" + containerRoom + ",tmpfs-mode=1777",
		"-e", caFolderVariable + "=" + containerRoom,
		"--entrypoint", containerCommand,
	})
	if image.captures(c) {
		args = append(args, "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW") // egressd enter gives both up
	} else {
		args = append(args, proxyVariables()...) // docker exec starts programs without egressd enter
	}
	return slices.Concat(args, []string{"--", c.Image, "enter", "--socket", containerSocket, "--"}, argv)
}

// proxyVariables are flags that set the proxy variables of egressd enter in the whole container.
func proxyVariables() (flags []string) {
	vars, _, err := environ.ForProxy(fmt.Sprintf("127.0.0.1:%d", attach.ProxyPort), nil)
	if err != nil { // the address is good
		return nil
	}
	for _, v := range vars {
		flags = append(flags, "-e", v.Name+"="+v.Value)
	}
	return flags
}

// bindMount is a value of --mount, which is a line of CSV.
func bindMount(from, to string) string {
	return `type=bind,"source=` + strings.ReplaceAll(from, `"`, `""`) + `",target=` + to
}

// checkSocketAndEngine refuses what would be no sandbox, before anything is started.
func checkSocketAndEngine(c *dockerrun.Command, socket string) error {
	host := os.Getenv("DOCKER_HOST")
	if host != "" && !strings.HasPrefix(host, file.UnixListener) {
		return hint.Failed(fmt.Errorf("the engine at %s is on another machine, or cannot be told not to be", host), "unset DOCKER_HOST, or run egressd there")
	}
	if info, err := os.Stat(socket); err != nil || info.Mode()&os.ModeSocket == 0 {
		return notHandedIn(fmt.Errorf("no egressd listens at %s", socket))
	}
	engine := hostpaths.Real(strings.TrimPrefix(strings.TrimPrefix(cmp.Or(host, "/run/docker.sock"), file.UnixListener), "//"))
	never := append(hostpaths.HostSockets(nil), engine, "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", filepath.Dir(socket))
	below := []string{"/proc", "/sys", "/dev"} // which are not to be had above either
	for _, source := range c.Sources {
		real := hostpaths.Real(source)
		if info, err := os.Stat(real); err == nil && info.Mode()&os.ModeSocket != 0 {
			return hint.Misused(fmt.Errorf("-v %s: a socket leads out of the container, past egressd", source), "leave it out; what listens there can be reached by TCP, where the policy allows it")
		}
		for _, path := range append(never, below...) {
			if hostpaths.IsOrHolds(real, path) || slices.Contains(below, path) && hostpaths.Within(real, path) {
				return hint.Misused(fmt.Errorf("-v %s: it holds %s, which leads out of the container, past egressd", source, path), "mount folders below it, without that")
			}
		}
	}
	return nil
}

// A dockerImage is what docker says of an image.
type dockerImage struct {
	Entrypoint, Cmd []string
	User            string
	Healthcheck     *struct{ Test []string }
}

// imageOf asks docker what an image starts, and fetches it where it is not there.
func imageOf(docker string, c *dockerrun.Command, stderr io.Writer) (*dockerImage, error) {
	image, err := inspectImage(docker, c.Image)
	if c.Pull != "always" && (err == nil || c.Pull == "never") {
		return image, err
	}
	args := []string{"pull"}
	if c.Platform != "" {
		args = append(args, "--platform", c.Platform)
	}
	pull := exec.Command(docker, append(args, "--", c.Image)...)
	pull.Stdout, pull.Stderr = stderr, stderr
	if err := pull.Run(); err != nil {
		return nil, hint.Failed(fmt.Errorf("docker pull %s: %w", c.Image, err), "docker images, for those that are there")
	}
	return inspectImage(docker, c.Image)
}

func inspectImage(docker, name string) (*dockerImage, error) {
	var said bytes.Buffer
	cmd := exec.Command(docker, "image", "inspect", "--format", "{{json .Config}}", "--", name)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, hint.Failed(fmt.Errorf("docker image inspect %s: %s", name, printable.Text(strings.TrimSpace(said.String()))), "docker pull "+shell.Word(name))
	}
	image := new(dockerImage)
	if err := json.Unmarshal(out, image); err != nil {
		return nil, hint.Failed(fmt.Errorf("docker image inspect %s: %w", name, err), "docker version")
	}
	return image, nil
}

// command is what the image starts with the arguments that were given.
func (i *dockerImage) command(c *dockerrun.Command) ([]string, error) {
	argv := slices.Concat(i.Entrypoint, cmpSlices(c.Args, i.Cmd))
	if c.HasEntrypoint {
		argv = c.Args
		if c.Entrypoint != "" {
			argv = append([]string{c.Entrypoint}, c.Args...)
		}
	}
	if len(argv) == 0 {
		return nil, hint.Misused(fmt.Errorf("the image %s starts nothing by itself", c.Image), "egressd docker run "+shell.Word(c.Image)+" COMMAND")
	}
	return argv, nil
}

func cmpSlices(first, second []string) []string {
	if len(first) > 0 {
		return first
	}
	return second
}

// captures reports whether the container gets NET_ADMIN and NET_RAW, which egressd enter gives up before the program starts.
// It needs root, and an image without a health check: Docker would start the check with NET_ADMIN.
func (i *dockerImage) captures(c *dockerrun.Command) bool {
	user, _, _ := strings.Cut(cmp.Or(c.User, i.User, "0"), ":")
	return (user == "0" || user == "root") && !c.Health && (i.Healthcheck == nil || len(i.Healthcheck.Test) == 0 || i.Healthcheck.Test[0] == "NONE")
}
