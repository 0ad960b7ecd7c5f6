//go:build linux

package sandboxes

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/sandbox/rules"
	"github.com/spf13/cobra"
)

func newPodInit() *cobra.Command {
	pod := rules.Pod{}
	var program string
	cmd := &cobra.Command{
		Use:   "pod-init",
		Short: "Load the capture rules of a pod (its first init container)",
		Long: `Pod-init loads nftables rules for the network of its pod. DNS and TCP of every user
but egressd's go to egressd; everything else is refused. It checks that the rules
hold, and fails if the network has rules of others. It needs CAP_NET_ADMIN; the
containers after it do not.

The rules tell users apart, so they hold only for programs without capabilities.
egressd pod-run checks that before it starts an agent. egressd init k8s writes a
manifest with all parts.`,
		Example: "  egressd pod-init --copy /egressd/egressd",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return podInit(cmd.ErrOrStderr(), pod, program)
		},
	}
	cmd.Flags().Uint32Var(&pod.User, "uid", doctor.PodUser, "`USER` that egressd runs as")
	cmd.Flags().Uint16Var(&pod.Capture, "transparent", 3129, "`PORT` of listen.transparent, on loopback")
	cmd.Flags().Uint16Var(&pod.Names, "dns", 15053, "`PORT` of listen.dns, on loopback")
	cmd.Flags().StringVar(&program, "copy", "", "also copy egressd to this `PATH`, for pod-run in the agent's container")
	return cmd
}

func podInit(talk io.Writer, pod rules.Pod, program string) error {
	if pod.User == 0 || pod.Capture == 0 || pod.Names == 0 {
		return hint.Misused(errors.New("user and ports have to be other than 0"), "egressd pod-init --help")
	}
	if err := pod.Enforce(); err != nil {
		next := "capabilities: {drop: [ALL], add: [NET_ADMIN]} and runAsUser: 0 for the container of pod-init"
		if errors.Is(err, rules.ErrForeignRules) {
			next = "hostNetwork: false, and no service mesh in the pod"
		}
		return hint.Failed(err, next)
	}
	if f := doctor.PodRules(); f.Fix != "" {
		return hint.Failed(errors.New(f.Says), f.Fix)
	}
	fmt.Fprintf(talk, "egressd: everybody but user %d reaches ports %d and %d alone\n", pod.User, pod.Capture, pod.Names)
	if program == "" {
		return nil
	}
	if err := copySelf(program); err != nil {
		return hint.Failed(fmt.Errorf("copy egressd: %w", err), "a volume (emptyDir) that is mounted at "+filepath.Dir(program))
	}
	return nil
}

func copySelf(to string) error {
	const most = 1 << 30
	text, err := durable.Read("/proc/self/exe", most)
	if err != nil {
		return err
	}
	return durable.Replace(to, text, 0o755)
}
