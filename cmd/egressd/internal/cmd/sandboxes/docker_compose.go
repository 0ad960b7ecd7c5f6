//go:build linux

package sandboxes

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/devcontainer"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox/containers"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newDockerCompose returns the command by which up.sh of egressd init compose starts Compose.
func newDockerCompose() *cobra.Command {
	var c composeContainers
	cmd := &cobra.Command{
		Use:    "compose --policy FOLDER [flags] -- COMMAND [ARGUMENT…]",
		Short:  "Start Compose, with each container judged before it starts",
		Hidden: true, // for up.sh
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			docker, engine, err := dockerAndEngine(cmd.Context())
			if err != nil {
				return err
			}
			c.engine = engine
			if c.places, err = ownPlaces(); err != nil {
				return err
			}
			front := &containers.Front{Engine: engine, Judge: c.judge, Pauses: func(n boundary.Neighbour, volumes map[string]boundary.Volume) bool {
				return (&boundary.Machine{Volumes: volumes}).Writes(c.workspace, n.Mounts) // images are built of nothing else
			}}
			if filepath.Base(args[0]) == "devcontainer" {
				front.Image = imageOfDevContainer
			}
			return exits.AsSandbox(runBehind(cmd.Context(), front, docker, false, logOfSidecar(c.policy, ""), args))
		},
	}
	cmd.Flags().StringVar(&c.policy, "policy", "", "`FOLDER` of the policy")
	cmd.Flags().StringVar(&c.workspace, "workspace", "", "`FOLDER` of the project")
	cmd.Flags().StringSliceVar(&c.images, "image", nil, "`NAME` or ID of egressd's image")
	cmd.Flags().StringSliceVar(&c.held, "held", nil, "`NAME` of a service that is confined")
	_ = cmd.MarkFlagRequired("policy") // it exists
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return cmd
}

// imageOfDevContainer refuses an image whose settings the dev container CLI would write into a compose file as more than they are. The CLI asks
// the registry for those of an image that the engine does not have, past the front.
func imageOfDevContainer(name string, labels map[string]string, found bool) error {
	if !found {
		return hint.Failed(fmt.Errorf("the engine does not have the image %s, whose labels may bring settings of dev containers", printable.Text(name)), "docker pull "+shell.Word(name)+", and this once more")
	}
	err := devcontainer.JudgeLabels(name, labels)
	if refused, ok := errors.AsType[*devcontainer.BoundaryError](err); ok {
		return hint.Failed(err, refused.Instead)
	}
	return err
}

// composeContainers judges the containers that Compose creates and starts for services that are held.
type composeContainers struct {
	engine, policy, workspace string
	images, held              []string
	places                    *config.Config
}

func (c *composeContainers) judge(s *containers.Sight, inspect func(string) (*containers.Sight, error)) error {
	var is struct {
		Name   string
		Config struct{ Labels map[string]string }
	}
	if err := s.Container.Into(&is); err != nil {
		return err
	}
	if !slices.Contains(c.held, is.Config.Labels["com.docker.compose.service"]) {
		return nil
	}
	problems, err := c.problems(s, inspect, maxPeers)
	if err != nil {
		return err
	}
	if err := refusedByTable(problems); err != nil {
		return hint.Failed(fmt.Errorf("the container %s would not be held:\n%w", strings.TrimPrefix(is.Name, "/"), err), hint.Next(err))
	}
	return nil
}

// maxPeers is how many containers may have the namespaces of the next one.
const maxPeers = 8

func (c *composeContainers) problems(s *containers.Sight, inspect func(string) (*containers.Sight, error), depth int) ([]boundary.Breach, error) {
	m := hostpaths.ProjectMachine(c.workspace, c.engine, c.places)
	s.On(m)
	m.Doors, m.Own, m.Images = nil, append(m.Own, c.policy), c.images
	var is struct {
		HostConfig struct{ NetworkMode, PidMode, IpcMode string }
	}
	if err := s.Container.Into(&is); err != nil {
		return nil, err
	}
	for _, mode := range []string{is.HostConfig.NetworkMode, is.HostConfig.PidMode, is.HostConfig.IpcMode} {
		id, of := strings.CutPrefix(mode, "container:")
		if !of || slices.Contains(m.Peers, id) || depth == 0 {
			continue
		}
		peer, err := inspect(id)
		if err != nil {
			return nil, fmt.Errorf("ask the engine for the container %s: %w", id, err)
		}
		bad, err := c.problems(peer, inspect, depth-1)
		if err != nil || len(bad) > 0 {
			return bad, err
		}
		m.Peers = append(m.Peers, id)
	}
	if m.Networks = s.Closed; is.HostConfig.NetworkMode != "none" {
		m.Networks = append(m.Networks, "(no network of egressd)")
	}
	return boundary.Judge(s.Container, m), nil
}
