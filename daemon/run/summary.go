package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

const (
	deniedLines = 5 // denied destinations that the summary lists
	manyNames   = 4 // denied names below one registered domain that share a line
)

// summarize prints what a run came to: its traffic, each denied destination with the reason and the
// command that allows it, the operator's message about denials, and where to read the rest.
func summarize(w io.Writer, c egress.Counts, took time.Duration, message, log string) {
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
		fmt.Fprintf(w, "egressd: allowed, but failed: %s (%s: %s)\n", printable.Text((&policy.Destination{Host: f.Host, Port: f.Port}).String()), f.Class, printable.Text(f.Reason))
		if f.Class == policy.NetworkDNS && isIgnoredHost(dns.HostsPath, f.Host) {
			hint.Sayf(w, "/etc/hosts has it, and does not count for a user who may write that file: run it as an ordinary user, or have a name server know the name")
		}
	}
	places := deniedPlaces(c.Denied)
	for i := range places[:min(len(places), deniedLines)] {
		places[i].print(w)
	}
	if all > 0 {
		sayMessage(w, message)
	}
	if c.Learned > 0 {
		hint.Sayf(w, "propose rules for these hosts: egressd policy suggest --run last")
	}
	if more := len(places) - deniedLines; more > 0 {
		hint.Sayf(w, "%d more: %s", more, log)
	} else if all > 0 {
		hint.Sayf(w, "details: %s", log)
	}
}

// denyMessage is what the operator of the policy says about denials, or "".
func (r *runner) denyMessage() string {
	if r.beside != nil {
		return r.beside.handed.Answer.DenyMessage
	}
	m := r.Gate.DenyMessages()
	return cmp.Or(m.User, m.Organisation)
}

func sayMessage(w io.Writer, message string) {
	if message != "" {
		fmt.Fprintf(w, "egressd: the operator says: %s\n", printable.Text(message))
	}
}

// A Result is what a run came to, as Options.Summary has it.
type Result struct {
	Run      string  `json:"run"` // id
	Sandbox  string  `json:"sandbox"`
	Policy   string  `json:"policy"` // digest
	Log      string  `json:"log"`    // folder
	ExitCode int     `json:"exit_code"`
	Seconds  float64 `json:"seconds"`
	Requests int     `json:"requests"`
	Hosts    int     `json:"hosts"`
	Up       int64   `json:"up"` // bytes
	Down     int64   `json:"down"`
	Learned  int     `json:"learned"`
	Failed   int     `json:"failed"`
	Denials  int     `json:"denials"`
	Names    int     `json:"names"` // allowed names that no connection followed

	Denied []egress.DeniedHost `json:"denied"`
}

// openSummary makes the file of Options.Summary before the program starts: later the program could have put a link in its place.
func (r *runner) openSummary() (err error) {
	if r.options.Summary == "" {
		return nil
	}
	if err := refuseLinks("--summary", r.options.Summary); err != nil {
		return err
	}
	if r.summary, err = os.OpenFile(r.options.Summary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600); err != nil {
		return hint.Misused(fmt.Errorf("--summary: %w", err), "--summary FILE, in a folder that you may write")
	}
	return nil
}

// writeSummary writes what the run came to.
func (r *runner) writeSummary(code int, c egress.Counts, took time.Duration) {
	if r.summary == nil {
		return
	}
	all := Result{
		Run: r.entry.ID, Sandbox: r.name, Policy: r.digest, Log: r.entry.Log, ExitCode: r.exitCode(code, c), Seconds: took.Seconds(),
		Requests: c.Requests, Hosts: c.Hosts, Up: c.Up, Down: c.Down, Learned: c.Learned, Failed: c.Failed, Denials: r.entry.Denied, Names: c.Names,
		Denied: append([]egress.DeniedHost{}, c.Denied...), // "[]" and not null
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = r.summary.Truncate(0) // the program could write there
	}
	if err == nil {
		_, err = r.summary.WriteAt(append(text, '\n'), 0)
	}
	if err := errors.Join(err, r.summary.Close()); err != nil {
		r.Complain(fmt.Errorf("--summary: %w", err))
	}
}

// offered returns the commands that a person may be offered at the end of a run: those of the summary, for requests that
// only lack a rule, so nothing that a rule, the baseline or a canary denies.
func offered(c egress.Counts) (fixes []string) {
	places := deniedPlaces(c.Denied)
	for _, d := range places[:min(len(places), deniedLines)] {
		lacksRule := d.Class == policy.DefaultDeny || d.Class == policy.MethodDenied || d.Class == policy.PathDenied || d.Class == policy.HeaderDenied || d.Class == policy.QueryDenied || d.Class == policy.GitDenied || d.Class == policy.BodyDenied || d.Class == policy.MCPDenied || d.Class == policy.ModelDenied || d.Class == policy.GraphQLDenied
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

// print writes the sentences that README, the tutorials and e2e/run show; change them together.
func (d *deniedPlace) print(w io.Writer) {
	fmt.Fprintf(w, "egressd: denied: %s\n", d.text())
	if d.Fix != "" {
		hint.Sayf(w, "to allow it: %s", d.Fix)
		if presets := file.PresetsWith(d.Host, d.Port); len(presets) > 0 {
			hint.Sayf(w, "it is in a preset: %s", strings.Join(presets, ", "))
		}
	}
}
