package policy

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newShow(f *policyFlags) *cobra.Command {
	var o showOptions
	cmd := &cobra.Command{
		Use:   "show [presets|credentials|PRESET [PARAMETER=VALUE…]]",
		Short: "Show the policy in force and its bundles, the presets, or one preset",
		Long: `Without an argument, show says which policy is in force and since when, whether egressd
serve runs, the last rejected change, the number of failed decisions (policy-error), and
for each bundle its revision and age. It reads the audit log and egressd's own files,
needs no daemon, and asks no server.

"presets" lists the rule sets that ship with egressd, for the key presets and for
egressd run --preset. CHECKED is the version of the program with which somebody tried
the preset, and the day. READ is the last day on which somebody read a public page that
names its hosts. A dash says that there is none. With the name of a PRESET, show prints
its rules as they count, with the addresses of the pages, and the hosts that none names.
Behind it, PARAMETER=VALUE,VALUE gives it parameters: show prints the lines that it then
stands for.

"credentials" prints the kinds that the key credentials knows: for each the hosts and
places of its secret, the variables that a sandbox gets, and the endpoints that are denied.

Exit codes: 0 all is well; 1 a bundle is stale or could not be fetched, or the
last reload was rejected; 2 it cannot tell, or there is no such preset.`,
		Example: `  egressd policy show
  egressd policy show --json --config /etc/egressd/egressd.yaml
  egressd policy show presets
  egressd policy show credentials
  egressd policy show claude-code
  egressd policy show github repos=acme/app 'push=refs/heads/agent/*' pulls=write`,
		ValidArgsFunction: cobra.FixedCompletions(append([]string{listOfPresets, listOfCredentials}, file.Presets()...), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			switch {
			case len(args) == 0:
				return o.status(cmd.OutOrStdout())
			case len(args) > 1 && strings.Contains(args[1], "="):
				return printPresetWith(cmd.OutOrStdout(), args[0], args[1:])
			case len(args) > 1:
				return hint.Misused(fmt.Errorf("egressd policy show takes one preset, and was given %q too", args[1]), "egressd policy show "+shell.Word(args[0]))
			case args[0] == listOfPresets:
				return listPresets(cmd.OutOrStdout(), o.json)
			case args[0] == listOfCredentials:
				return listCredentials(cmd.OutOrStdout(), o.json)
			}
			return printPreset(cmd.OutOrStdout(), args[0], o.json)
		},
	}
	cmd.Flags().StringVar(&o.dir, "dir", "", "`DIR` of the audit log (default: the policy's audit.dir)")
	return cmd
}

// listOfPresets is the word for the list of presets.
const listOfPresets = "presets"

type showOptions struct {
	config, dir string
	json        bool
}

// status prints which policy is in force.
func (o *showOptions) status(stdout io.Writer) error {
	s, err := policystatus.Read(o.config, o.dir)
	if err != nil {
		return hint.Unsure(err)
	}
	if err := (*status)(s).print(stdout, o.json, time.Now()); err != nil || s.OK {
		return err
	}
	return cli.Status(cli.ExitFailed)
}

// A status is printed for people.
type status policystatus.Status

func (s *status) print(w io.Writer, asJSON bool, now time.Time) error {
	if asJSON {
		return cli.PrintJSON(w, s)
	}
	var b strings.Builder
	colours := cli.PaletteFor(w)
	switch {
	case s.Policy == "":
		b.WriteString("· no policy has been in force yet\n")
	case s.Running:
		fmt.Fprintf(&b, "%s policy %s in force since %s\n", colours.Mark("allow"), s.Policy, ago(s.Since, now))
	default:
		fmt.Fprintf(&b, "· egressd does not run; policy %s was in force last, from %s\n", s.Policy, ago(s.Since, now))
	}
	if s.Source != "" {
		fmt.Fprintf(&b, "    %s\n", printable.Text(s.Source))
	}
	if f := s.Failed; f != nil {
		fmt.Fprintf(&b, "%s %d decisions failed under it and denied, the last %s, for %s\n", colours.Mark("deny"), f.Count, ago(f.Last, now), printable.Text(f.Where))
	}
	if s.Other != "" {
		fmt.Fprintf(&b, "%s that is %s, with which egressd serve runs; the file that --config names is not in force\n", colours.Mark("deny"), printable.Text(s.Other))
	}
	if s.File != "" {
		fmt.Fprintf(&b, "%s the policy file cannot be read: %s\n", colours.Mark("deny"), printable.Text(s.File))
	}
	if r := s.Rejected; r != nil {
		mark, what := colours.Mark("deny"), "the last reload was rejected"
		if !r.Current {
			mark, what = "·", "a reload was rejected before"
		}
		fmt.Fprintf(&b, "%s %s, %s:\n    %s\n", mark, what, ago(r.Time, now), printable.Text(r.Reason))
	}
	for _, o := range s.Observing {
		fmt.Fprintf(&b, "%s the policy file observes %s: everything public passes that no rule is about\n", colours.Mark("ask"), printable.Text(o.Text()))
	}
	for i := range s.Bundles {
		writeBundle(&b, &s.Bundles[i], colours, now)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeBundle(b *strings.Builder, v *policystatus.Bundle, colours cli.Palette, now time.Time) {
	mark := colours.Mark("allow")
	if v.Stale != "" || v.Error != "" {
		mark = colours.Mark("deny")
	}
	fmt.Fprintf(b, "%s %s bundle %s%s\n", mark, v.Entry, printable.Text(v.Source), map[bool]string{true: ", in shadow"}[v.Shadow])
	if v.Signed || v.Revision != "" {
		fmt.Fprintf(b, "    revision %q%s\n", v.Revision, map[bool]string{false: ", not signed"}[v.Signed])
	}
	for _, at := range []struct {
		what string
		time time.Time
	}{{"issued", v.Issued}, {"expires", v.Expires}, {"fetched", v.Fetched}, {"heard", v.Heard}, {"tried", v.Tried}} {
		if !at.time.IsZero() {
			fmt.Fprintf(b, "    %-8s %s\n", at.what, ago(at.time, now))
		}
	}
	if v.Stale != "" {
		fmt.Fprintf(b, "    stale    %s%s\n", printable.Text(v.Stale), map[bool]string{false: "; everything is denied"}[v.Shadow])
	}
	if v.Error != "" {
		fmt.Fprintf(b, "    error    %s\n", printable.Text(v.Error))
	}
}

// ago writes a time, and how far away it is.
func ago(t, now time.Time) string {
	text := t.Local().Format("2006-01-02 15:04:05")
	switch away := now.Sub(t).Round(time.Second); {
	case away < 0:
		return fmt.Sprintf("%s (in %s)", text, -away)
	default:
		return fmt.Sprintf("%s (%s ago)", text, away)
	}
}
