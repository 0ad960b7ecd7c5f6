package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/logs/source"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CommandNames returns the names of the documented commands below cmd, sorted.
func CommandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if Documented(c) {
			names = append(names, c.Name())
		}
	}
	slices.Sort(names)
	return names
}

// unlisted is the annotation of [Unlist].
const unlisted = "unlisted"

// Unlist takes a command out of the lists of help and completion. The reference and the manual pages keep it.
func Unlist(cmd *cobra.Command) *cobra.Command {
	cmd.Hidden, cmd.Annotations = true, map[string]string{unlisted: "true"}
	return cmd
}

// Documented reports whether the reference and the manual pages have a command.
func Documented(cmd *cobra.Command) bool {
	return !cmd.Hidden || cmd.Annotations[unlisted] != ""
}

// RunGroup runs a command that only has subcommands: it prints the help, or an error for an unknown subcommand.
func RunGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	names := CommandNames(cmd)
	near := spelling.Nearest(args[0], names)
	if near == "" {
		near = names[0]
	}
	return hint.Misused(fmt.Errorf("there is no command %q; there is %s", cmd.Name()+" "+args[0], strings.Join(names, ", ")), cmd.CommandPath()+" "+near)
}

// flagsOf are flags by the names that other tools have for them.
var flagsOf = map[string]string{
	"policy": "config", "policy-file": "config", "rules": "config", "settings": "config",
	"profile": "preset", "presets": "preset", "domain": "allow", "domains": "allow", "host": "allow", "allow-host": "allow", "allow-domain": "allow",
	"allowed-domains": "allow", "allow-net": "allow", "allowlist": "allow", "port": "publish", "ports": "publish", "log-dir": "dir", "folder": "dir",
	"format": "json", "output": "json", "limit": "top", "tail": "follow", "silent": "quiet", "mount": "share", "volume": "share", "method": "request",
}

// FlagError is what a flag that is none comes to: what to type is the flag that was meant, or the help of its command.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		given := unknown.GetSpecifiedName()
		near := spelling.Nearest(given, names)
		if meant := flagsOf[given]; slices.Contains(names, meant) {
			near = meant
		}
		if near != "" && len(given) > 2 {
			return hint.Misused(err, fmt.Sprintf("did you mean %s --%s? All flags: %s --help", cmd.CommandPath(), near, cmd.CommandPath()))
		}
	}
	return hint.Misused(err, cmd.CommandPath()+" --help")
}

// NoArguments refuses arguments with the line to type instead.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s takes no argument, and was given %q", cmd.CommandPath(), args[0])
	if near := spelling.Nearest(args[0], CommandNames(cmd)); near != "" {
		return hint.Misused(err, "did you mean "+cmd.CommandPath()+" "+near+"?")
	}
	return hint.Misused(err, cmd.CommandPath()+" --help")
}

// Misspelt refuses a first argument that is probably a misspelt subcommand, of a command that also takes free words. A word
// of three letters, or one that is as long as the subcommand and as short as four letters, may be meant as it stands.
// instead is the command line that takes the word as it is.
func Misspelt(cmd *cobra.Command, args []string, instead func(word string) string) error {
	if len(args) == 0 || len(args[0]) < 4 || strings.Trim(strings.ToLower(args[0]), "abcdefghijklmnopqrstuvwxyz") != "" {
		return nil
	}
	word := strings.ToLower(args[0])
	for _, name := range CommandNames(cmd) {
		if far := spelling.Distance(word, name); far > len(word)/4 && (far > 2 || len(word) < 7) || len(word) == 4 && len(name) == 4 {
			continue
		}
		return hint.Misused(fmt.Errorf("there is no command %q", cmd.Name()+" "+args[0]),
			"did you mean "+cmd.CommandPath()+" "+name+"? For the word itself: "+instead(args[0]))
	}
	return nil
}

// ConfigFlag adds --config to a command that reads the policy or the log.
func ConfigFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "config", "", "policy `FILE` (default: the first that exists of $XDG_CONFIG_HOME/egressd/egressd.yaml, ~/.config/egressd/egressd.yaml, /etc/egressd/egressd.yaml)")
}

// AdminUsage is the help of --admin.
const AdminUsage = "`ADDRESS` of the operator's listener, as in listen.admin, whatever the policy file says"

// DaemonFlags adds --config and --admin to a command that asks the running egressd serve.
func DaemonFlags(cmd *cobra.Command, at *client.Place) {
	ConfigFlag(cmd, &at.Config)
	cmd.Flags().StringVar(&at.Admin, "admin", "", AdminUsage)
}

// JSONFlag adds --json to a command.
func JSONFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "json", false, "print JSON, one object a line")
}

// DurationFlag adds a flag for a length of time, as [quantity.ParseDuration] takes it.
func DurationFlag(cmd *cobra.Command, d *time.Duration, name string, usual time.Duration, usage string) {
	*d = usual
	cmd.Flags().Var((*duration)(d), name, usage)
}

// A duration is a length of time as the value of a flag.
type duration time.Duration

func (d *duration) String() string { return quantity.Span(time.Duration(*d)) }
func (d *duration) Type() string   { return "duration" }

func (d *duration) Set(text string) error {
	parsed, err := quantity.ParseDuration(text)
	*d = duration(parsed)
	return err
}

// FilterFlags adds --since and --until to a command that has [LogFlags] and takes [Filters].
func FilterFlags(cmd *cobra.Command, s *source.Source) {
	Filters(cmd, s)
	cmd.Flags().StringVar(&s.Since, "since", "", "only records since `TIME`, such as 1h, 2d, 09:30, yesterday or 2026-11-20; the same as since:TIME")
	cmd.Flags().StringVar(&s.Until, "until", "", "only records before `TIME`; the same as until:TIME")
	_ = cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("until", cobra.NoFileCompletions)
}

// Filters completes the filters of a command that takes those of [source.Source.Ask].
func Filters(cmd *cobra.Command, s *source.Source) {
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { s.Talk = cmd.ErrOrStderr() }
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = CompleteFilters(s)
	}
}

// OneArgument refuses any number of arguments but one.
func OneArgument(what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return hint.Misused(fmt.Errorf("%s takes %s, and was given %d arguments", cmd.CommandPath(), what, len(args)), example)
	}
}

// LogFlags adds --config, --dir and --run to a command that reads the audit log.
func LogFlags(cmd *cobra.Command, s *source.Source) {
	ConfigFlag(cmd, &s.Config)
	RunFlags(cmd, s)
}

// RunFlags adds --dir and --run to a command that has --config already.
func RunFlags(cmd *cobra.Command, s *source.Source) {
	cmd.Flags().StringVar(&s.Dir, "dir", "", "`DIR` of the audit log (default: the policy's audit.dir)")
	cmd.Flags().StringVar(&s.Run, "run", "", "read the log of a run: last, a run `ID`, or all")
	cmd.MarkFlagsMutuallyExclusive("dir", "run")
	_ = cmd.RegisterFlagCompletionFunc("run", completeRuns(s))
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { s.Talk = cmd.ErrOrStderr() }
}

// Inherit lets the commands below cmd take the named flags of cmd, too.
func Inherit(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		cmd.PersistentFlags().AddFlag(cmd.Flags().Lookup(name))
	}
}

// Refuse returns an error if one of the named flags was given, which cmd inherits and has no use for.
func Refuse(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return hint.Misused(fmt.Errorf("%s has no use for --%s", cmd.CommandPath(), name), cmd.CommandPath()+" --help")
		}
	}
	return nil
}
