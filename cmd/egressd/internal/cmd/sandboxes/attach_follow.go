//go:build linux

package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/containers"
	"github.com/spf13/cobra"
)

// attachRetry is how long a container waits for a daemon that was not there.
const attachRetry = time.Second

// A follower attaches to each running container with a label. If the daemon that has a container's network ends,
// the follower attaches to the container again.
type follower struct {
	*attachOptions
	engine         string // its socket
	stdout, stderr io.Writer
	key, value     string
	any            bool // value does not count

	mu   sync.Mutex // guards what follows, and what is printed
	held map[*policy.Container]context.CancelFunc
	work sync.WaitGroup
}

const followExample = "egressd attach --follow --label egressd=web"

func (o *attachOptions) checkFollow(args []string) error {
	key, _, _ := strings.Cut(o.label, "=")
	switch {
	case len(args) > 0:
		return hint.Misused(errors.New("--follow finds containers by --label, and takes no container"), followExample)
	case !o.follow:
		return hint.Misused(errors.New("--label is for --follow"), followExample)
	case key == "":
		return hint.Misused(errors.New("--follow needs the label of the containers"), followExample)
	case o.wait:
		return hint.Misused(errors.New("--follow goes on until a signal, and --wait until one process ends: give one of them"), followExample)
	}
	return nil
}

func (o *attachOptions) runFollow(cmd *cobra.Command) error {
	if err := o.check("--follow --label " + shell.Word(o.label)); err != nil {
		return err
	}
	return o.followContainers(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// followContainers returns when ctx is done.
func (o *attachOptions) followContainers(ctx context.Context, stdout, stderr io.Writer) error {
	socket, err := o.engineSocket("--follow --label egressd=web")
	if err != nil {
		return err
	}
	f := &follower{attachOptions: o, engine: socket, stdout: stdout, stderr: stderr, held: map[*policy.Container]context.CancelFunc{}}
	var given bool
	f.key, f.value, given = strings.Cut(o.label, "=")
	f.any = !given
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	all := containers.New(socket)
	all.Started = func(k *sandbox.Container) { f.started(ctx, k) }
	all.Ended = f.ended
	all.Health = func(err error) {
		if err != nil {
			f.say("error: the engine cannot be asked: %v\negressd: hint: start Docker; it is asked again by itself", err)
		} else {
			f.say("following containers with the label %s", o.label)
		}
	}
	all.Watch(ctx)
	f.work.Wait()
	return nil
}

func (f *follower) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(f.stderr, "egressd: "+format+"\n", args...)
}

func (f *follower) started(ctx context.Context, k *sandbox.Container) {
	value, has := k.Labels[f.key]
	if !has || !f.any && value != f.value {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[k.Container] = stop
	f.work.Go(func() { f.hold(ctx, k) })
}

func (f *follower) ended(c *policy.Container) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.held[c]; stop != nil {
		stop()
		delete(f.held, c)
	}
}

// hold keeps a container's network attached until the container ends or ctx is done.
func (f *follower) hold(ctx context.Context, k *sandbox.Container) {
	name, last := printable.Text(k.Name), ""
	for ctx.Err() == nil {
		handed, done, err := f.attach(k)
		var open *attach.OpenNetworkError
		var refused *refusedContainer
		switch {
		case err == nil:
			last = ""
			f.tell(name, k, done)
			untilGone(ctx, handed)
		case ctx.Err() != nil || errors.Is(err, containers.ErrGone):
			return
		case errors.As(err, &open) || errors.Is(err, attach.ErrHostNetwork):
			f.say("error: %s is not held: %v\negressd: hint: docker run --network none", name, err)
			return
		case errors.As(err, &refused):
			f.say("error: %s is not held: %v\negressd: hint: start it without that", name, err)
			return
		case err.Error() != last:
			last = err.Error()
			f.say("error: %s: %v; it is tried again", name, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(attachRetry):
		}
	}
}

func (f *follower) attach(k *sandbox.Container) (*attach.Attached, *attachedView, error) {
	if err := f.judge(f.engine, k.ID, k.PID); err != nil {
		return nil, nil, err
	}
	process, err := containers.OpenFirst(k)
	if err != nil {
		return nil, nil, err
	}
	defer process.Close()
	network, err := attach.PrepareProcess(process, ownAddresses())
	if err != nil {
		return nil, nil, err
	}
	network.Request.Trusts = attach.CanTrust(process, certs.SystemPaths())
	handed, err := handIn(network, socketPath(f.socket), f.name)
	if err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	trust(process, handed.Answer.CA, f.stderr)
	f.mu.Unlock()
	return handed, &attachedView{process.PID, handed.Answer.Sandbox, string(network.Request.Mode), handed.Answer.Policy, k.ID}, nil
}

func (f *follower) tell(name string, k *sandbox.Container, done *attachedView) {
	if !f.json {
		f.say("%s (%.12s) is sandbox %s · %s · policy %.8s…", name, k.ID, printable.Text(done.Sandbox), done.Mode, strings.TrimPrefix(done.Policy, "sha256:"))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = cli.PrintJSON(f.stdout, done) // who reads no more does not keep containers from being held
}

// untilGone waits until the daemon has let go of a network, or ctx is done.
func untilGone(ctx context.Context, handed *attach.Attached) {
	defer handed.Close()
	stop, closing, err := os.Pipe()
	if err != nil {
		<-ctx.Done()
		return
	}
	defer stop.Close()
	over := context.AfterFunc(ctx, func() { closing.Close() })
	handed.Lost(stop)
	if over() {
		closing.Close()
	}
}
