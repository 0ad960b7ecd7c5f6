package start

import (
	"path/filepath"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/docker"
	"github.com/spf13/cobra"
)

func newInitDockerCommand() *cobra.Command {
	o := dockerInitOptions{sidecarOptions: sidecarOptions{command: "egressd init docker", kind: "docker"}}
	cmd := &cobra.Command{
		Use:   "docker [NAME…]",
		Short: "Write scripts for docker run: egressd in front of containers",
		Long: `Init docker writes a policy and scripts for plain docker: up.sh makes for each NAME
(default: agent) an internal network from which egressd alone can be reached, and
starts egressd in a container of its own; run-NAME.sh is docker run in that network.

Of the ways to put egressd in front of a container these are boundaries:

  enter     docker run --network none -v FOLDER:/run/egressd IMAGE egressd enter -- COMMAND
            The container has no network at all, and hands its loopback to egressd.
  attach    docker run -d --network none --name NAME IMAGE; egressd attach NAME
            The same from outside, as root, captured whatever the program does.
  sidecar   these scripts, or egressd init compose
            Its network leads to egressd alone. It takes no program in the container,
            and what ignores proxies gets no connection, but leaves no record either.

And this is a request, which a program may ignore:

  docker run $(egressd env --for docker --listen ADDR) IMAGE`,
		Example: `  egressd init docker --print
  egressd init docker --allow registry.npmjs.org
  egressd init docker web worker --allow web=example.com`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			plan, err := o.plan(names)
			if err != nil {
				return err
			}
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), plan)
		},
	}
	cmd.Flags().StringVar(&o.project, "project", "local", "`NAME` in those of the containers and networks, for more than one of these")
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
	d := docker.Docker{Variables: composeVariables}
	if d.Sidecar, err = o.sidecar(o.project, filepath.Clean(folder), names); err != nil {
		return set, err
	}
	if set, err = d.Docker(); err != nil {
		return set, err
	}
	return o.keepPolicy(set, &d.Sidecar)
}
