package policy

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
)

// resolved reads the addresses that the name is taken to have.
func (o *checkOptions) resolved(arg string) (addrs []netip.Addr, err error) {
	for _, text := range o.addresses {
		_, addr, err := policy.ParseHost(text)
		if err != nil || !addr.IsValid() {
			return nil, hint.Misused(fmt.Errorf("--address %s is no address", text), "--address 93.184.216.34")
		}
		addrs = append(addrs, addr)
	}
	if asked, err := explain.Parse(arg, o.method); err == nil && len(addrs) > 0 && asked.Destination.Addr.IsValid() {
		return nil, hint.Misused(errors.New("the destination is an address, which resolves to nothing else"), "leave out --address")
	}
	return addrs, nil
}

func printExplanation(w io.Writer, e *explain.Explanation, asJSON bool, colours cli.Palette) error {
	if asJSON {
		return cli.PrintJSON(w, e)
	}
	var b strings.Builder
	writeExplanation(&b, e, colours)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeExplanation(b *strings.Builder, e *explain.Explanation, colours cli.Palette) {
	fmt.Fprintf(b, "%s %s  %s\n", colours.Mark(e.Verdict), colours.Bold(e.Verdict), printable.Text(e.Request))
	cli.Field(b, "sandbox", e.Sandbox)
	cli.Field(b, "rule", printable.Rule(e.Rule, string(e.Layer)))
	for i := range e.Written {
		cli.Field(b, "written", e.Written[i].String())
	}
	cli.Field(b, "class", string(e.Class))
	cli.Field(b, "address is", e.AddressClass)
	cli.Field(b, "reason", e.Reason)
	cli.Field(b, "allowed if", strings.Join(e.AllowedIf, ", or "))
	cli.Field(b, "credential", credentialText(e.Credential))
	cli.Field(b, "policy", e.Policy)
	cli.Field(b, "shadow", shadowText(e.Shadow))
	for _, n := range e.Notes {
		cli.Field(b, "note", n)
	}
	fmt.Fprintln(b, "  opinions")
	for i := range e.Opinions {
		writeOpinion(b, &e.Opinions[i], colours)
	}
	cli.Field(b, "fix", e.Fix)
	cli.Field(b, "change", e.Change)
}

func writeOpinion(b *strings.Builder, v *explain.Opinion, colours cli.Palette) {
	said := "no opinion"
	if v.Verdict != policy.Abstain.String() {
		said = v.Verdict + " by " + v.Rule
	}
	if v.Class != "" {
		said += " (" + string(v.Class) + ")"
	}
	fmt.Fprintf(b, "    %-9s  %s\n", printable.Text(v.Part), printable.Text(said))
	if v.Error != "" {
		fmt.Fprintf(b, "      %s\n", printable.Text(v.Error))
	}
	for i := range v.Lines {
		l := &v.Lines[i]
		about := l.Pattern
		if l.Address != "" {
			about += ", for " + l.Address
		}
		fmt.Fprintf(b, "      %s %s:%d:%d  %s  %s: %s\n", colours.Mark(l.Effect), printable.Text(l.File), l.Line, l.Column, printable.Text(l.Rule), printable.Text(about), l.Stands)
	}
	if len(v.Lines) > 0 {
		return
	}
	for i := range v.Written {
		fmt.Fprintf(b, "      %s\n", printable.Text(v.Written[i].String()))
	}
}
