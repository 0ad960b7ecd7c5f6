//go:build linux

package other

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newDoctor() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems that stop or bypass egressd",
		Long: `Doctor checks this machine, this shell's variables and egressd's own files:
namespaces for egressd run, the policy with its tests, who can write it, proxy
variables that bypass egressd, sockets that lead out of a sandbox, trust in the
authority, the log, the clock, capture rules, and who can reach the operator's
listener. It changes nothing and sends nothing (except with --pod).

--escapes makes the sandbox of egressd run and tries the known escapes from inside, as
restricted as a program would be. It also checks that connections and datagrams
arrive at egressd. Nothing leaves the machine. Egressd run repeats most of these
checks before each program, and refuses to start it if one escape works.

Each problem comes with a fix. Exit codes: 0 no problem; 1 a problem; 2 it could
not check.`,
		Example: `  egressd doctor
  egressd doctor --escapes
  egressd doctor --container web --json
  docker exec web egressd doctor --inside`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.pod = cmd.Flags().Changed("pod")
			return o.run(cmd.OutOrStdout())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().Uint32Var(&o.podUser, "pod", doctor.PodUser, "check this container of a pod, where egressd runs as `USER`: do the rules of pod-init hold? (sends one empty datagram to an unused address)")
	cmd.Flags().Lookup("pod").NoOptDefVal = strconv.Itoa(doctor.PodUser)
	cmd.Flags().StringVar(&o.container, "container", "", "check the running container `NAME` from outside, through Docker's API")
	cmd.Flags().StringVar(&o.docker, "docker", "", "`PATH` of the socket of Docker or Podman, for --container (default: $DOCKER_HOST, else /run/docker.sock)")
	cmd.Flags().BoolVar(&o.inside, "inside", false, "check from inside a container what leads out of it")
	cmd.Flags().BoolVar(&o.serving, "serving", false, "check only that egressd serve runs here and listens (a container health check)")
	cmd.Flags().BoolVar(&o.escapes, "escapes", false, "try the known escapes from a sandbox, and report any that work")
	cmd.Flags().BoolVar(&o.redirect, "redirect", false, "with --escapes: capture connections with NAT even if the kernel has tproxy")
	cmd.MarkFlagsMutuallyExclusive("escapes", "pod", "container", "inside", "serving")
	return cmd
}

type doctorOptions struct {
	config string

	pod     bool
	podUser uint32

	container, docker string
	inside, serving   bool

	escapes, redirect bool

	json bool
}

func (o *doctorOptions) run(w io.Writer) error {
	if o.escapes {
		return o.tryEscapes(w)
	}
	if o.pod {
		return printFindings(w, doctor.Pod(o.podUser), o.json)
	}
	if o.container != "" {
		return o.lookAtContainer(w)
	}
	if o.inside {
		return printFindings(w, doctor.Inside(os.Getenv), o.json)
	}
	if o.serving {
		cfg, err := config.Load(o.config)
		if err != nil {
			return err
		}
		return printFindings(w, doctor.Serving(cfg), o.json)
	}
	cfg, err := config.Load(o.config)
	own := ""
	if err == nil {
		own = cfg.AdminSocket()
	}
	all := doctor.Machine(own)
	var none *config.NotFoundError
	switch {
	case errors.As(err, &none):
		all = append(all, doctor.Finding{Check: "policy", Says: none.Error(), Fix: "egressd init"})
	case err != nil:
		all = append(all, doctor.Finding{Check: "policy", Says: err.Error(), Fix: cmp.Or(hint.Next(err), "egressd policy check")})
	default:
		all = append(all, doctor.Configuration(cfg, os.Getenv, time.Now())...)
	}
	return printFindings(w, all, o.json)
}

func (o *doctorOptions) lookAtContainer(w io.Writer) error {
	socket := strings.TrimPrefix(cmp.Or(o.docker, os.Getenv("DOCKER_HOST"), "/run/docker.sock"), file.UnixListener)
	path := o.config
	if folder := doctor.PolicyOf(socket, o.container); path == "" && folder != "" {
		path = filepath.Join(folder, "egressd.yaml")
	}
	cfg, err := config.Load(path)
	if err != nil {
		var none *config.NotFoundError
		if path != "" || !errors.As(err, &none) {
			return err
		}
		cfg = nil
	}
	all, err := doctor.Container(socket, o.container, cfg)
	if err != nil && cfg != nil {
		if refused := doctor.RefusedContainer(cfg, o.container); refused != nil {
			return printFindings(w, []doctor.Finding{*refused}, o.json)
		}
	}
	if err != nil {
		return hint.Misused(err, "egressd doctor --container NAME [--docker /run/docker.sock], as a user who may ask Docker")
	}
	return printFindings(w, all, o.json)
}

// printFindings prints all findings. It returns exit code 1 if one of them has a fix.
func printFindings(w io.Writer, all []doctor.Finding, asJSON bool) error {
	wrong := false
	for _, f := range all {
		wrong = wrong || f.Fix != ""
		if !asJSON {
			fmt.Fprintln(w, f)
			continue
		}
		if err := cli.PrintJSON(w, struct {
			doctor.Finding
			OK bool `json:"ok"`
		}{f, f.Fix == ""}); err != nil {
			return err
		}
	}
	if wrong {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}
