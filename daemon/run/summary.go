package run

import (
	"fmt"
	"io"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
)

const (
	deniedLines = 5 // denied destinations that the summary lists
	manyNames   = 4 // denied names below one registered domain that share a line
)

// summarize prints what a run came to: its traffic, each denied destination with the reason and the
// command that allows it, and where to read the rest.
func summarize(w io.Writer, c egress.Counts, took time.Duration, log string) {
	text := fmt.Sprintf("%s to %s in %s, %s down, %s up", quantity.Plural(c.Requests, "request"), quantity.Plural(c.Hosts, "host"), quantity.Duration(took), quantity.Bytes(c.Down), quantity.Bytes(c.Up))
	if c.Learned > 0 {
		text += fmt.Sprintf("; %d learned", c.Learned)
	}
	if c.Failed > 0 {
		text += fmt.Sprintf("; %d failed", c.Failed)
	}
	all := 0
	for i := range c.Denied {
		all += c.Denied[i].Times
	}
	if all > 0 {
		text += fmt.Sprintf("; %d denied", all)
	}
	fmt.Fprintf(w, "egressd: %s\n", text)
	if f := c.LastFailure; f != nil {
		fmt.Fprintf(w, "egressd: allowed, but failed: %s (%s: %s)\n", printable.Text((&policy.Destination{Host: f.Host, Port: f.Port}).String()), f.Class, f.Reason)
	}
	places := deniedPlaces(c.Denied)
	for i := range places[:min(len(places), deniedLines)] {
		places[i].print(w)
	}
	if c.Learned > 0 {
		fmt.Fprintln(w, "egressd: hint: propose rules for these hosts: egressd suggest --run last")
	}
	if more := len(places) - deniedLines; more > 0 {
		fmt.Fprintf(w, "egressd: hint: %d more: %s\n", more, log)
	} else if all > 0 {
		fmt.Fprintf(w, "egressd: hint: details: %s\n", log)
	}
}

// offered returns the commands that a person may be offered at the end of a run: those of the summary, for requests that
// only lack a rule, so nothing that a rule, the baseline or a canary denies.
func offered(c egress.Counts) (fixes []string) {
	places := deniedPlaces(c.Denied)
	for _, d := range places[:min(len(places), deniedLines)] {
		lacksRule := d.Class == policy.DefaultDeny || d.Class == policy.MethodDenied || d.Class == policy.PathDenied
		if lacksRule && d.Fix != "" {
			fixes = append(fixes, d.Fix)
		}
	}
	return fixes
}

// A deniedPlace is one line of the summary: a destination, or many names below one registered domain.
type deniedPlace struct {
	egress.DeniedHost
	names int // that were denied below the domain; 0 for a single destination
}

// deniedPlaces puts names below one registered domain together if they are many.
func deniedPlaces(denied []egress.DeniedHost) (all []deniedPlace) {
	below := map[string]map[string]bool{} // the names below a domain
	for i := range denied {
		domain := policy.Registrable(denied[i].Host)
		if below[domain] == nil {
			below[domain] = map[string]bool{}
		}
		below[domain][denied[i].Host] = true
	}
	at := map[string]int{}
	for _, d := range denied {
		domain := policy.Registrable(d.Host)
		if domain == "" || len(below[domain]) < manyNames {
			all = append(all, deniedPlace{DeniedHost: d})
			continue
		}
		if i, known := at[domain]; known {
			all[i].Times += d.Times
			continue
		}
		at[domain] = len(all)
		d.Host, d.Port, d.Fix = domain, 0, ""
		all = append(all, deniedPlace{d, len(below[domain])})
	}
	return all
}

// text is the place, how often it was denied, and why.
func (d *deniedPlace) text() string {
	text := printable.Text(d.Host)
	switch {
	case d.names > 0:
		text += ", " + quantity.Plural(d.names, "name")
	case d.Port != 0:
		text = printable.Text((&policy.Destination{Host: d.Host, Port: d.Port}).String())
	}
	if d.Times > 1 {
		text += fmt.Sprintf(" ×%d", d.Times)
	}
	why := ""
	switch {
	case d.names > 0, d.Class != "" && d.Reason == "":
		why = fmt.Sprintf(" (%s)", d.Class)
	case d.Class != "":
		why = fmt.Sprintf(" (%s: %s)", d.Class, printable.Text(d.Reason))
	}
	return text + why
}

func (d *deniedPlace) print(w io.Writer) {
	fmt.Fprintf(w, "egressd: denied: %s\n", d.text())
	if d.Fix != "" {
		fmt.Fprintf(w, "egressd: hint: to allow it: %s\n", printable.Text(d.Fix))
	}
}
