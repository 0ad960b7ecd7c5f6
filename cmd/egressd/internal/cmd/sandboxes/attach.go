//go:build linux

package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/pidfd"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
	"github.com/spf13/cobra"
)

func newAttach() *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach [flags] PID|CONTAINER",
		Short: "Put a running container behind egressd (as root, from outside)",
		Long: `Attach makes egressd the only network of a running process or container. It does so
from outside, as root; the container needs nothing for it. All traffic is
captured, and DNS is answered by egressd whatever server the program asks.
Denied HTTPS is answered with the reason: programs that start in the container from
now on see a bundle of authorities with one more, in memory alone.

The container must have no network but a loopback (docker run --network none).
The attachment ends with the process or with egressd serve; then attach again.

With --follow, attach handles every container with a label, running or started
later, and attaches again after egressd serve restarts.`,
		Example: `  docker run -d --network none --name web IMAGE
  egressd attach --name web web
  egressd attach --follow --label egressd=web --name web`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.follow || o.label != "" {
				return o.checkFollow(args)
			}
			return cli.OneArgument("a process or a container", "egressd attach CONTAINER")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.follow {
				return o.runFollow(cmd)
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	socketFlag(cmd, &o.socket)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME` of the sandbox, if the policy lists several that could match")
	cmd.Flags().StringVar(&o.docker, "docker", "", "`PATH` of the socket of Docker or Podman (default: $DOCKER_HOST, else /run/docker.sock)")
	cmd.Flags().BoolVar(&o.follow, "follow", false, "attach to every container with --label, running or started later, until interrupted")
	cmd.Flags().StringVar(&o.label, "label", "", "label of the containers to follow, as `KEY[=VALUE]`")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until the process has ended")
	return cmd
}

type attachOptions struct {
	socket, name, docker string
	wait, json           bool
	follow               bool
	label                string // of containers that are followed
}

// An attachedView is what attach has done.
type attachedView struct {
	PID     int    `json:"pid"`
	Sandbox string `json:"sandbox"`
	Mode    string `json:"mode"`
	Policy  string `json:"policy"`

	Container string `json:"container,omitempty"` // that was followed
}

func (o *attachOptions) run(stdout, stderr io.Writer, who string) error {
	if err := o.check(shell.Word(who)); err != nil {
		return err
	}
	pid, err := o.process(who)
	if err != nil {
		return err
	}
	if !isPID(who) {
		engine, err := o.engineSocket(who)
		if err == nil {
			err = o.judge(engine, who, pid)
		}
		if err != nil {
			return err
		}
	}
	process, err := pidfd.Open(pid)
	if err != nil {
		return hint.Failed(fmt.Errorf("find process %d: %w", pid, err), "egressd attach PID, of a process that runs")
	}
	defer process.Close()
	network, err := attach.PrepareProcess(process, ownAddresses())
	if err != nil {
		return notReady(err, "docker run --network none, and attach to that; a container with another network is not held by egressd")
	}
	network.Request.Trusts = attach.CanTrust(process, certs.SystemPaths())
	handed, err := handIn(network, socketPath(o.socket), o.name)
	if err != nil {
		return err
	}
	handed.Close()
	trust(process, handed.Answer.CA, stderr)
	done := attachedView{PID: pid, Sandbox: handed.Answer.Sandbox, Mode: string(network.Request.Mode), Policy: handed.Answer.Policy}
	if o.json {
		err = cli.PrintJSON(stdout, done)
	} else {
		fmt.Fprintf(stderr, "egressd: process %d is sandbox %s · %s · policy %.8s…, until it ends\n", pid, printable.Text(done.Sandbox), done.Mode, strings.TrimPrefix(done.Policy, "sha256:"))
	}
	if err == nil && o.wait {
		process.Wait()
	}
	return err
}

// trust has programs that start in a container from now on trust the authority that denied HTTPS is answered with, and that
// hosts which rules look into are shown with. Programs that bring authorities of their own, such as Node.js, do not.
func trust(process *pidfd.Process, ca string, stderr io.Writer) {
	if ca == "" {
		return
	}
	covered, err := attach.TrustInProcess(process, certs.SystemPaths(), func(system []byte) []byte { return authority.Bundle(system, []byte(ca)) })
	if err == nil && covered == 0 {
		err = errors.New("it has no bundle of authorities")
	}
	if err != nil {
		fmt.Fprintf(stderr, "egressd: warning: programs there do not trust egressd's authority, so denied HTTPS is an error of certificates: %s\n", printable.Text(err.Error()))
		hint.Sayf(stderr, "egressd log, for why; egressd help trust-the-ca")
	}
}

// check looks at what holds for one container and for many. rest is the rest of the command
// line.
func (o *attachOptions) check(rest string) error {
	if o.name != "" && !sandbox.PlainName(o.name) {
		return hint.Misused(fmt.Errorf("--name %s: a name has up to 64 letters, digits, dots, dashes and underscores", o.name), "egressd attach --name web "+rest)
	}
	if os.Geteuid() != 0 {
		return hint.Failed(errors.New("attach needs root, to administer the network of others"), "sudo egressd attach "+rest+", or egressd enter inside")
	}
	return nil
}

func (o *attachOptions) engineSocket(rest string) (string, error) {
	socket := strings.TrimPrefix(cmp.Or(o.docker, os.Getenv("DOCKER_HOST"), "/run/docker.sock"), file.UnixListener)
	socket = strings.TrimPrefix(socket, "//")
	if !filepath.IsAbs(socket) {
		return "", hint.Misused(fmt.Errorf("%s is not a Unix socket", socket), "egressd attach --docker /run/docker.sock "+rest)
	}
	return socket, nil
}

// pidDigits is as many digits as the number of a process can have; IDs of containers are
// longer.
const pidDigits = 10

func isPID(who string) bool {
	pid, err := strconv.Atoi(who)
	return len(who) <= pidDigits && err == nil && pid > 0
}

// judge holds a container to the table of package boundary. egressd serve does so too, but may not ask this engine.
func (o *attachOptions) judge(engine, container string, pid int) error {
	s, err := containers.Inspect(context.Background(), engine, container)
	if err != nil {
		return hint.Failed(fmt.Errorf("ask the engine about %s: %w", container, err), "egressd attach --docker PATH of the engine's socket")
	}
	places, err := ownPlaces()
	if err != nil {
		return err
	}
	m := hostpaths.Machine("", engine, places)
	socket := hostpaths.Real(socketPath(o.socket))
	s.On(m)
	m.Doors = hostpaths.Doors(socket)
	if err := refusedByTable(boundary.Judge(containers.AsMounted(s.Container, pid, m.Doors), m)); err != nil {
		return logAt(socket).record(s, err)
	}
	return nil
}

// process finds the process that is meant.
func (o *attachOptions) process(who string) (int, error) {
	if isPID(who) {
		return strconv.Atoi(who)
	}
	socket, err := o.engineSocket(who + ", or the PID of the container's first process")
	if err != nil {
		return 0, err
	}
	pid, err := containers.FirstProcess(socket, who)
	var container *containers.Error
	switch {
	case errors.As(err, &container) && container.Missing:
		return 0, hint.Failed(err, "docker ps, for those that run")
	case errors.As(err, &container):
		return 0, hint.Failed(err, "docker start "+shell.Word(who))
	case err != nil:
		return 0, hint.Failed(err, "egressd attach PID, or --docker PATH of the socket")
	}
	return pid, nil
}
