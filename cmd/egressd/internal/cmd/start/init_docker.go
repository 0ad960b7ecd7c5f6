package start

import (
	"path/filepath"
	"runtime"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/docker"
	"github.com/spf13/cobra"
)

func newInitDockerCommand(flags *planOptions) *cobra.Command {
	o := dockerInitOptions{sidecarOptions: sidecarOptions{planOptions: flags, command: "egressd init docker", kind: "docker"}}
	cmd := &cobra.Command{
		Use:   "docker [NAME…]",
		Short: "Write scripts that run containers behind egressd",
		Long: `Init docker writes a policy and two kinds of scripts for plain docker. up.sh makes eight
internal networks for each NAME (default: agent) and starts egressd in a container
of its own. run-NAME.sh is docker run in one of these networks. Each network has room
for one container, so that containers do not reach each other.

Three ways to put egressd in front of a container are a boundary:

  enter     docker run --network none -v FOLDER:/run/egressd:ro IMAGE egressd enter -- COMMAND
            The container has no network and attaches its loopback to egressd.
  attach    docker run -d --network none --name NAME IMAGE; egressd attach NAME
            The same from outside, as root. All traffic is captured.
  sidecar   these scripts, or egressd init compose
            The container's network leads to egressd alone. It needs no program in the
            container. A program that ignores proxies gets no connection and no record.

This one is only a request, which a program may ignore:

  docker run $(egressd env --for docker --listen ADDR) IMAGE`,
		Example: `  egressd init docker --print
  egressd init docker --allow registry.npmjs.org
  egressd init docker web worker --allow web=example.com`,
		RunE: func(cmd *cobra.Command, names []string) error {
			plan, err := o.plan(names)
			if err != nil {
				return err
			}
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), plan)
		},
	}
	cmd.Flags().StringVar(&o.project, "project", "local", "`NAME` used for containers and networks, if you need several sets")
	o.flags(cmd)
	return cmd
}

type dockerInitOptions struct {
	sidecarOptions
	project string
}

func (o *dockerInitOptions) plan(names []string) (set integrations.Set, err error) {
	if len(names) == 0 {
		names = []string{"agent"}
	}
	folder, err := o.policyFolder(plainWord(o.project))
	if err != nil {
		return set, err
	}
	d := docker.Docker{Variables: composeVariables, Judges: runtime.GOOS == "linux"}
	if d.Sidecar, err = o.sidecar(o.project, filepath.Clean(folder), names); err != nil {
		return set, err
	}
	for i := range d.Sandboxes {
		d.Sandboxes[i].Apart = true
	}
	if set, err = d.Docker(); err != nil {
		return set, err
	}
	return o.keepPolicy(set, &d.Sidecar)
}
