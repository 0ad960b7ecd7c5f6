package log

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/ui"
	"github.com/spf13/cobra"
)

func newUI() *cobra.Command {
	o := uiOptions{signedSource: signedSource{logFlags: &logFlags{}}}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Look at the log in a browser",
		Long: `Ui serves a page at a port of this machine, prints a link to it, and opens the link
if there is a browser. The page shows what was denied, where it went, how much left
and what looks like an attempt to send data out, while egressd writes the log. It ends
with this command.

If egressd serve answers at its admin listener, the page also shows what people are
asked and answers it, shows the policy in force, and grants for a while. Each change
is recorded like that of a command. With --dir or --run it shows a log alone.

If no egressd serve answers, the page lists all runs of egressd run, with the result of
each, what was denied and what was sent. Its views count them together, or one that you
choose. The list grows while a run goes on, and allow and deny write the policy file.

Where the policy file is known, the view Review proposes rules for what a run --learn
let pass, or for what was denied by default. The view shows the change of the file,
and which recorded requests the changed file would decide otherwise. You can save it.

The link works once, within ten minutes, in one browser. The host name of the link
ends in .localhost, which browsers connect to this machine without DNS. From another
machine: ssh -L 8040:127.0.0.1:8040 HOST egressd ui --port 8040, and open the link.`,
		Example: `  egressd ui
  egressd ui --run all
  egressd ui --run last
  egressd ui --dir ./audit --key egressd/8f0c…+6a1b22c3+AQ…`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.LogFlags(cmd, &o.Source)
	o.keyFlag(cmd)
	cmd.Flags().Uint16Var(&o.port, "port", 0, "serve the page at this `PORT` of 127.0.0.1, such as the one that ssh -L leads to (default: any free port)")
	cmd.Flags().BoolVar(&o.noOpen, "no-open", false, "print the link, and open no browser")
	return cmd
}

type uiOptions struct {
	signedSource
	noOpen bool
	port   uint16
}

func (o *uiOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	all := ui.Options{Dial: o.daemon(ctx, stderr), Selftest: o.selftest()}
	if all.Dial == nil && o.Dir == "" && o.Source.Run == "" && len(o.Runs()) > 0 {
		o.sayDaemonLog(stderr)
		o.Source.Run = source.AllRuns
	}
	log, err := o.Open() // for its errors, before a link is printed
	if err != nil {
		return err
	}
	log.Close()
	if o.Source.Run == source.AllRuns {
		all.Runs = func() ([]source.Run, error) { return o.ListRuns(0) }
	}
	all.Dir, all.Title, all.Flags, all.Allow, all.Config, all.HasPolicy = log.Dir, o.title(log.Dir), o.Flags(), o.AllowFlags(), o.PolicyFile(), o.Dir == "" || o.Config != ""
	all.Port = o.port
	all.Key = func(dir string) (key, ended string, err error) {
		key, ended, _, err = o.find(dir, nil)
		return key, ended, err
	}
	s := ui.New(all)
	l, err := s.Listen()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	fmt.Fprintln(stdout, s.Link())
	fmt.Fprintf(stderr, "egressd: the link opens the log in %s once; Ctrl-C ends the page\n", printable.Text(log.Dir))
	if !o.noOpen {
		defer openBrowser(s.Link())()
	}
	return s.Serve(ctx, l)
}

// daemon returns how to reach the daemon whose log is shown, or nil if the log is another one or nobody answers.
func (o *uiOptions) daemon(ctx context.Context, stderr io.Writer) func() (ui.Daemon, error) {
	if o.Dir != "" || o.Source.Run != "" {
		return nil
	}
	dial := func() (ui.Daemon, error) { return client.Dial(client.Place{Config: o.Config}) }
	d, err := dial()
	if err == nil {
		var ready struct{}
		_, err = d.Send(ctx, http.MethodGet, "/readyz", nil, &ready, http.StatusServiceUnavailable)
	}
	if err != nil {
		fmt.Fprintf(stderr, "egressd: the page shows the log alone: %s\n", printable.Text(err.Error()))
		return nil
	}
	return dial
}

// selftest returns how to run egressd doctor --escapes, or nil if the log may be of another machine. It runs in a
// process of its own, whose memory and descriptors it may limit.
func (o *uiOptions) selftest() func(context.Context) ([]ui.Escape, error) {
	if o.Dir != "" || runtime.GOOS != "linux" {
		return nil
	}
	return func(ctx context.Context) ([]ui.Escape, error) {
		text, err := exec.CommandContext(ctx, "/proc/self/exe", "doctor", "--escapes", "--json").Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == cli.ExitFailed {
			err = nil // an escape worked
		}
		var tried []ui.Escape
		for d := json.NewDecoder(bytes.NewReader(text)); err == nil; {
			var one ui.Escape
			if err = d.Decode(&one); err == nil {
				tried = append(tried, one)
			}
		}
		if err != io.EOF || len(tried) == 0 {
			return nil, hint.Failed(fmt.Errorf("run the self-test: %w", err), "egressd doctor --escapes, which says why")
		}
		return tried, nil
	}
}

// sayDaemonLog names the log of egressd serve, which does not answer, if there is one.
func (o *uiOptions) sayDaemonLog(stderr io.Writer) {
	daemon := source.Source{Config: o.Config, Dir: o.Dir}
	if dir, err := daemon.DaemonLog(); err == nil {
		fmt.Fprintf(stderr, "egressd: the page shows all runs; the log of egressd serve: egressd ui --dir %s\n", printable.Text(shell.Word(dir)))
	}
}

// title names the log for a person.
func (o *uiOptions) title(dir string) string {
	if o.Source.Run == source.AllRuns {
		return "all runs"
	}
	if o.Source.Run != "" {
		return "run " + filepath.Base(dir)
	}
	return dir
}

// openBrowser opens a link in the browser of a desktop, if there is one. The arguments of a process can be read by other
// users, so the browser is given a file that leads to the link. The function that it returns removes the file.
func openBrowser(link string) (done func()) {
	opener, err := exec.LookPath("xdg-open")
	if err != nil || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return func() {}
	}
	f, err := os.CreateTemp(os.Getenv("XDG_RUNTIME_DIR"), "egressd-*.html") // its mode is 0600
	if err != nil {
		return func() {}
	}
	path := f.Name()
	_, err = fmt.Fprintf(f, "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0;url=%s\"><title>egressd</title>\n", link)
	if err = errors.Join(err, f.Close()); err == nil {
		c := exec.Command(opener, path)
		if c.Start() == nil {
			go func() { _ = c.Wait() }() // ends with the opener, which is not ours to stop
		}
	}
	return func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // it is of no use to anybody: the link has been used or has ended
		}
	}
}
