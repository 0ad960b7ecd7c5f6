//go:build linux

package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/internal/tty"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
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
	cmd.AddCommand(newDockerRun(), newDockerCompose(), newDockerRefused())
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

Docker reads its own flags. The engine creates the container, and egressd judges it
before it starts. It removes a container with a setting that leads around egressd, or
that egressd does not know; the error says what to type instead.`,
		Example: `  egressd docker run --rm -it node:22 npm test
  egressd docker run --socket /run/egressd/web/enter.sock --name web IMAGE`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			return exits.AsSandbox(dockerRun(cmd.Context(), args))
		},
	}
}

// dockerRun runs docker with an engine socket of its own, at which egressd changes and judges the container.
func dockerRun(ctx context.Context, args []string) error {
	args, own := ownFlags(args)
	socket := hostpaths.Real(socketPath(own[socketFlagName]))
	if info, err := os.Stat(socket); own[behindFlag] == "" && (err != nil || info.Mode()&os.ModeSocket == 0) {
		return notHandedIn(fmt.Errorf("no egressd listens at %s", socket))
	}
	docker, engine, err := dockerAndEngine(ctx)
	if err != nil {
		return err
	}
	front, err := frontOf(engine, socket, own)
	if err != nil {
		return err
	}
	log := logAt(socket)
	if own[behindFlag] != "" {
		log = logOfSidecar(own[policyFlag], own[sandboxFlag])
	}
	return runBehind(ctx, front, docker, true, log, append([]string{docker, "run"}, args...))
}

// dockerAndEngine returns the command docker, and the socket of the engine that it asks.
func dockerAndEngine(ctx context.Context) (docker, engine string, err error) {
	if docker, err = exec.LookPath("docker"); err != nil {
		return "", "", hint.Failed(errors.New("there is no command docker"), "apt install docker.io, or docker-ce-cli")
	}
	engine, err = engineOf(ctx, docker)
	return docker, engine, err
}

// runBehind runs a command with the front as its engine, to its end. Refusals of the front go into log.
func runBehind(ctx context.Context, front *containers.Front, docker string, masked bool, log refusalLog, argv []string) error {
	dir, err := os.MkdirTemp("", "egressd-docker-") // 0700
	if err != nil {
		return hint.Failed(err, "TMPDIR=FOLDER egressd docker run, with a folder of yours")
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	if err != nil {
		return hint.Failed(err, "TMPDIR=FOLDER egressd docker run, with a shorter path")
	}
	served := make(chan struct{})
	go func() {
		_ = front.Serve(l) // it ends when l is closed
		close(served)
	}()
	code, err := 0, asksFor(ctx, docker, "unix://"+l.Addr().String(), front, masked)
	if err == nil {
		code, err = runDocker(argv, "unix://"+l.Addr().String())
	}
	l.Close()
	<-served
	if refused := front.Refused(); len(refused) > 0 {
		return log.recordAll(refused)
	}
	if err != nil {
		return hint.Failed(err, cmp.Or(hint.Next(err), "docker version"))
	}
	if code != 0 {
		return cli.Status(code)
	}
	return nil
}

// Flags of egressd's own, before those of docker run. The last three are those of run-NAME.sh: a network that leads to
// egressd's container, the folder of its policy, and the name of the sandbox.
const socketFlagName, behindFlag, policyFlag, sandboxFlag = "--socket", "--behind", "--policy", "--sandbox"

// ownFlags takes egressd's flags, and their values, off the beginning of the arguments.
func ownFlags(args []string) (rest []string, own map[string]string) {
	own = make(map[string]string)
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		if !slices.Contains([]string{socketFlagName, behindFlag, policyFlag, sandboxFlag}, name) {
			break
		}
		if args = args[1:]; !given && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		own[name] = value
	}
	return args, own
}

// frontOf is what stands between docker and the engine: it changes a container to enter egressd at a socket, or only
// judges one that egressd's container is the network of.
func frontOf(engine, socket string, own map[string]string) (*containers.Front, error) {
	if network := own[behindFlag]; network != "" {
		c := &heldContainer{engine: engine, network: network, policy: own[policyFlag]}
		return &containers.Front{Engine: engine, Judge: c.judge}, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, hint.Failed(err, "egressd docker run, from a file")
	}
	c := &heldContainer{own: hostpaths.Real(program), socket: socket, engine: engine}
	return &containers.Front{Engine: engine, Change: c.change, Judge: c.judge, Doors: []string{c.own, c.socket}}, nil
}

// engineOf returns the socket of the engine that docker would ask.
func engineOf(ctx context.Context, docker string) (string, error) {
	out, err := exec.CommandContext(ctx, docker, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}").Output()
	host := strings.TrimSpace(string(out))
	if err != nil || host == "" {
		host = cmp.Or(os.Getenv("DOCKER_HOST"), "unix:///run/docker.sock")
	}
	path, local := strings.CutPrefix(host, file.UnixListener)
	if path = strings.TrimPrefix(path, "//"); !local || !filepath.IsAbs(path) {
		return "", hint.Failed(fmt.Errorf("the engine at %s is on another machine, or cannot be told not to be", printable.Text(host)), "unset DOCKER_HOST, or run egressd there")
	}
	return hostpaths.Real(path), nil
}

// asksFor has docker ask the engine something harmless. Podman's docker command ignores
// DOCKER_HOST: it would start containers that egressd never judged. With masked, the engine has to say what of /proc it masks.
func asksFor(ctx context.Context, docker, host string, front *containers.Front, masked bool) error {
	cmd := exec.CommandContext(ctx, docker, "version", "--format", "{{range .Server.Components}}{{.Name}} {{end}}")
	cmd.Env = environmentFor(host)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker version: %w: %s", err, printable.Text(strings.TrimSpace(string(out))))
	}
	if !front.Asked() {
		return fmt.Errorf("%s does not ask an engine at DOCKER_HOST, and egressd could not judge its containers", docker)
	}
	if masked && strings.Contains(string(out), "Podman") {
		return hint.Failed(errors.New("the engine is Podman, which does not say before the start what its container may do"), "podman run -d --network none, and egressd attach as root, which judges the container as it runs")
	}
	return nil
}

func environmentFor(host string) []string {
	return environ.With(environ.Without(os.Environ(), []string{"DOCKER_CONTEXT", "DOCKER_TLS_VERIFY"}), []environ.Variable{{Name: "DOCKER_HOST", Value: host}})
}

// runDocker runs a command that asks the engine at host, with the terminal, the streams and the signals of this process.
func runDocker(argv []string, host string) (code int, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = environmentFor(host)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			group := tty.Foreground(os.Stdin) // its terminal has sent the signal of a key to docker, too
			if fromKeys := s == syscall.SIGINT || s == syscall.SIGQUIT; !fromKeys || group == 0 || group != syscall.Getpgrp() {
				_ = cmd.Process.Signal(s)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, err
			}
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.Signaled() {
				return exits.Signal + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}

// A heldContainer is what egressd adds to a container of docker run, and judges it by.
type heldContainer struct {
	own, socket, engine string

	network, policy string // of a sidecar, which needs no change
}

// change changes a request to create a container: egressd enter starts the program, and is its network.
func (c *heldContainer) change(create map[string]any, image containers.ImageConfig) error {
	argv, err := startedBy(create, image)
	if err != nil {
		return err
	}
	config := integrations.Table(create, "HostConfig")
	if ports, _ := config["PortBindings"].(map[string]any); len(ports) > 0 || config["PublishAllPorts"] == true {
		return hint.Misused(errors.New("--publish: nobody reaches a container without a network of Docker's"), "egressd attach, and docker exec; or a sidecar (egressd init compose)")
	}
	if mode := text(config["NetworkMode"]); mode == "" || mode == "default" {
		config["NetworkMode"] = "none"
		delete(create, "NetworkingConfig")
	}
	config["Dns"] = []any{"127.0.0.1"}
	mounts, _ := config["Mounts"].([]any)
	config["Mounts"] = append(mounts,
		map[string]any{"Type": "bind", "Source": c.own, "Target": containerCommand, "ReadOnly": true},
		map[string]any{"Type": "bind", "Source": c.socket, "Target": containerSocket},
		map[string]any{"Type": "tmpfs", "Target": containerRoom, "TmpfsOptions": map[string]any{"Mode": 0o1777}})
	env := []environ.Variable{{Name: caFolderVariable, Value: containerRoom}}
	if captures(create, image) {
		caps, _ := config["CapAdd"].([]any)
		config["CapAdd"] = append(caps, "NET_ADMIN", "NET_RAW") // egressd enter gives both up
	} else if vars, _, err := environ.ForProxy(fmt.Sprintf("127.0.0.1:%d", attach.ProxyPort), nil); err == nil {
		env = append(env, vars...) // docker exec starts programs without egressd enter
	}
	create["Env"] = environ.With(words(create["Env"]), env)
	create["Entrypoint"] = []string{containerCommand}
	create["Cmd"] = append([]string{"enter", "--socket", containerSocket, "--"}, argv...)
	return nil
}

// judge refuses what would be no sandbox, before the container starts.
func (c *heldContainer) judge(s *containers.Sight, _ func(string) (*containers.Sight, error)) error {
	work, err := os.Getwd()
	if err != nil {
		work = ""
	}
	places, err := ownPlaces()
	if err != nil {
		return err
	}
	p := hostpaths.Machine(work, c.engine, places)
	p.Volumes, p.Neighbours = s.Volumes, s.Neighbours
	if c.network != "" {
		if !slices.Contains(s.Closed, c.network) {
			return hint.Failed(fmt.Errorf("the container is not in the network %s, or that leads out", c.network), "up.sh down, up.sh, and this once more")
		}
		p.Networks, p.Own, p.Doors = []string{c.network}, append(p.Own, c.policy), nil
	} else {
		p.Doors = []string{c.own, c.socket}
	}
	return refusedByTable(boundary.Judge(s.Container, p))
}

// ownPlaces is the user's policy, as far as it says where egressd's files are, or nil if there is none.
func ownPlaces() (*config.Config, error) {
	c, err := config.Places("")
	if none := (*config.NotFoundError)(nil); errors.As(err, &none) {
		return nil, nil
	}
	return c, err
}

// refusedByTable is an error with a line for each problem, and what to write instead of the first.
func refusedByTable(problems []boundary.Breach) error {
	if len(problems) == 0 {
		return nil
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.As("--")+": "+p.Why)
	}
	return hint.Failed(&refusedContainer{strings.Join(lines, "\n"), problems[0]}, problems[0].Instead)
}

// A refusedContainer has settings by which it gets around egressd.
type refusedContainer struct {
	why   string
	first boundary.Breach
}

func (e *refusedContainer) Error() string { return e.why }

// startedBy is the command that a request would start.
func startedBy(create map[string]any, image containers.ImageConfig) ([]string, error) {
	entrypoint, cmd := words(create["Entrypoint"]), words(create["Cmd"])
	if len(entrypoint) == 0 { // an entrypoint of the request drops the image's command, too
		entrypoint = image.Entrypoint
		if len(cmd) == 0 {
			cmd = image.Cmd
		}
	}
	if len(entrypoint) == 1 && entrypoint[0] == "" {
		entrypoint = nil
	}
	argv := slices.Concat(entrypoint, cmd)
	if len(argv) == 0 {
		name := text(create["Image"])
		return nil, hint.Misused(fmt.Errorf("the image %s starts nothing by itself", name), "egressd docker run "+shell.Word(name)+" COMMAND")
	}
	return argv, nil
}

// captures reports whether the container gets NET_ADMIN and NET_RAW, which egressd enter gives up before the program starts.
// It needs root, and no health check: Docker would start the check with NET_ADMIN.
func captures(create map[string]any, image containers.ImageConfig) bool {
	user, _, _ := strings.Cut(cmp.Or(text(create["User"]), image.User, "0"), ":")
	test := []string(nil)
	if image.Healthcheck != nil {
		test = image.Healthcheck.Test
	}
	if own, given := create["Healthcheck"].(map[string]any); given {
		test = words(own["Test"])
		if len(test) == 0 { // the other fields of a check
			test = []string{"inherited"}
		}
	}
	return (user == "0" || user == "root") && (len(test) == 0 || test[0] == "NONE")
}

func text(value any) string {
	s, _ := value.(string)
	return s
}

func words(list any) (all []string) {
	elements, _ := list.([]any)
	for _, e := range elements {
		all = append(all, text(e))
	}
	return all
}
