package start

import (
	"fmt"
	"regexp"
	"sync"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/integrations/k8s"
	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
)

func newInitK8sCommand(o *planOptions) *cobra.Command {
	var path, image string
	cmd := &cobra.Command{
		Use:   "k8s",
		Short: "Write a Kubernetes pod: an agent with egressd as its sidecar",
		Long: `Init k8s writes a pod: an agent without capabilities, egressd as its sidecar, and an
init container that loads the capture rules. It replaces an existing file only
with --yes.`,
		Example: `  egressd init k8s --print
  egressd init k8s -o agent.yaml --image registry.example/egressd:1`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkImage(image, "egressd init k8s"); err != nil {
				return err
			}
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), k8s.Files(path, image))
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "agent.yaml", "`FILE` to write")
	cmd.Flags().StringVar(&image, "image", "egressd:latest", "`NAME` of egressd's image")
	return cmd
}

// plainImage is the name of an image that is one word of YAML, without quotes.
var plainImage = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/@-]*(:[A-Za-z0-9._@/-]+)*$`)
})

func checkImage(name, command string) error {
	if plainImage().MatchString(name) {
		return nil
	}
	return hint.Misused(fmt.Errorf("--image %q is no name of an image", name), command+" --image registry.example/egressd:1")
}
