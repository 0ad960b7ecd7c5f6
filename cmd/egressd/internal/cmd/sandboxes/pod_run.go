//go:build linux

package sandboxes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
)

func newPodRun() *cobra.Command {
	var uid uint32
	cmd := &cobra.Command{
		Use:   "pod-run -- COMMAND [ARGUMENT…]",
		Short: "Start a program in a pod if the capture rules hold for it",
		Long: `Pod-run checks its container as egressd doctor --pod does, and starts the command if
the capture rules hold for it. Otherwise it says what is wrong, and exits with 1.`,
		Example: "  egressd pod-run -- node agent.js",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.Misused(errors.New("pod-run takes a command"), "egressd pod-run -- COMMAND")
			}
			return podRun(uid, args)
		},
	}
	cmd.Flags().Uint32Var(&uid, "uid", doctor.PodUser, "`USER` that egressd runs as")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func podRun(uid uint32, args []string) error {
	var wrong, fixes []string
	for _, f := range doctor.Pod(uid) {
		if f.Fix != "" {
			wrong, fixes = append(wrong, f.Says), append(fixes, f.Fix)
		}
	}
	if len(wrong) > 0 {
		return hint.Failed(fmt.Errorf("%s is not started here: it could send past egressd\n%s", args[0], strings.Join(wrong, "\n")), strings.Join(fixes, "; "))
	}
	path, err := exec.LookPath(args[0])
	if err == nil {
		err = syscall.Exec(path, args, os.Environ())
	}
	return hint.Failed(fmt.Errorf("start %s: %w", args[0], err), "egressd pod-run -- COMMAND, with a program of this container")
}
