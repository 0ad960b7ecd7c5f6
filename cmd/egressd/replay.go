package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
	"github.com/spf13/cobra"
)

func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay --policy FILE [FILTER…]",
		Short: "Decide recorded traffic again under another policy, and show what differs",
		Long: `Replay takes the decisions of the audit log, asks another policy about each of
them, and prints those that would have come out otherwise. Nothing is sent and
nothing is resolved: a name is judged with the addresses that it had then.

What was never asked cannot be replayed: a program that is refused something else
may go on in another way. A request inside a tunnel is judged with its method and
path; query, headers and what a sandbox had used by then are not in the log, so a
policy that looks at those may decide otherwise. Questions for names, and what could
not even be put to a policy, are left out. A filter is that of egressd log.

It exits with 0 where nothing differs, with 1 where something does, and with 2
where that cannot be told.`,
		Example: `  egressd replay --policy new.yaml since:24h
  egressd replay --policy new.yaml --run last --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: o.CompleteFilters,
		RunE: func(cmd *cobra.Command, words []string) error {
			err := o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
			var answer cli.Status
			if err == nil || errors.As(err, &answer) {
				return err
			}
			return hint.Unsure(err)
		},
	}
	logsource.AddFlags(cmd, &o.Source)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.policy, "policy", "", "policy `FILE` to decide by")
	return cmd
}

type replayOptions struct {
	logsource.Source
	policy string
	json   bool
}

func (o *replayOptions) run(ctx context.Context, stdout, stderr io.Writer, words []string) error {
	if o.policy == "" {
		return hint.Misused(errors.New("replay needs the policy to decide by"), "egressd replay --policy FILE")
	}
	cfg, err := config.Load(o.policy)
	if err != nil {
		return err
	}
	p, err := cfg.Compile()
	if err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	if ctx == nil {
		ctx = context.Background()
	}
	r := replay{policy: p, sandboxes: sandboxesByName(cfg), differing: map[difference]*differences{}}
	if err := log.Decisions(f, func(record *egress.Record) { r.add(ctx, record) }); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(r.print(out, o.json), out.Flush()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "egressd: %s decided again by %s, %d otherwise\n", quantity.Plural(int(r.decided), "request"), cfg.Path, r.changed)
	if r.skipped > 0 {
		fmt.Fprintf(stderr, "egressd: warning: %s could not be put to a policy then, or cannot be now\n", quantity.Plural(int(r.skipped), "request"))
	}
	if r.changed > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}

// sandboxesByName are the sandboxes that the file lists.
func sandboxesByName(c *config.Config) map[string]policy.Sandbox {
	all := map[string]policy.Sandbox{}
	for i := range c.File.Sandboxes {
		all[c.File.Sandboxes[i].Name] = config.EntryOf(&c.File.Sandboxes[i]).Sandbox()
	}
	return all
}

// A replay decides records again.
type replay struct {
	policy    *policy.Policy
	sandboxes map[string]policy.Sandbox
	decided   int64
	changed   int64
	skipped   int64
	differing map[difference]*differences
}

// A difference is what the decisions of one line have in common.
type difference struct {
	Destination string `json:"destination"`
	What        string `json:"what"`
	Sandbox     string `json:"sandbox,omitempty"`
	Was         string `json:"was"`
	WasRule     string `json:"was_rule"`
	Now         string `json:"now"`
	NowRule     string `json:"now_rule"`
	NowClass    string `json:"now_class,omitempty"`
}

type differences struct {
	difference
	Count int64  `json:"count"`
	Flow  string `json:"flow"` // of the last
}

// add decides one record again.
func (r *replay) add(ctx context.Context, record *egress.Record) {
	if record.Decision == nil || record.Kind == egress.KindDNS {
		return
	}
	request, ok := r.request(record)
	if !ok {
		r.skipped++
		return
	}
	d := r.policy.Decide(ctx, &request)
	r.decided++
	if now := d.Verdict.Action(); now != record.Decision.Action {
		r.changed++
		r.note(difference{
			Destination: logs.Destination(record), What: logs.What(record), Sandbox: record.Sandbox,
			Was: record.Decision.Action, WasRule: record.Decision.Rule, Now: now, NowRule: d.Rule, NowClass: string(d.Class),
		}, record.Flow)
	}
}

func (r *replay) note(d difference, flow string) {
	known := r.differing[d]
	if known == nil {
		if len(r.differing) >= logs.MaxGroups {
			d = difference{Destination: logs.Beyond, Was: d.Was, Now: d.Now}
			known = r.differing[d]
		}
		if known == nil {
			for _, text := range []*string{&d.Sandbox, &d.Was, &d.WasRule} { // of a record that is lent
				*text = strings.Clone(*text)
			}
			known = &differences{difference: d}
			r.differing[d] = known
		}
	}
	known.Count++
	known.Flow = strings.Clone(flow)
}

// replayable are the classes of what a policy decides by what the log holds. Empty
// is that of what was allowed.
var replayable = map[policy.Class]bool{
	"": true, policy.DefaultDeny: true, policy.RuleDeny: true, policy.MethodDenied: true, policy.PathDenied: true,
	policy.AddressDenied: true, policy.ECHRefused: true, policy.PolicyError: true, policy.PolicyNotLoaded: true,
}

// request is what a record was about, as far as it says. Only what was put to a
// policy can be put to another one.
func (r *replay) request(record *egress.Record) (policy.Request, bool) {
	if record.Dst == nil || record.Kind == egress.KindRefused || !replayable[policy.Class(record.Decision.Class)] {
		return policy.Request{}, false
	}
	dst, err := policy.ParseDestination(logs.Destination(record))
	if err != nil {
		return policy.Request{}, false
	}
	for _, text := range record.Dst.Addrs {
		if a, err := netip.ParseAddr(text); err == nil {
			dst.Addrs = append(dst.Addrs, a)
		}
	}
	q := policy.Request{
		Sandbox: r.who(record.Sandbox), Via: policy.Via(record.Via), Destination: dst,
		Usage: new(policy.Usage), Time: record.Time,
	}
	if t := record.TLS; t != nil && (t.SNI != "" || t.Inspected) {
		q.TLS = &policy.ClientHello{ServerName: t.SNI, ALPN: t.ALPN, ECH: t.ECH, JA4: t.JA4, Inspected: t.Inspected}
		q.Protocol = policy.ProtocolTLS
	}
	if h := record.HTTP; h != nil {
		q.HTTP = &policy.HTTPRequest{Method: h.Method, Path: h.Path}
		q.Protocol = policy.ProtocolHTTP
	}
	if p := record.Process; p != nil {
		q.Process = &policy.Process{PID: p.PID, Exe: p.Exe, Argv: p.Argv}
	}
	return q, true
}

// who is the sandbox of that name. Where the policy lists none, everybody is the
// one that it has then.
func (r *replay) who(name string) policy.Sandbox {
	if len(r.sandboxes) == 0 {
		name = sandbox.Default
	}
	if known, ok := r.sandboxes[name]; ok {
		return known
	}
	return policy.Sandbox{Name: name}
}

func (r *replay) print(w io.Writer, asJSON bool) error {
	all := make([]*differences, 0, len(r.differing))
	for _, d := range r.differing {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *differences) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.What, b.What), cmp.Compare(a.NowRule, b.NowRule))
	})
	if asJSON {
		for _, d := range all {
			if err := cli.PrintJSON(w, d); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "COUNT\tDESTINATION\tWHAT\tSANDBOX\tWAS\tWOULD BE\tLAST")
	for _, d := range all {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Count, logsource.Cell(d.Destination), logsource.Cell(d.What), logsource.Cell(d.Sandbox),
			logsource.Cell(d.Was+" by "+d.WasRule), logsource.Cell(d.Now+" by "+d.NowRule), logsource.Cell(d.Flow))
	}
	return table.Flush()
}
