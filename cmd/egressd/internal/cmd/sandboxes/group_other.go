//go:build !linux

package sandboxes

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

func onLinux(use, short string) *cobra.Command {
	return cli.OnLinux(cli.ExitFailed, use, short, "use it in the Linux VM or container that runs your containers")
}

func newEnter() *cobra.Command {
	return onLinux("enter", "Put this container behind egressd and start a program (from inside)")
}

func newAttach() *cobra.Command {
	return onLinux("attach", "Put a running container behind egressd (as root, from outside)")
}

func newDocker() *cobra.Command {
	return onLinux("docker", "Run containers whose only network is egressd")
}

func newPodInit() *cobra.Command {
	return onLinux("pod-init", "Load the capture rules of a pod (its first init container)")
}

func newPodRun() *cobra.Command {
	return onLinux("pod-run", "Start a program in a pod if the capture rules hold for it")
}
