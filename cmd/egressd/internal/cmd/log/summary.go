package log

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
)

// sum prints what the log comes to: totals and the overview, Markdown, or one JSON object.
func (o *logOptions) sum(log *source.RecordReader, f *logs.Filter, stdout io.Writer) error {
	found, err := overviewOf(log, f)
	if err != nil {
		return err
	}
	s := summarised(&overview{Overview: found, flags: o.AllowFlags(), top: o.top})
	out := bufio.NewWriter(stdout)
	switch {
	case o.json:
		err = cli.PrintJSON(out, s)
	case o.markdown:
		err = s.printMarkdown(out)
	default:
		fmt.Fprintf(out, "%s\n", s.sentence())
		err = s.view.print(out, time.Now(), cli.PaletteFor(stdout))
	}
	return errors.Join(err, out.Flush())
}

func checkTop(top int, command string) error {
	if top < 0 {
		return hint.Misused(fmt.Errorf("--top %d is less than nothing", top), command+" --top 0, for all")
	}
	return nil
}

// A logSummary is what a log comes to, for a script.
type logSummary struct {
	First     *time.Time          `json:"first,omitempty"` // when decisions were made
	Last      *time.Time          `json:"last,omitempty"`
	Decisions int64               `json:"decisions"`
	Allowed   int64               `json:"allowed"`
	Denied    int64               `json:"denied"`
	Asked     int64               `json:"asked"`
	Observed  int64               `json:"observed,omitempty"` // of those allowed, what passed only because no rule is about it (mode: observe, run --learn)
	Names     int64               `json:"names"`              // of those allowed, names that no connection followed
	Up        int64               `json:"up"`                 // payload bytes
	Down      int64               `json:"down"`
	Groups    []groupView         `json:"groups"`
	LeftOut   int                 `json:"left_out,omitempty"` // groups that --top leaves out
	Shadow    []*logs.ShadowGroup `json:"shadow,omitempty"`

	view *overview
}

// A groupView is one line of the overview.
type groupView struct {
	Verdict     string    `json:"verdict"`
	Count       int64     `json:"count"`
	Destination string    `json:"destination"`
	What        string    `json:"what"`
	Who         string    `json:"who"`
	Why         string    `json:"why"`
	Last        time.Time `json:"last"`
	Flow        string    `json:"flow,omitempty"` // of the last
	Fix         string    `json:"fix,omitempty"`
	Up          int64     `json:"up"`
	Down        int64     `json:"down"`
	Failed      int64     `json:"failed,omitempty"`
	Distrusted  int64     `json:"distrusted,omitempty"` // by clients that refused our certificate
	Cut         int64     `json:"cut,omitempty"`
	Open        int64     `json:"open,omitempty"`
	Many        bool      `json:"many,omitempty"` // it is about more than one destination
}

func summarised(view *overview) *logSummary {
	s := &logSummary{view: view, Groups: []groupView{}}
	if !view.First.IsZero() {
		s.First, s.Last = &view.First, &view.Last
	}
	for _, section := range sections {
		total := int64(0)
		for i, g := range view.Section(section.action) {
			total += g.Count
			if g.Action == "allow" && g.IsName() {
				s.Names += g.Count
			}
			if g.Action == "allow" && g.Why == policy.LearnRule {
				s.Observed += g.Count
			}
			s.Up, s.Down = s.Up+g.Up, s.Down+g.Down
			if view.top > 0 && i >= view.top {
				s.LeftOut++
				continue
			}
			s.Groups = append(s.Groups, groupViewOf(g, view.flags))
		}
		switch section.action {
		case "deny":
			s.Denied = total
		case "ask":
			s.Asked = total
		default:
			s.Allowed = total
		}
		s.Decisions += total
	}
	s.Shadow = view.Shadows()
	return s
}

func groupViewOf(g *logs.Group, flags string) groupView {
	v := groupView{
		Verdict: g.Action, Count: g.Count, Destination: g.Destination, What: g.What, Who: g.Who, Why: g.Why, Last: g.Last, Flow: g.Flow,
		Up: g.Up, Down: g.Down, Failed: g.Failed, Distrusted: g.Refused, Cut: g.Cut, Open: g.Open, Many: g.Many(),
	}
	if g.Action != "allow" {
		v.Fix = remark(g, flags)
	}
	return v
}

// sentence says what the log comes to.
func (s *logSummary) sentence() string {
	if s.Decisions == 0 {
		return "nothing was asked for"
	}
	text := fmt.Sprintf("%s from %s to %s: %d allowed, %d denied", quantity.Plural(int(s.Decisions), "decision"),
		s.First.Local().Format(time.DateTime), quantity.Clock(*s.Last, *s.First), s.Allowed, s.Denied)
	if s.Asked > 0 {
		text += fmt.Sprintf(", %d asked", s.Asked)
	}
	if s.Observed > 0 {
		text += fmt.Sprintf("; %d passed only because no rule is about them: egressd policy suggest", s.Observed)
	}
	if s.Names > 0 {
		text += "; " + quantity.Plural(int(s.Names), "name") + " asked for without a connection"
	}
	return text + "; " + quantity.Bytes(s.Down) + " down, " + quantity.Bytes(s.Up) + " up"
}

// printMarkdown writes a section for the summary of a CI job.
func (s *logSummary) printMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "### egressd\n\n%s\n", s.sentence())
	for _, section := range sections {
		s.markdownTable(w, section.action, section.title, section.last)
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(w, "\n%s left out.\n", quantity.Plural(s.LeftOut, "line"))
	}
	return nil
}

func (s *logSummary) markdownTable(w io.Writer, action, title, last string) {
	first := true
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Verdict != action {
			continue
		}
		if first {
			fmt.Fprintf(w, "\n**%s**\n\n| count | destination | what | who | why | last | %s |\n| ---: | --- | --- | --- | --- | --- | --- |\n", title, strings.ToLower(last))
			first = false
		}
		remark := g.Fix
		if action == "allow" {
			remark = quantity.Bytes(g.Down) + " down, " + quantity.Bytes(g.Up) + " up"
		}
		fmt.Fprintf(w, "| %d | %s | %s | %s | %s | %s | %s |\n", g.Count, cli.MarkdownCode(g.Destination), cli.MarkdownCode(g.What), cli.MarkdownCode(g.Who),
			cli.MarkdownCode(g.Why), g.Last.UTC().Format("2006-01-02 15:04:05Z"), cli.MarkdownWhole(remark))
	}
}
