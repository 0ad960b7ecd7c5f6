//go:build linux

package sandboxes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A refusalLog is the audit log of the egressd that would have served a container.
type refusalLog struct {
	program string // by which a person asks that log: egressd, or the script in the folder of a sidecar's policy
	sandbox string // that the container would have been; "" if the log's egressd tells it itself
	tell    func(*sandbox.RefusedContainer) (id string, err error)
}

// logAt is the log of the egressd serve that listens at a socket for networks.
func logAt(socket string) refusalLog {
	return refusalLog{program: "egressd", tell: func(c *sandbox.RefusedContainer) (string, error) {
		k, err := attach.Dial(socket)
		if err != nil {
			return "", err
		}
		return k.Refused(c)
	}}
}

// logOfSidecar is the log of egressd's container with a policy folder. The script there finds the container, and starts it if it does
// not run yet. Without a name, the sandbox is the service of Compose.
func logOfSidecar(folder, name string) refusalLog {
	script := filepath.Join(folder, "egressd")
	return refusalLog{program: script, sandbox: name, tell: func(c *sandbox.RefusedContainer) (string, error) {
		c.Sandbox = cmp.Or(c.Sandbox, c.Service)
		text, err := json.Marshal(c)
		if err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*startPatience)
		defer cancel()
		cmd := exec.CommandContext(ctx, script, "docker", "refused")
		cmd.Stdin = bytes.NewReader(text)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
			return "", fmt.Errorf("%w: %s", err, first)
		}
		return strings.TrimSpace(string(out)), nil
	}}
}

// record records that a container was refused, and adds to the error where it is recorded. An error that is not about a setting is
// returned as it is.
func (l refusalLog) record(s *containers.Sight, err error) error {
	refused, ok := errors.AsType[*refusedContainer](err)
	if !ok || s == nil {
		return err
	}
	c := s.Refused(refused.first.Field, refused.why)
	c.Sandbox = l.sandbox
	id, failed := l.tell(c)
	where := "recorded: " + shell.Word(l.program) + " why " + id
	if failed != nil {
		where = "no log has this: " + printable.Text(failed.Error())
	}
	return hint.Failed(fmt.Errorf("%w\n%s", err, where), hint.Next(err))
}

// recordAll records what a front has refused, and returns the last error.
func (l refusalLog) recordAll(all []containers.Refused) (err error) {
	for _, r := range all {
		err = l.record(r.Sight, r.Err)
	}
	return err
}

// startPatience is how long egressd may take to start in its container.
const startPatience = 15 * time.Second

// newDockerRefused returns the command by which the scripts of egressd init have egressd in its container record what they refused.
func newDockerRefused() *cobra.Command {
	var at client.Place
	cmd := &cobra.Command{
		Use:    "refused",
		Short:  "Record a container that was refused, which is read from standard input",
		Hidden: true, // for up.sh and run-NAME.sh
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return recordRefused(cmd.Context(), at, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cli.DaemonFlags(cmd, &at)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return cmd
}

// refusedBytes bounds what is read of a refused container.
const refusedBytes = 16 << 10

func recordRefused(ctx context.Context, at client.Place, in io.Reader, out io.Writer) error {
	var c sandbox.RefusedContainer
	if err := json.NewDecoder(io.LimitReader(in, refusedBytes)).Decode(&c); err != nil {
		return hint.Misused(fmt.Errorf("a refused container that cannot be read: %w", err), "up.sh, or run-NAME.sh")
	}
	k, err := client.Dial(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var told struct{ Recorded string }
	for {
		status, err := k.Send(ctx, http.MethodPost, "/v1/refused", c, &told)
		if err == nil {
			fmt.Fprintln(out, told.Recorded)
			return nil
		}
		if status != 0 {
			return err
		}
		select { // it has only begun to start
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
