package policycmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/rego/bundle"
	"github.com/spf13/cobra"
)

func newPolicyStatusCommand() *cobra.Command {
	var o policyStatusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which policy is in force, and how fresh its bundles are",
		Long: `Status says which policy is in force and since when, whether egressd runs, which
change of the policy was rejected last, how many decisions failed under the one
in force (policy-error), and of each bundle its revision, when it was issued,
fetched and last heard of, and whether it is stale. It reads the audit log and
what egressd keeps on disk, needs no daemon, and asks no server.

Exit codes: 0 all is well; 1 a bundle is stale or could not be fetched or read,
or the last reload was rejected; 2 it cannot be told.`,
		Example: `  egressd policy status
  egressd policy status --json --config /etc/egressd/egressd.yaml`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout()) },
	}
	logsource.AddFlags(cmd, &o.Source)
	cli.JsonFlag(cmd, &o.json)
	return cmd
}

type policyStatusOptions struct {
	logsource.Source
	json bool
}

// A Status is what is known of the policy and of what it is made of.
type Status struct {
	OK       bool              `json:"ok"`
	Running  bool              `json:"running"`
	Policy   string            `json:"policy,omitempty"` // digest of the one in force, or that was when egressd ended
	Since    time.Time         `json:"since,omitzero"`
	Source   string            `json:"source,omitempty"` // how it came into force
	Rejected *config.Rejection `json:"rejected,omitempty"`
	Failed   *failures         `json:"failed,omitempty"`
	File     string            `json:"file_error,omitempty"` // why the policy file cannot be read now
	Bundles  []bundleStatus    `json:"bundles"`
}

// failures are the decisions that the policy in force could not make: it denied
// with policy-error.
type failures struct {
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
	Where string    `json:"where"` // what was asked for, the last time
}

type bundleStatus struct {
	Entry    string    `json:"entry"` // in the policy file
	Source   string    `json:"source"`
	Shadow   bool      `json:"shadow,omitempty"` // it decides nothing
	Revision string    `json:"revision,omitempty"`
	Signed   bool      `json:"signed"`
	Issued   time.Time `json:"issued,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`
	Fetched  time.Time `json:"fetched,omitzero"`
	Heard    time.Time `json:"heard,omitzero"`
	Tried    time.Time `json:"tried,omitzero"`
	Stale    string    `json:"stale,omitempty"` // why it does not count
	Error    string    `json:"error,omitempty"` // of the last attempt
}

func (o *policyStatusOptions) run(stdout io.Writer) error {
	s := Status{Bundles: []bundleStatus{}}
	dir := o.Dir
	cfg, err := config.Load(o.Config)
	switch {
	case err == nil:
		sources, at := cfg.Sources()
		for i := range sources {
			if one := &sources[i]; one.Bundle != "" {
				s.Bundles = append(s.Bundles, statusOfBundle(cfg, at[i], one))
			}
		}
	case dir == "":
		return cli.Unsure(err)
	default:
		s.File = err.Error()
	}
	if dir == "" {
		if dir, err = cfg.AuditDir(); err != nil {
			return cli.Unsure(err)
		}
	}
	if err := s.readLog(dir); err != nil {
		return cli.Unsure(err)
	}
	s.OK = s.good()
	if err := s.print(stdout, o.json, time.Now()); err != nil || s.OK {
		return err
	}
	return cli.Status(cli.ExitFailed)
}

func (s *Status) good() bool {
	for _, b := range s.Bundles {
		if b.Stale != "" || b.Error != "" {
			return false
		}
	}
	return s.File == "" && (s.Rejected == nil || !s.Rejected.Current)
}

// readLog finds out from the records about policies what is in force. There may be
// no log yet.
func (s *Status) readLog(dir string) (err error) {
	if s.Running, err = audit.Writing(dir); err != nil {
		return hint.Failed(err, "egressd policy status --dir DIR, as a user who may read it")
	}
	lines, err := audit.NewReader(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return hint.Failed(err, "egressd policy status --dir DIR, as a user who may read it")
	}
	defer lines.Close()
	for {
		text, err := lines.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return hint.Failed(err, "keep a copy of "+dir+" as it is")
		case !bytes.Contains(text, []byte(`"kind":"policy"`)) && !bytes.Contains(text, []byte(`"class":"policy-error"`)):
			continue
		}
		r, err := logs.Decode(text)
		if err != nil {
			return hint.Failed(err, "keep a copy of "+dir+" as it is")
		}
		s.follow(r)
	}
}

// follow takes in one record.
func (s *Status) follow(r *egress.Record) {
	switch {
	case r.Decision == nil:
		return
	case r.Kind != egress.KindPolicy:
		s.count(r)
		return
	}
	done, _, _ := strings.Cut(r.Note, " ")
	switch done {
	case "loaded", "reloaded", "renewed", "grants:":
		s.Policy, s.Since, s.Source, s.Failed = r.Decision.Policy, r.Time, r.Note, nil
		if s.Rejected != nil && done != "renewed" && done != "grants:" { // which do not read the file
			s.Rejected.Current = false
		}
	case "rejected":
		_, reason, _ := strings.Cut(r.Note, " ")
		s.Rejected = &config.Rejection{Time: r.Time, Reason: reason, Current: true}
	}
}

// count takes in the record of a decision.
func (s *Status) count(r *egress.Record) {
	if r.Decision.Class != string(policy.PolicyError) || r.Decision.Policy != s.Policy {
		return
	}
	if s.Failed == nil {
		s.Failed = new(failures)
	}
	s.Failed.Count += int(r.Times())
	s.Failed.Last = r.Time
	if r.Dst != nil {
		s.Failed.Where = r.Dst.Host
	}
}

// statusOfBundle looks at one bundle as it is on disk.
func statusOfBundle(c *config.Config, at string, s *policy.RegoSource) bundleStatus {
	if s.Fetched() {
		return statusOfFetched(c, at, s)
	}
	v := bundleStatus{Entry: at, Source: c.Relative(s.Bundle), Shadow: s.Shadow}
	b, err := c.LocalBundle(s, nil)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.describe(b)
	return v
}

func (v *bundleStatus) describe(b *rego.Bundle) {
	v.Revision, v.Signed, v.Issued, v.Expires = b.Revision, b.Signed, b.Issued, b.Expires
}

func statusOfFetched(c *config.Config, at string, s *policy.RegoSource) bundleStatus {
	v := bundleStatus{Entry: at, Source: (&bundle.Source{URL: s.Bundle}).Label(), Shadow: s.Shadow}
	f, err := c.Feed(s)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	known := f.State()
	v.Fetched, v.Heard, v.Tried, v.Error, v.Stale = known.Fetched, known.Heard, known.Tried, known.Error, f.Stale()
	b, err := f.Good()
	switch {
	case err == nil:
		v.describe(b)
	case v.Error == "":
		v.Error = err.Error()
	}
	return v
}

func (s *Status) print(w io.Writer, asJSON bool, now time.Time) error {
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
	for i := range s.Bundles {
		s.Bundles[i].write(&b, colours, now)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (v *bundleStatus) write(b *strings.Builder, colours cli.Palette, now time.Time) {
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
